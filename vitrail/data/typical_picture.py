"""Measuring the typical picture of a split on a few samples: its size, and whether it has colour."""

from dataclasses import dataclass

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import decode_planes, load_npy, open_header, to_array
from vitrail.data.sources.base import Content, Split

_LOOKED_AT = 16
"""The number of samples that are measured, or a few more."""
_SHADE = 8
"""The mean difference between channels, of 255, above which a picture counts as coloured: JPEG makes small ones."""


@dataclass(frozen=True)
class TypicalPicture:
    """The typical picture: median numbers of rows and columns, and whether most pictures have colour."""

    rows: int
    columns: int
    colour: bool


def typical_picture(split: Split) -> TypicalPicture | None:
    """Measures a few pictures at equal distances in a split; returns None if none of them can be read."""
    found = []
    for index in range(0, len(split), max(1, len(split) // _LOOKED_AT)):
        try:
            found.append(_measured(split.read(index)))
        except BadImage:
            continue
    if not found:
        return None
    rows, columns, colour = np.median(np.array(found, dtype=float), axis=0)
    return TypicalPicture(int(rows), int(columns), bool(colour > 0.5))


def _measured(content: Content) -> tuple[int, int, bool]:
    """Returns (rows, columns, whether it has colour) of one picture."""
    if isinstance(content, bytes):
        if content[:6] != b"\x93NUMPY":
            image = open_header(content)
            return image.height, image.width, image.mode not in ("1", "L") and _coloured(content)
        content = load_npy(content, 1 << 28)
    return content.shape[0], content.shape[1], content.ndim == 3 and content.shape[2] == 3 and _coloured(content)


def _coloured(content: Content) -> bool:
    """Tells whether the channels of a picture differ, which those of a grey picture saved in colour hardly do."""
    pixels = to_array(decode_planes(content, 3, shrink=lambda _: 8)).astype(float)
    return float((pixels.max(axis=2) - pixels.min(axis=2)).mean()) > _SHADE
