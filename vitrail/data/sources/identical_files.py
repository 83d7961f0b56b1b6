"""Finding files of equal content. Sizes are compared first, so that only few files have to be read."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def same_content(root: Path, names: Sequence[str]) -> list[list[int]]:
    """Groups files of equal content.

    Args:
        root: The folder that the names are relative to.
        names: The paths of the files.

    Returns:
        Groups of indices into `names`, sorted by their first index. A file that cannot be read or is empty is a group
        of its own.
    """
    sizes: dict[int, list[int]] = {}
    alone: list[int] = []
    for index, name in enumerate(names):
        try:
            size = (root / name).stat().st_size
        except OSError:
            size = 0
        (sizes.setdefault(size, []) if size else alone).append(index)
    groups = [[index] for index in alone]
    for indices in sizes.values():
        groups += [indices] if len(indices) == 1 else _by_digest(root, names, indices)
    return sorted(groups)


def _by_digest(root: Path, names: Sequence[str], indices: list[int]) -> list[list[int]]:
    """Groups files by the SHA-256 of their content."""
    groups: dict[object, list[int]] = {}
    for index in indices:
        try:
            with (root / names[index]).open("rb") as stream:
                key: object = hashlib.file_digest(stream, "sha256").digest()
        except OSError:
            key = index
        groups.setdefault(key, []).append(index)
    return list(groups.values())
