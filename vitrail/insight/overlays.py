"""Makes small pictures of images and of maps over them, for the PNG files and the page."""

import io

import numpy as np
from PIL import Image

from vitrail.models.positions import Grid

_SIDE = 224
"""The pixels, about, of the longer side: smaller images are enlarged, larger ones reduced."""
MARK = (0, 229, 255)
"""The colour of frames."""
COLOURS = "inferno"
"""The name of matplotlib's palette for maps."""


def shown(pixels: np.ndarray) -> np.ndarray:
    """Returns an image with any number of channels at a size to look at, uint8 [rows, columns, 3]."""
    pixels = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    longer = max(pixels.shape[:2])
    if longer <= _SIDE:
        times = max(1, round(_SIDE / longer))
        return np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)
    size = [max(1, round(side * _SIDE / longer)) for side in pixels.shape[:2]]
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((size[1], size[0]), Image.Resampling.BOX))


def overlay(pixels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Draws a map [rows, columns] over its image in grey; dark is the map's smallest value, bright its largest."""
    image = shown(pixels)
    span = values.max() - values.min()
    scaled = (values - values.min()) / span if span > 0 else np.zeros_like(values, dtype=np.float64)
    map_image = Image.fromarray(scaled.astype(np.float32))
    smooth = np.asarray(map_image.resize((image.shape[1], image.shape[0]), Image.Resampling.BILINEAR))
    return blended(image, smooth)


def blended(image: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Colours an image by `strength`, 0..1, [rows, columns] of the image's size."""
    grey = image.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    colour = palette()[np.clip(np.rint(strength * 255), 0, 255).astype(int)]
    share = (0.35 + 0.5 * strength)[..., None]
    return np.rint(grey[..., None] * (1 - share) + colour * share).astype(np.uint8)


def palette() -> np.ndarray:
    """Returns the colours of maps, [256, 3] in 0..255: perceptually uniform, and fit for the colour-blind."""
    from matplotlib import colormaps

    return np.rint(colormaps[COLOURS](np.linspace(0, 1, 256))[:, :3] * 255)


def coloured(colours: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Enlarges one colour for each patch, [rows, columns, 3] in 0..1, to the size at which the image `like` is
    shown."""
    image = Image.fromarray(np.rint(colours * 255).astype(np.uint8))
    rows, columns = shown(like).shape[:2]
    return np.asarray(image.resize((columns, rows), Image.Resampling.NEAREST))


def marked(pixels: np.ndarray, grid: Grid, row: int, column: int) -> np.ndarray:
    """Draws a frame around one patch of an image."""
    image = shown(pixels).copy()
    top, bottom, left, right = _edges(image, grid, row, column)
    for width, colour in ((4, (0, 0, 0)), (2, MARK)):
        for start, stop in ((top - width, top), (bottom, bottom + width)):
            image[max(start, 0) : max(stop, 0), max(left - width, 0) : right + width] = colour
        for start, stop in ((left - width, left), (right, right + width)):
            image[max(top - width, 0) : bottom + width, max(start, 0) : max(stop, 0)] = colour
    return image


def _edges(image: np.ndarray, grid: Grid, row: int, column: int) -> tuple[int, int, int, int]:
    """Returns the top, bottom, left and right of a patch in a picture's pixels."""
    rows, columns = image.shape[:2]
    return (
        row * rows // grid[0],
        (row + 1) * rows // grid[0],
        column * columns // grid[1],
        (column + 1) * columns // grid[1],
    )


def mosaic(pixels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Paints patches that end in one token in their mean colour, with lines between groups; `groups` is [rows,
    columns]."""
    image = shown(pixels)
    rows, columns = (np.arange(side) * count // side for side, count in zip(image.shape, groups.shape, strict=False))
    member = groups[np.ix_(rows, columns)]
    result = np.empty_like(image)
    for group in np.unique(groups):
        inside = member == group
        result[inside] = image[inside].mean(axis=0).round()
    edge = np.zeros(member.shape, bool)
    edge[1:] |= member[1:] != member[:-1]
    edge[:, 1:] |= member[:, 1:] != member[:, :-1]
    result[edge] = 255
    return result


def jpeg(pixels: np.ndarray) -> bytes:
    """Encodes pixels as JPEG."""
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "JPEG", quality=88)
    return stream.getvalue()
