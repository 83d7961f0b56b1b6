"""Finding pictures that occur twice: the same pixels, or nearly so, without comparing all with all.

Every picture gets a 64-bit hash of its brightness gradients (dHash). Hashes are cut into four bands; only pictures
that agree in a whole band are compared at all. A pair is near when the hashes differ in few bits and the 16 x 16
thumbnails hardly differ, which keeps plain digits and skies from all looking alike.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

THUMBNAIL = 16
MAX_BITS = 10
MAX_DIFFERENCE = 0.06
"""Mean absolute difference of the thumbnails, once each has mean 0 and standard deviation 1."""
MAX_BRIGHTNESS = 20.0
"""Difference of their mean brightness, in grey levels of 256."""
_BANDS = 4
_BLOCK = 512
_MAX_PAIRS = 200_000


def gradient_hash(grey: Image.Image) -> int:
    """64 bits: is each of 8 x 8 places darker than its right neighbour? `grey` is of mode L."""
    small = np.asarray(grey.resize((9, 8), Image.Resampling.BOX), dtype=np.int16)
    bits = np.packbits(small[:, :-1] < small[:, 1:])
    return int.from_bytes(bits.tobytes(), "big")


def thumbnail(grey: Image.Image) -> np.ndarray:
    """uint8 [256], the picture squashed to 16 x 16."""
    return np.asarray(grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)).reshape(-1)


def exact_groups(hashes: Sequence[bytes]) -> list[list[int]]:
    """Places of equal hashes, for every hash that occurs more than once."""
    places: dict[bytes, list[int]] = {}
    for place, value in enumerate(hashes):
        places.setdefault(value, []).append(place)
    return [group for group in places.values() if len(group) > 1]


def near_groups(hashes: np.ndarray, thumbnails: np.ndarray) -> tuple[list[list[int]], bool]:
    """Groups of places that look nearly alike, and whether the search was cut short by their number.

    hashes [pictures] uint64, thumbnails [pictures, 256] uint8.
    """
    values = thumbnails.astype(np.float32)
    brightness = values.mean(axis=1, keepdims=True)
    # A flat picture has no contrast to scale by: its grain stays as small as it is.
    fine = (values - brightness) / np.maximum(values.std(axis=1, keepdims=True), 2.0)
    # The means of 4 x 4 squares differ by no more than the squares do: a cheap test that loses nothing.
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
    """Sixteen bits of each hash, spread over the picture: next to each other they are often all zero at once."""
    keys = np.zeros(len(hashes), dtype=np.int64)
    for bit in range(band, 64, _BANDS):
        keys = keys * 2 + ((hashes >> np.uint64(bit)) & np.uint64(1)).astype(np.int64)
    return keys


def _near_pairs(
    members: np.ndarray, hashes: np.ndarray, brightness: np.ndarray, coarse: np.ndarray, fine: np.ndarray
) -> set[tuple[int, int]]:
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
    """Each picture joins the first one it is near to; likeness is not passed on from neighbour to neighbour,
    or every handwritten 1 would end up in one group."""
    groups: dict[int, list[int]] = {}
    joined: set[int] = set()
    for left, right in sorted(pairs):
        if left in joined or right in joined:
            continue
        groups.setdefault(left, [left]).append(right)
        joined.add(right)
    return list(groups.values())
