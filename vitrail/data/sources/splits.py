"""Which samples train, validate and test: by the names the data set uses, or cut by a seed."""

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


def split_named(text: str | PurePath) -> str | None:
    """The split that a path's words name: `data/train-00001.parquet` is train. The last word that fits wins."""
    words = re.split(r"[^a-z]+", str(text).lower())
    named = [SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES]
    return named[-1] if named else None


def files_by_split(where: str, files: Iterable[PurePath], root: PurePath) -> dict[str, list]:
    """Files grouped by the split their names tell; all under "" when none tells one."""
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
    """Cut samples into `train` and the parts named in `fractions`, every class in the same proportion.

    The result depends on the seed, the ids and the labels only: not on the order of the samples, the machine or
    any library's random numbers. Each part of each class is within one sample of its exact share, each part's
    total is its share of the whole rounded, and every class keeps a sample to train on.
    """
    # Samples keep the order of their ids, which is the same wherever they were listed from.
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
        # A class with one sample left has nothing to spare: it trains.
        room = {label: len(indices) - taken[label] - 1 for label, indices in members.items()}
        counts = _shares({label: len(indices) for label, indices in members.items()}, room, fraction, members, ranks)
        chosen = [members[label][taken[label] : taken[label] + count] for label, count in counts.items()]
        parts[part] = by_id(np.concatenate([nothing, *chosen]))
        for label, count in counts.items():
            taken[label] += count
    left = [indices[taken[label] :] for label, indices in members.items()]
    return {**parts, "train": by_id(np.concatenate([nothing, *left]))}


def _ranks(ids: Sequence[str], seed: int) -> np.ndarray:
    """A random number for each sample, of the seed and its id."""
    digests = [hashlib.blake2b(_text(seed, name), digest_size=8).digest() for name in ids]
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def _members(ids: Sequence[str], labels: np.ndarray, ranks: np.ndarray) -> dict[int, np.ndarray]:
    """The samples of each class by rank; equal ranks, which hardly occur, by id."""
    order = np.argsort(ranks, kind="stable")
    if (ranks[order[:-1]] == ranks[order[1:]]).any():
        order = np.array(sorted(range(len(ids)), key=lambda index: (int(ranks[index]), ids[index])), dtype=np.int64)
    order = order[np.argsort(labels[order], kind="stable")]
    found, starts = np.unique(labels[order], return_index=True)
    groups = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
    return {label: groups[label] for label in dict.fromkeys(labels.tolist())}


def _shares(
    sizes: dict[int, int],
    room: dict[int, int],
    fraction: float,
    members: dict[int, np.ndarray],
    ranks: np.ndarray,
) -> dict[int, int]:
    """How many of each class, by largest remainder; ties go by the hash of the class's first sample."""
    counts = {label: min(int(size * fraction), room[label]) for label, size in sizes.items()}
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
        # A class whose share is a whole number already has it exactly.
        if counts[label] < room[label] and sizes[label] * fraction > counts[label]:
            counts[label] += 1
            short -= 1
    return counts


def _text(seed: int, name: str) -> bytes:
    return f"{seed}/{name}".encode("utf-8", "surrogateescape")  # file names need not be valid text
