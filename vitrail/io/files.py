"""Writing files atomically: whole or not at all."""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.errors import UserError

Fill = Callable[[Path], None]
"""A function that writes some content to the path it is given: a file or, where a folder is given, files in it."""


def sync(path: Path) -> None:
    """Waits (fsync) until the content of a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Replaces a file atomically: yields a temporary file beside `path` for the block to write to.

    When the block ends, the temporary file is synced to disk and renamed to `path`. If the block raises, the temporary
    file is deleted and `path` stays as it was. Errors of the disk are raised as OSError.

    mode: permissions of the new file, such as 0o644; None leaves those that the system gives any new file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        sync(temporary)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def writing(name: str | Path) -> Iterator[None]:
    """Turns an OSError of the block into a UserError that says what cannot be written.

    name: what the message calls it: a path, or a flag with its path ("--out reports").
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: cannot be written: {error.strerror or error}") from error


def write_file(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """Writes a file that the user named, atomically, and creates its parent folders.

    Raises UserError if `path` exists and `overwrite` is False, if it is a folder, or if it cannot be written.
    """
    refuse_existing(path, overwrite)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; a file of that format is wanted")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o644) as temporary:
            fill(temporary)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises UserError if `path` exists and `overwrite` is False."""
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or give --overwrite")


def write_bytes(path: Path, content: bytes | None) -> None:
    """Writes one file of a set that is rewritten together, atomically, or removes it if `content` is None.

    Removing matters: a file that an earlier run left, and this one does not write, would contradict the other files.
    Raises OSError if the disk refuses.
    """
    if content is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def bytes_file(content: bytes) -> Fill:
    """Returns a function that writes these bytes to the path it is given, for `write_file`."""

    def fill(path: Path) -> None:
        path.write_bytes(content)

    return fill


def text_file(text: str) -> Fill:
    """Returns a function that writes text as UTF-8 to the path it is given, for `write_file`.

    Text may contain file names that are not valid Unicode; their invalid characters are written as backslash escapes.
    """
    return bytes_file(text.encode("utf-8", "backslashreplace"))


def json_text(document: Any) -> str:
    """Formats a JSON document for human readers: indented by two spaces, with characters beyond ASCII as they are."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
