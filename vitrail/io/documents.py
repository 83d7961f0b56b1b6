"""Text and JSON that others may have written, read with suspicion.

Every JSON document that comes from a file is read here, so that size, encoding, nesting and numbers are bounded once
for all of them; a test keeps the rest of the package from reading any by itself. What is wrong is a UserError that
names the file.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from vitrail.errors import UserError, first_line

LARGEST_TEXT = 64 * 2**20
"""Bytes that a text file may have, where nothing else is said."""
DEEPEST = 64
"""Lists and objects that may lie in each other in a JSON document."""
_SUSPICIOUS_NUMBER = re.compile(r"[eE]\+?\d{3}|\d{300}")
"""Something as large as this stands in every document with a number that is too large for a float."""


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Reads a file of UTF-8 text.

    Args:
        path: The file.
        most: The bytes that it may have. No more than these are ever read, whatever the file claims to be.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            content = b"" if size > most else file.read((size or most) + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if max(size, len(content)) > most:
        raise UserError(f"{path}: is larger than {_amount(most)}, too large for what it should hold; look what it is")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error


def read_document(path: Path, most: int = LARGEST_TEXT, finite: bool = True) -> Any:
    """Reads a JSON document of any kind; `most` as for `read_text`, `finite` as for `parse_json`."""
    return parse_json(read_text(path, most), path, finite)


def read_json(path: Path, finite: bool = True) -> dict[str, Any]:
    """Reads a JSON object; `finite` as for `parse_json`."""
    return _object(read_document(path, finite=finite), path)


def parse_object(text: str | bytes, name: str | Path, finite: bool = True) -> dict[str, Any]:
    """Reads a JSON object from text; the rest as for `parse_json`."""
    return _object(parse_json(text, name, finite), name)


def parse_json(text: str | bytes, name: str | Path, finite: bool = True) -> Any:
    """Reads a JSON document from text.

    Args:
        text: The document; bytes are taken for UTF-8.
        name: The file that it comes from, for messages.
        finite: Whether NaN, Infinity and numbers too large for a float are refused. Those that a measurement may have
            come to are let in, and looked at by whoever uses them.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        large = finite and _SUSPICIOUS_NUMBER.search(text) is not None
        document = json.loads(
            text, parse_constant=_refuse_number if finite else None, parse_float=_finite if large else None
        )
        _check_depth(document)
        if "\\ud" in text or "\\uD" in text:
            _check_text(document)
    except RecursionError as error:
        raise UserError(f"{name}: not valid JSON: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{name}: not valid JSON: {first_line(error)}") from error
    return document


def _object(document: Any, name: str | Path) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise UserError(f"{name}: must hold a JSON object, not a {type(document).__name__}")
    return document


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that JSON knows")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _levels(document: Any) -> Iterator[list[Any]]:
    """Gives the lists and objects of a document, those of each depth together: never by recursion."""
    level = [document] if isinstance(document, list | dict) else []
    while level:
        yield level
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for children in inner for child in children if isinstance(child, list | dict)]


def _check_depth(document: Any) -> None:
    for depth, _ in enumerate(_levels(document)):
        if depth >= DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")


def _check_text(document: Any) -> None:
    """Raises ValueError for half a character: text with one can neither be printed nor written."""
    for level in _levels([document]):
        for each in level:
            for part in (*each, *each.values()) if isinstance(each, dict) else each:
                if isinstance(part, str):
                    part.encode("utf-8")


def _amount(size: int) -> str:
    return f"{size >> 20} MB" if size >= 2**20 else f"{size >> 10} KB"
