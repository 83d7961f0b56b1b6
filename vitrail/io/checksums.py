"""Tell by SHA-256 that a file or a model is what it was."""

import hashlib
from pathlib import Path

from vitrail.errors import UserError

SUMS = "SHA256SUMS"
"""The name of a folder's list of checksums, a `sum_line` for each file, as `sha256sum --check` reads it."""


def file_sha256(path: Path) -> str:
    """Computes the SHA-256 of a file as hexadecimal digits; what cannot be read is an OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(path: Path) -> str:
    """Computes the SHA-256 of a file that the user named; what cannot be read is a UserError."""
    try:
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def sum_line(path: Path) -> str:
    """Makes a file's line of `SUMS`: its SHA-256 and its name."""
    return f"{digest(path)}  {path.name}\n"


def fingerprint(path: Path) -> str:
    """Computes the SHA-256 over the names and contents of a model's files: those of its folder, or the one file."""
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    return hashlib.sha256("".join(map(sum_line, files)).encode("utf-8", "surrogateescape")).hexdigest()
