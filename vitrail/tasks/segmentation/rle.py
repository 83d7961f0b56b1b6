"""COCO's run lengths: a mask as the lengths of its runs of 0 and 1, down one column after another, and as short text.

In the text a length is the difference from the length two before it (from the fourth on), in groups of five bits, the
lowest first, each group a character from "0"; a sixth bit says that more follow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_FIRST = ord("0")
_MORE, _SIGN, _BITS = 0x20, 0x10, 0x1F
_MOST_GROUPS = 13
"""Groups of five bits that a length of 64 bits can have."""


def encode_runs(mask: np.ndarray) -> dict[str, Any]:
    """Encodes a mask, bool [rows, columns], as {"size": [rows, columns], "counts": text}."""
    return {"size": list(mask.shape), "counts": _to_text(run_lengths(mask))}


def encode_classes(mask: np.ndarray, classes: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Encodes the pixels of each of some classes, as `encode_runs` does, going through the mask only once.

    mask: uint8 [rows, columns], the class of each pixel.
    """
    flat = mask.ravel(order="F")
    starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
    ends, values = np.append(starts[1:], flat.size), flat[starts]
    found = {}
    for each in classes:
        own = values == each
        # Every run of the class lies between two others: where it begins, and where it ends.
        bounds = [0, *np.stack([starts[own], ends[own]], axis=1).ravel().tolist()]
        if bounds[-1] < flat.size:
            bounds.append(flat.size)
        found[each] = {"size": list(mask.shape), "counts": _to_text(np.diff(bounds).tolist())}
    return found


def run_lengths(mask: np.ndarray) -> list[int]:
    """Returns the lengths of the runs of a mask, bool [rows, columns], down its columns; the first is of 0, and may be
    empty."""
    flat = np.concatenate([[False], mask.ravel(order="F").astype(bool)])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()


def decode_runs(document: Mapping[str, Any], largest: int) -> np.ndarray:
    """Decodes run lengths, as text or as a list of numbers, to a mask, bool [rows, columns].

    Args:
        document: {"size": [rows, columns], "counts": ...}.
        largest: the largest mask that is made, in pixels.

    Raises:
        ValueError: If it is damaged, or larger.
    """
    size, counts = document.get("size"), document.get("counts")
    if not isinstance(size, Sequence) or len(size) != 2 or any(type(each) is not int or each < 1 for each in size):
        raise ValueError(f"run lengths have a size of {size!r:.80}; it must be [rows, columns]")
    rows, columns = size
    if rows * columns > largest:
        raise ValueError(f"run lengths of {columns:,} x {rows:,} pixels are too large")
    if isinstance(counts, (str, bytes)):
        counts = _from_text(counts.encode() if isinstance(counts, str) else counts, rows * columns + 1)
    if not isinstance(counts, list) or any(type(each) is not int or each < 0 for each in counts):
        raise ValueError("run lengths have counts that are no lengths")
    if sum(counts) != rows * columns:
        raise ValueError(f"run lengths cover {sum(counts):,} of {rows * columns:,} pixels")
    values = np.arange(len(counts)) % 2 == 1
    return np.repeat(values, counts).reshape((rows, columns), order="F")


def _to_text(counts: Sequence[int]) -> str:
    characters = bytearray()
    for place, count in enumerate(counts):
        left = count - counts[place - 2] if place > 2 else count
        more = True
        while more:
            group = left & _BITS
            left >>= 5
            more = left != (-1 if group & _SIGN else 0)
            characters.append(_FIRST + (group | _MORE if more else group))
    return characters.decode("ascii")


def _from_text(text: bytes, most: int) -> list[int]:
    counts: list[int] = []
    value = groups = 0
    for each in text:
        character = each - _FIRST
        if not 0 <= character < 2 * _MORE or groups == _MOST_GROUPS:
            raise ValueError("run lengths are damaged text")
        value |= (character & _BITS) << (5 * groups)
        groups += 1
        if not character & _MORE:
            if character & _SIGN:
                value -= 1 << (5 * groups)
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            if counts[-1] < 0 or len(counts) > most:
                raise ValueError("run lengths are damaged text")
            value = groups = 0
    if groups:
        raise ValueError("run lengths end within a number")
    return counts
