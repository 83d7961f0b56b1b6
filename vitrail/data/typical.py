"""Looks at a few pictures of a split: how large they usually are, and whether in colour."""

from dataclasses import dataclass

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import decode_planes, load_npy, open_header, to_array
from vitrail.data.sources.base import Content, Split

_LOOKED_AT = 16
_SHADE = 8
"""Channels that differ by more than this are colour: JPEG alone makes small differences."""


@dataclass(frozen=True)
class Typical:
    """The median sides of pictures, and whether most of them are in colour."""

    rows: int
    columns: int
    colour: bool


def typical(split: Split) -> Typical | None:
    """Measures a few pictures, evenly taken; None where none of them can be read."""
    found = []
    for index in range(0, len(split), max(1, len(split) // _LOOKED_AT)):
        try:
            found.append(_measured(split.read(index)))
        except BadImage:
            continue
    if not found:
        return None
    rows, columns, colour = np.median(np.array(found, dtype=float), axis=0)
    return Typical(int(rows), int(columns), bool(colour > 0.5))


def _measured(content: Content) -> tuple[int, int, bool]:
    if isinstance(content, bytes):
        if content[:6] != b"\x93NUMPY":
            image = open_header(content)
            return image.height, image.width, image.mode not in ("1", "L") and _coloured(content)
        content = load_npy(content, 1 << 28)
    return content.shape[0], content.shape[1], content.ndim == 3 and content.shape[2] == 3 and _coloured(content)


def _coloured(content: Content) -> bool:
    pixels = to_array(decode_planes(content, 3, shrink=lambda _: 8)).astype(float)
    return float((pixels.max(axis=2) - pixels.min(axis=2)).mean()) > _SHADE
