"""Sizes, crops and the small affine map, on pictures as Pillow images."""

import math

from PIL import Image

from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.decode import Planes
from vitrail.data.frame import Box, Matrix, Moves
from vitrail.random_stream import Draws

RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
_LARGE = 1 << 26
"""Pixels beyond which a resized picture is not made whole only to be cropped."""


def size_of(planes: Planes) -> tuple[int, int]:
    """(rows, columns)"""
    return planes[0].height, planes[0].width


def resize(planes: Planes, size: tuple[int, int], resample: str, box: Box | None = None) -> Planes:
    """The picture, or the box of it, at (rows, columns)."""
    rows, columns = size
    return tuple(plane.resize((columns, rows), RESAMPLE[resample], box=box) for plane in planes)


def evaluation_crop(planes: Planes, preprocessing: Preprocessing, size: tuple[int, int] | None = None) -> Planes:
    """What a model sees at evaluation, pixel for pixel as timm's evaluation transform makes it.

    `size` is the picture's own, where it was decoded at a smaller one.
    """
    target, actual = preprocessing.rows_columns, size_of(planes)
    size = size or actual
    # A JPEG reduced while decoding is rounded up to whole pixels: the picture ends a little before its last ones do.
    factor = reduction(size, actual)
    whole = None if factor == 1 else (0.0, 0.0, size[1] / factor, size[0] / factor)
    if preprocessing.crop == "squash":
        return resize(planes, target, preprocessing.resample, whole)
    resized = evaluation_size(size, target, preprocessing.crop_fraction)
    centre = _centre(resized, target)
    if resized[0] * resized[1] > max(_LARGE, 16 * target[0] * target[1]):
        # A picture of 1 x 10000 would grow to hundreds of millions of pixels: cut the part out while resizing.
        return resize(planes, target, preprocessing.resample, _scaled(centre, resized, actual))
    planes = resize(planes, resized, preprocessing.resample, whole)
    return tuple(plane.crop(centre) for plane in planes)


def evaluation_box(size: tuple[int, int], preprocessing: Preprocessing) -> Box:
    """Returns the part of a picture of this size that becomes the input at evaluation, in the picture's own pixels."""
    if preprocessing.crop == "squash":
        return 0.0, 0.0, float(size[1]), float(size[0])
    target = preprocessing.rows_columns
    resized = evaluation_size(size, target, preprocessing.crop_fraction)
    return _scaled(_centre(resized, target), resized, size)


def _centre(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns the box of the target's size in the middle of a larger size."""
    # torchvision's rounding: half to even.
    top, left = (round((have - want) / 2.0) for have, want in zip(size, target, strict=True))
    return left, top, left + target[1], top + target[0]


def _scaled(box: Box, size: tuple[int, int], other: tuple[int, int]) -> Box:
    """Returns the box for a picture of one size on the same picture at another."""
    down, right = other[0] / size[0], other[1] / size[1]
    return box[0] * right, box[1] * down, box[2] * right, box[3] * down


def reduction(size: tuple[int, int], actual: tuple[int, int]) -> int:
    """Returns by how much (1, 2, 4 or 8) a JPEG of this size was reduced while decoding."""
    return max(round(own / now) for own, now in zip(size, actual, strict=True))


def evaluation_shrink(size: tuple[int, int], preprocessing: Preprocessing) -> int:
    """By how much a JPEG of this size may be reduced while decoding: it stays at least twice what it is resized to."""
    target = preprocessing.rows_columns
    if preprocessing.resample == "nearest":
        return 1
    if preprocessing.crop == "center":
        target = evaluation_size(size, target, preprocessing.crop_fraction)
    return shrink_factor((0, 0, size[1], size[0]), target)


def evaluation_size(size: tuple[int, int], target: tuple[int, int], crop_fraction: float) -> tuple[int, int]:
    """The size (rows, columns) from which the centre is cut."""
    rows, columns = size
    scaled = tuple(math.floor(side / crop_fraction) for side in target)
    if scaled[0] == scaled[1]:
        short, long = min(size), max(size)
        grown = int(scaled[0] * long / short)
        return (scaled[0], grown) if rows <= columns else (grown, scaled[0])
    ratio = min(rows / scaled[0], columns / scaled[1])
    return max(round(rows / ratio), target[0]), max(round(columns / ratio), target[1])


def inception_box(size: tuple[int, int], area: tuple[float, float], aspect: tuple[float, float], draws: Draws) -> Box:
    """A random part of the picture (Szegedy et al. 2015): a share of its area, of a random shape."""
    rows, columns = size
    for _ in range(10):
        part = rows * columns * draws.uniform(*area)
        shape = draws.log_uniform(*aspect)
        width, height = round(math.sqrt(part * shape)), round(math.sqrt(part / shape))
        if 0 < width <= columns and 0 < height <= rows:
            left, top = draws.integer(columns - width + 1), draws.integer(rows - height + 1)
            return left, top, left + width, top + height
    # Only long thin pictures come here: the largest part in the middle whose shape is allowed.
    width, height = (
        min(columns, max(1, round(rows * aspect[1]))),
        min(rows, max(1, round(columns / aspect[0]))),
    )
    left, top = (columns - width) // 2, (rows - height) // 2
    return left, top, left + width, top + height


def shrink_factor(box: Box, target: tuple[int, int]) -> int:
    """By how much a JPEG may be reduced while decoding: what is cut out stays at least twice the target."""
    spare = min((box[2] - box[0]) / target[1], (box[3] - box[1]) / target[0]) / 2
    return next((factor for factor in (8, 4, 2) if spare >= factor), 1)


def rescale_box(box: Box, size: tuple[int, int], actual: tuple[int, int]) -> Box:
    """A box drawn for one size (rows, columns), on a picture that was decoded at another."""
    if size == actual:
        return box
    left, top, right, bottom = _scaled(box, size, actual)
    return left, top, min(right, float(actual[1])), min(bottom, float(actual[0]))


def own_box(box: Box, size: tuple[int, int], actual: tuple[int, int]) -> Box:
    """Returns where a box on a picture that was decoded at another size lies in the picture's own pixels.

    A pixel of a JPEG reduced by 8 is 8 by 8 of its own, though the last one of a row or column may be of fewer. Turned
    upright by EXIF data it may come first; the box is then off by up to 7 pixels, under half a pixel of the input.
    """
    if size == actual:
        return box
    factor = reduction(size, actual)
    return box[0] * factor, box[1] * factor, box[2] * factor, box[3] * factor


def small_affine(planes: Planes, config: TransformConfig, draws: Draws, moves: Moves = None) -> Planes:
    """Turned by up to `rotate` degrees about the centre, shifted, and scaled, all at once."""
    rows, columns = size_of(planes)
    angle = math.radians(draws.uniform(-config.rotate, config.rotate))
    right = columns * draws.uniform(-config.translate, config.translate)
    down = rows * draws.uniform(-config.translate, config.translate)
    factor = draws.uniform(1 - config.scale, 1 + config.scale)
    cosine, sine = math.cos(angle) / factor, math.sin(angle) / factor
    middle_x, middle_y = columns / 2, rows / 2
    # Pillow asks where each pixel of the result comes from.
    start_x = middle_x - cosine * (middle_x + right) - sine * (middle_y + down)
    start_y = middle_y + sine * (middle_x + right) - cosine * (middle_y + down)
    return affine(planes, (cosine, sine, start_x, -sine, cosine, start_y), "bilinear", (config.fill,), moves)


def affine(planes: Planes, matrix: Matrix, resample: str, fill: tuple[int, ...], moves: Moves = None) -> Planes:
    """Pillow's affine map on every plane; `fill` has one value, or one a channel, of 0 to 255."""
    if moves is not None:
        moves.append(matrix)
    result = []
    for number, plane in enumerate(planes):
        if plane.mode == "RGB":
            colour: float | tuple[int, ...] = fill if len(fill) == 3 else fill[:1] * 3
        else:
            colour = fill[number] if len(fill) > number else fill[0]
            colour = colour / 255 if plane.mode == "F" else colour
        result.append(plane.transform(plane.size, Image.Transform.AFFINE, matrix, RESAMPLE[resample], fillcolor=colour))
    return tuple(result)
