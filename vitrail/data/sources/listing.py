"""Finding files: shared by the formats that are files in folders."""

import json
import os
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


def read_class_names(folder: Path) -> tuple[str, ...] | None:
    """Names for number labels, from classes.txt (one a line) or classes.json (a list) in the folder, if there."""
    text, listed = folder / "classes.txt", folder / "classes.json"
    try:
        if text.is_file():
            return tuple(line.strip() for line in text.read_text("utf-8").splitlines() if line.strip())
        if listed.is_file():
            names = json.loads(listed.read_text("utf-8"))
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise UserError(f"{listed} must be a JSON list of class names")
            return tuple(names)
    except (OSError, ValueError) as error:
        raise UserError(f"the class names beside the data cannot be read: {error}") from error
    return None
