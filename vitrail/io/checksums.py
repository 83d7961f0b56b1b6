"""SHA-256 checksums of files and of models, by which a changed or damaged file is noticed."""

import hashlib
from pathlib import Path

from vitrail.errors import UserError

SUMS = "SHA256SUMS"
"""The name of the file in a folder that lists its checksums: one `sum_line` for each file, in the format that
`sha256sum --check` reads."""
LARGEST_SUMS = 2**20
"""The largest such list that is read, in bytes."""


def file_sha256(path: Path) -> str:
    """Computes the SHA-256 of a file as 64 hexadecimal digits.

    Raises OSError if the file cannot be read, after which a download is tried again; `digest` raises a UserError, which
    ends the attempts.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(path: Path) -> str:
    """Computes the SHA-256 of a file that the user named, as `file_sha256`. Raises UserError if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def sum_line(path: Path) -> str:
    """Formats the line of the file `SUMS` for one file: its SHA-256, two spaces, its name, a newline."""
    return f"{digest(path)}  {path.name}\n"


def fingerprint(path: Path) -> str:
    """Computes one SHA-256 of a whole model, over the names and contents of its files.

    path: the model's only file, or its folder, of which every file counts but no subfolder.
    """
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    return hashlib.sha256("".join(map(sum_line, files)).encode("utf-8", "surrogateescape")).hexdigest()
