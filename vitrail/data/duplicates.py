"""Finding pictures that occur twice, exactly or nearly, without comparing every picture with every other.

Every picture gets a 64-bit hash of its brightness gradients (dHash). The hash is cut into four bands of 16 bits; two
pictures are compared only if they agree in all bits of a band. They are near duplicates if their hashes differ in few
bits and their 16 x 16 thumbnails differ little; the hash alone would take all plain skies for one picture.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

THUMBNAIL = 16
"""The side of a thumbnail in pixels."""
# The most that two near duplicates may differ by:
MAX_BITS = 10
"""Bits of their hashes."""
MAX_DIFFERENCE = 0.06
"""The mean absolute difference of their thumbnails, each scaled to mean 0 and standard deviation 1."""
MAX_BRIGHTNESS = 20.0
"""The difference of their mean brightness, in grey levels of 256."""
_BANDS = 4
_BLOCK = 512
"""Pictures compared with others at a time, which bounds the memory."""
_MAX_PAIRS = 200_000
"""The search ends if it has found more pairs than this."""


def gradient_hash(grey: Image.Image) -> int:
    """Computes a 64-bit hash: for each of 8 x 8 cells, one bit that is set if it is darker than its right neighbour.

    grey: an image of mode L.
    """
    small = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = np.packbits(small[:, :-1] < small[:, 1:])
    return int.from_bytes(bits.tobytes(), "big")


def grey_thumbnail(grey: Image.Image) -> np.ndarray:
    """Resizes an image of mode L to 16 x 16 and returns it as uint8 [256]."""
    return np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)).reshape(-1)


def exact_groups(hashes: Sequence[bytes]) -> list[list[int]]:
    """Returns, for every hash that occurs more than once, the list of indices where it occurs."""
    indices: dict[bytes, list[int]] = {}
    for index, value in enumerate(hashes):
        indices.setdefault(value, []).append(index)
    return [group for group in indices.values() if len(group) > 1]


def near_groups(hashes: np.ndarray, thumbnails: np.ndarray) -> tuple[list[list[int]], bool]:
    """Finds groups of pictures that look nearly alike.

    Args:
        hashes: uint64 [pictures], from `gradient_hash`.
        thumbnails: uint8 [pictures, 256], from `thumbnail`.

    Returns:
        Groups of indices, and whether the search was cut short because there are too many pairs.
    """
    values = thumbnails.astype(np.float32)
    brightness = values.mean(axis=1, keepdims=True)
    # The scale is bounded, so that the faint noise of a picture without contrast is not blown up.
    fine = (values - brightness) / np.maximum(values.std(axis=1, keepdims=True), 2.0)
    # The means of 4 x 4 squares differ by no more than the squares themselves, so comparing the means first excludes
    # most pairs cheaply and no near one.
    side = THUMBNAIL // 4
    coarse = fine.reshape(-1, side, 4, side, 4).mean(axis=(2, 4)).reshape(len(fine), -1)
    pairs: set[tuple[int, int]] = set()
    for band in range(_BANDS):
        keys = _band(hashes, band)
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for members in np.split(order, starts[1:]):
            if len(members) > 1:
                pairs |= _near_pairs(members, hashes, brightness, coarse, fine)
            if len(pairs) > _MAX_PAIRS:
                return _join(pairs), True
    return _join(pairs), False


def _band(hashes: np.ndarray, band: int) -> np.ndarray:
    """Takes every fourth bit of each hash, from bit `band` on: integers [pictures] of 16 bits.

    The bits of a band are spread over the picture, because neighbouring bits are often all zero together.
    """
    keys = np.zeros(len(hashes), dtype=np.int64)
    for bit in range(band, 64, _BANDS):
        keys = keys * 2 + ((hashes >> np.uint64(bit)) & np.uint64(1)).astype(np.int64)
    return keys


def _near_pairs(
    members: np.ndarray, hashes: np.ndarray, brightness: np.ndarray, coarse: np.ndarray, fine: np.ndarray
) -> set[tuple[int, int]]:
    """Compares every two of `members`, indices of pictures, and returns the pairs that are near duplicates."""
    pairs: set[tuple[int, int]] = set()
    for start in range(0, len(members), _BLOCK):
        block = members[start : start + _BLOCK]
        rest = members[start:]
        bits = np.bitwise_count(hashes[block][:, None] ^ hashes[rest][None, :])
        lefts, rights = np.nonzero(np.triu(bits <= MAX_BITS, k=1))
        for first in range(0, len(lefts), 65536):
            left, right = block[lefts[first : first + 65536]], rest[rights[first : first + 65536]]
            for values, most in ((brightness, MAX_BRIGHTNESS), (coarse, MAX_DIFFERENCE), (fine, MAX_DIFFERENCE)):
                near = np.abs(values[left] - values[right]).mean(axis=1) <= most
                left, right = left[near], right[near]
            found = np.sort(np.stack([left, right], axis=1), axis=1)
            pairs.update(map(tuple, found.tolist()))
            if len(pairs) > _MAX_PAIRS:
                return pairs
    return pairs


def _join(pairs: set[tuple[int, int]]) -> list[list[int]]:
    """Groups pairs: each picture joins the group of the first picture that it is near to.

    Pictures that are near only to other members of a group do not join it; otherwise chains of similar pictures would
    put every handwritten 1 into one group.
    """
    groups: dict[int, list[int]] = {}
    joined: set[int] = set()
    for left, right in sorted(pairs):
        if left in joined or right in joined:
            continue
        groups.setdefault(left, [left]).append(right)
        joined.add(right)
    return list(groups.values())
