"""Finds files of the same content: by their sizes first, so that few of them have to be read."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def same_content(root: Path, names: Sequence[str]) -> list[list[int]]:
    """Groups files by their bytes: lists of places among the names, in the order of the first of each group.

    Files that cannot be read, and empty ones, which hold no picture, are groups of their own.

    Args:
        root: The folder that the names are below.
        names: Paths of files.
    """
    sizes: dict[int, list[int]] = {}
    alone: list[int] = []
    for place, name in enumerate(names):
        try:
            size = (root / name).stat().st_size
        except OSError:
            size = 0
        (sizes.setdefault(size, []) if size else alone).append(place)
    groups = [[place] for place in alone]
    for places in sizes.values():
        groups += [places] if len(places) == 1 else _by_digest(root, names, places)
    return sorted(groups)


def _by_digest(root: Path, names: Sequence[str], places: list[int]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for place in places:
        try:
            with (root / names[place]).open("rb") as stream:
                key: object = hashlib.file_digest(stream, "sha256").digest()
        except OSError:
            key = place
        groups.setdefault(key, []).append(place)
    return list(groups.values())
