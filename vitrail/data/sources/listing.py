"""Finding files: shared by the formats that are files in folders."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import UserError


def walk(folder: Path) -> Iterator[Path]:
    """Every visible file below a folder, sorted; links to folders are not followed, so loops cannot happen."""
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
    """The folders in a folder, sorted by name, without hidden ones. A link to a folder counts: people link data."""
    try:
        children = sorted(folder.iterdir(), key=lambda child: child.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    return [child for child in children if not child.name.startswith(".") and child.is_dir()]


def expand_braces(pattern: str) -> Iterator[str]:
    """shard-{000..012}.tar, WebDataset's way to name a row of files."""
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
    """Names for number labels, from a classes.txt (one a line) or a classes.json (a list), where there is one."""
    try:
        if text is not None and text.is_file():
            return tuple(line.strip() for line in text.read_text("utf-8").splitlines() if line.strip())
        if listed is not None and listed.is_file():
            names = json.loads(listed.read_text("utf-8"))
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UserError(f"{listed} must be a JSON list of class names")
            return tuple(names)
    except (OSError, ValueError) as error:
        raise UserError(f"the class names beside the data cannot be read: {error}") from error
    return None


def class_names_in(folder: Path) -> tuple[str, ...] | None:
    """The same, of the files of these names in a folder."""
    return read_class_names(folder / "classes.txt", folder / "classes.json")
