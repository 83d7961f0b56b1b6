"""Dividing samples into splits (train, val, test): by the names in a data set, or at random by a seed."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import numpy as np

from vitrail.errors import UserError

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""The split that each of these words means in the name of a file, folder or column."""


def split_named(text: str | PurePath) -> str | None:
    """Finds the split that a word of a path names: "train" for `data/train-00001.parquet`; None if no word does.

    The last such word decides.
    """
    words = re.split(r"[^a-z]+", str(text).lower())
    named = [SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES]
    return named[-1] if named else None


def files_by_split(where: str, files: Iterable[PurePath], root: PurePath) -> dict[str, list]:
    """Groups files by the split that their names tell; all under "" if no name tells one.

    Args:
        where: The source, for messages.
        files: The files.
        root: The folder whose own name does not count.

    Raises:
        UserError: If only some of the names tell a split.
    """
    groups: dict[str, list] = {}
    for file in files:
        groups.setdefault(split_named(file.relative_to(root)) or "", []).append(file)
    if "" in groups and len(groups) > 1:
        raise UserError(
            f"{where}: some file names tell a split (train, val, test) and {groups[''][0].name} does not; "
            "rename it or move it away"
        )
    return groups


def stratified_split(
    ids: Sequence[str], labels: np.ndarray, fractions: dict[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Divides samples at random into `train` and the parts named in `fractions`, with every class in its proportion.

    The result depends only on the seed, the ids and the labels, and not on the order of the samples, the machine or the
    random numbers of a library. The number of each class in each part is within one of its exact fraction, each part's
    size is its fraction of all samples, rounded, and every class keeps at least one sample in `train`.

    Args:
        ids: The id of each sample.
        labels: The class, or other group, of each sample, integers [samples].
        fractions: The fraction of the samples for each part but `train`.
        seed: The seed.

    Returns:
        For each part the indices of its samples, int64, sorted by id.
    """
    # Indices are sorted by id because the order in which samples were listed may differ between machines.
    sorted_already = list(ids) == sorted(ids)

    def by_id(chosen: np.ndarray) -> np.ndarray:
        chosen = np.sort(chosen)
        return chosen if sorted_already else np.array(sorted(chosen.tolist(), key=ids.__getitem__), dtype=np.int64)

    nothing = np.empty(0, dtype=np.int64)
    if not any(fractions.values()):
        return {**dict.fromkeys(fractions, nothing), "train": by_id(np.arange(len(ids)))}
    ranks = _ranks(ids, seed)
    members = _members(ids, labels, ranks)
    taken = dict.fromkeys(members, 0)
    parts: dict[str, np.ndarray] = {}
    for part, fraction in fractions.items():
        # One sample of each class is kept for `train`.
        available = {label: len(indices) - taken[label] - 1 for label, indices in members.items()}
        sizes = {label: len(indices) for label, indices in members.items()}
        counts = _class_counts(sizes, available, fraction, members, ranks)
        chosen = [members[label][taken[label] : taken[label] + count] for label, count in counts.items()]
        parts[part] = by_id(np.concatenate([nothing, *chosen]))
        for label, count in counts.items():
            taken[label] += count
    left = [indices[taken[label] :] for label, indices in members.items()]
    return {**parts, "train": by_id(np.concatenate([nothing, *left]))}


def _ranks(ids: Sequence[str], seed: int) -> np.ndarray:
    """Computes a random number for each sample from the seed and its id, uint64 [samples]."""
    digests = [hashlib.blake2b(_text(seed, name), digest_size=8).digest() for name in ids]
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def _members(ids: Sequence[str], labels: np.ndarray, ranks: np.ndarray) -> dict[int, np.ndarray]:
    """Returns the indices of each class's samples, sorted by rank; equal ranks, which hardly occur, by id."""
    order = np.argsort(ranks, kind="stable")
    if (ranks[order[:-1]] == ranks[order[1:]]).any():
        order = np.array(sorted(range(len(ids)), key=lambda index: (int(ranks[index]), ids[index])), dtype=np.int64)
    order = order[np.argsort(labels[order], kind="stable")]
    found, starts = np.unique(labels[order], return_index=True)
    groups = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
    return {label: groups[label] for label in dict.fromkeys(labels.tolist())}


def _class_counts(
    sizes: dict[int, int],
    available: dict[int, int],
    fraction: float,
    members: dict[int, np.ndarray],
    ranks: np.ndarray,
) -> dict[int, int]:
    """Computes how many samples of each class a part gets, by the largest remainder method.

    Args:
        sizes: The number of samples of each class.
        available: The number of them that may still be taken.
        fraction: The fraction of all samples that the part gets.
        members: The indices of each class's samples; equal remainders are ordered by the rank of the first.
        ranks: The rank of each sample.
    """
    counts = {label: min(int(size * fraction), available[label]) for label, size in sizes.items()}
    short = round(sum(sizes.values()) * fraction) - sum(counts.values())
    by_remainder = sorted(
        sizes,
        key=lambda label: (
            -(sizes[label] * fraction - int(sizes[label] * fraction)),
            int(ranks[members[label][0]]),
        ),
    )
    for label in by_remainder:
        if short <= 0:
            break
        # A class whose exact fraction is a whole number has that number already.
        if counts[label] < available[label] and sizes[label] * fraction > counts[label]:
            counts[label] += 1
            short -= 1
    return counts


def _text(seed: int, name: str) -> bytes:
    """Returns the bytes that are hashed for a sample."""
    return f"{seed}/{name}".encode("utf-8", "surrogateescape")  # file names need not be valid text
