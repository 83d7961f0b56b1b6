"""Finding files and class names in folders, for all formats that are files in folders."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import UserError
from vitrail.io.documents import read_document, read_text


def walk(folder: Path) -> Iterator[Path]:
    """Yields every file below a folder in sorted order, without hidden files and folders.

    Links to folders are not followed, so that a circle of links cannot make it endless. Raises UserError if a folder
    cannot be read.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


def visible_folders(folder: Path) -> list[Path]:
    """Lists the folders in a folder by name, without hidden ones; links to folders are included.

    Raises UserError if the folder cannot be read.
    """
    try:
        children = sorted(folder.iterdir(), key=lambda child: child.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    return [child for child in children if not child.name.startswith(".") and child.is_dir()]


def expand_braces(pattern: str) -> Iterator[str]:
    """Yields every name that WebDataset's notation shard-{000..012}.tar means; other patterns are yielded unchanged."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if match is None:
        yield pattern
        return
    first, last = match.groups()
    if not 0 <= int(last) - int(first) < 1_000_000:
        raise UserError(f"{pattern!r}: the numbers in braces must rise")
    for number in range(int(first), int(last) + 1):
        yield from expand_braces(f"{pattern[: match.start()]}{number:0{len(first)}d}{pattern[match.end() :]}")


def read_class_names(text: Path | None, listed: Path | None) -> tuple[str, ...] | None:
    """Reads the class names for labels that are numbers.

    text: a classes.txt with one name on each line; listed: a classes.json with a list. Returns None if neither exists.
    Raises UserError if one cannot be read.
    """
    if text is not None and text.is_file():
        return tuple(line.strip() for line in read_text(text).splitlines() if line.strip())
    if listed is not None and listed.is_file():
        names = read_document(listed)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"{listed} must be a JSON list of class names")
        return tuple(names)
    return None


def class_names_in(folder: Path) -> tuple[str, ...] | None:
    """Reads the class names from classes.txt or classes.json in a folder, as `read_class_names`."""
    return read_class_names(folder / "classes.txt", folder / "classes.json")
