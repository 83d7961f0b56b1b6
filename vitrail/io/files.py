"""Files written whole or not at all, and JSON documents read with suspicion."""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.errors import UserError

LARGEST_JSON = 64 * 2**20

Fill = Callable[[Path], None]
"""Writes what it stands for to the path it is given."""


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Gives an empty file beside `path` to write to. It takes the place of `path` when the block is done and its
    content is on the disk; if the block fails, it goes and `path` is what it was.

    `mode` are its permissions; None: those of any new file. Errors of the disk are OSErrors.
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
    """Turns an OSError of the block into a UserError: `name`, a path or a flag with its path, cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{name}: cannot be written: {error.strerror or error}") from error


def write_file(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """Writes a file that the user named, whole or not at all; its folder is made. One that is there is refused unless
    `overwrite` is set."""
    refuse_existing(path, overwrite)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; a file of that format is wanted")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o644) as temporary:
            fill(temporary)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises UserError if something is there and may not be overwritten."""
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or give --overwrite")


def write_bytes(path: Path, content: bytes | None) -> None:
    """Writes one file of several that a program writes anew each time, whole or not at all; errors are OSErrors.

    None removes the file: what an earlier time left and this one has not would contradict the others.
    """
    if content is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def bytes_file(content: bytes) -> Fill:
    """Makes what fills a file with these bytes."""

    def fill(path: Path) -> None:
        path.write_bytes(content)

    return fill


def text_file(text: str) -> Fill:
    """Makes what fills a file with text. It may hold file names no encoding can write: those are escaped."""
    return bytes_file(text.encode("utf-8", "backslashreplace"))


def json_text(document: Any) -> str:
    """Formats a JSON document as people read it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; a file that is too large, damaged or something else is a UserError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise UserError(f"{path}: too large to be a configuration")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(document).__name__}")
    return document
