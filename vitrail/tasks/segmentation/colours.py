"""Colours of classes, the same in files, reports and on the web page."""

import colorsys
import io

import numpy as np

_GOLDEN = 0.618034
"""The golden ratio: hues that are this far apart, around the circle of hues, do not come near each other for long."""
_UNKNOWN = (0, 0, 0)
_PIXELS = 1 << 20
"""How many pixels are painted at a time."""


def class_colours(classes: int) -> np.ndarray:
    """Returns a colour for each value of a byte, uint8 [256, 3]: of the classes, and black for all others."""
    colours = np.tile(np.array(_UNKNOWN, dtype=np.uint8), (256, 1))
    for index in range(min(classes, 255)):
        hue = (0.58 + index * _GOLDEN) % 1
        value = 0.95 if index % 2 else 0.75
        colours[index] = [round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, value)]
    return colours


def mask_png(mask: np.ndarray, classes: int) -> bytes:
    """Encodes a mask, uint8 [rows, columns], as a PNG with a palette of the classes' colours: a byte for each pixel."""
    from PIL import Image

    picture = Image.fromarray(mask)
    picture.putpalette(class_colours(classes).tobytes())
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=4)
    return stream.getvalue()


def paint_mask(pixels: np.ndarray, mask: np.ndarray, classes: int, opacity: float = 0.5) -> np.ndarray:
    """Paints a mask over a picture.

    Args:
        pixels: uint8 [rows, columns, channels], of 3 channels or 1.
        mask: uint8 [rows, columns], classes; other values leave the picture as it is.
        classes: how many classes there are.
        opacity: how much of the picture the colours cover, from 0 to 1.

    Returns:
        uint8 [rows, columns, 3].
    """
    colours, painted = class_colours(classes), np.empty((*mask.shape, 3), dtype=np.uint8)
    step = max(1, _PIXELS // max(1, mask.shape[1]))
    for first in range(0, len(mask), step):  # blending takes many times the memory of the picture
        rows = slice(first, first + step)
        picture, own = pixels[rows], mask[rows]
        picture = np.repeat(picture[..., :1], 3, axis=2) if pixels.shape[2] < 3 else picture[..., :3]
        blended = np.round((1 - opacity) * picture + opacity * colours[own])
        painted[rows] = np.where((own < classes)[..., None], blended, picture)
    return painted
