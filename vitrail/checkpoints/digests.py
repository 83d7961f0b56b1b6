"""What tells that a file or a model is what it was. Without torch: prediction on other engines needs it too."""

import hashlib
from pathlib import Path

from vitrail.errors import UserError


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def fingerprint(path: Path) -> str:
    """The SHA-256 over the names and contents of a model's files: those of its folder, or the one weights file."""
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    lines = "".join(f"{digest(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
