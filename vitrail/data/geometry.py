"""Resizing, cropping and affine maps of pictures as Pillow images. Sizes are (rows, columns)."""

import math

from PIL import Image

from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.decode import Planes
from vitrail.masks_and_boxes import Box, Matrix, Moves
from vitrail.random_stream import RandomStream

# Pillow's resampling filters by the names in Preprocessing.
_FILTERS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
_LARGE = 1 << 26
"""The number of pixels above which a picture is not resized as a whole and then cropped, but both at once."""


def size_of(planes: Planes) -> tuple[int, int]:
    """Returns (rows, columns)."""
    return planes[0].height, planes[0].width


def resize(planes: Planes, size: tuple[int, int], resample: str, box: Box | None = None) -> Planes:
    """Resizes a picture, or a box cut out of it, to a size (rows, columns). resample: a key of `RESAMPLE`."""
    rows, columns = size
    return tuple(plane.resize((columns, rows), _FILTERS[resample], box=box) for plane in planes)


def evaluation_crop(planes: Planes, preprocessing: Preprocessing, size: tuple[int, int] | None = None) -> Planes:
    """Makes the model's input for evaluation, equal in every pixel to timm's evaluation transform.

    Args:
        planes: The decoded picture.
        preprocessing: The size, crop and resampling.
        size: The picture's own size, if it was reduced while it was decoded.
    """
    target, actual = preprocessing.rows_columns, size_of(planes)
    size = size or actual
    # The size of a JPEG reduced while decoding is rounded up, so the picture may end inside its last row and column.
    factor = reduction(size, actual)
    covered = None if factor == 1 else (0.0, 0.0, size[1] / factor, size[0] / factor)
    if preprocessing.crop == "squash":
        return resize(planes, target, preprocessing.resample, covered)
    resized = evaluation_size(size, target, preprocessing.crop_fraction)
    centre = _centre(resized, target)
    if resized[0] * resized[1] > max(_LARGE, 16 * target[0] * target[1]):
        # A picture of 1 x 10000 would grow to hundreds of millions of pixels, so only its centre is resized.
        return resize(planes, target, preprocessing.resample, _scaled(centre, resized, actual))
    planes = resize(planes, resized, preprocessing.resample, covered)
    return tuple(plane.crop(centre) for plane in planes)


def evaluation_box(size: tuple[int, int], preprocessing: Preprocessing) -> Box:
    """Computes which part of a picture of this size `evaluation_crop` takes, in the picture's own pixels."""
    if preprocessing.crop == "squash":
        return 0.0, 0.0, float(size[1]), float(size[0])
    target = preprocessing.rows_columns
    resized = evaluation_size(size, target, preprocessing.crop_fraction)
    return _scaled(_centre(resized, target), resized, size)


def _centre(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns the box (left, top, right, bottom) of the target's size in the middle of a larger size."""
    # Halves are rounded to even numbers, as in torchvision.
    top, left = (round((have - want) / 2.0) for have, want in zip(size, target, strict=True))
    return left, top, left + target[1], top + target[0]


def _scaled(box: Box, size: tuple[int, int], other: tuple[int, int]) -> Box:
    """Converts a box on a picture of one size to the same picture at another size."""
    down, right = other[0] / size[0], other[1] / size[1]
    return box[0] * right, box[1] * down, box[2] * right, box[3] * down


def reduction(size: tuple[int, int], actual: tuple[int, int]) -> int:
    """Returns the factor (1, 2, 4 or 8) by which a JPEG of this size was reduced to its actual size in decoding."""
    return max(round(own / now) for own, now in zip(size, actual, strict=True))


def evaluation_shrink(size: tuple[int, int], preprocessing: Preprocessing) -> int:
    """Returns the factor (1, 2, 4 or 8) by which a JPEG of this size may be reduced while it is decoded for evaluation.

    The reduced picture is at least twice as large as the size it is then resized to, so that details are kept.
    """
    target = preprocessing.rows_columns
    if preprocessing.resample == "nearest":
        return 1
    if preprocessing.crop == "center":
        target = evaluation_size(size, target, preprocessing.crop_fraction)
    return shrink_factor((0, 0, size[1], size[0]), target)


def evaluation_size(size: tuple[int, int], target: tuple[int, int], crop_fraction: float) -> tuple[int, int]:
    """Computes the size (rows, columns) to which a picture is resized before the target size is cut from its centre."""
    rows, columns = size
    scaled = tuple(math.floor(side / crop_fraction) for side in target)
    if scaled[0] == scaled[1]:
        short, long = min(size), max(size)
        grown = int(scaled[0] * long / short)
        return (scaled[0], grown) if rows <= columns else (grown, scaled[0])
    ratio = min(rows / scaled[0], columns / scaled[1])
    return max(round(rows / ratio), target[0]), max(round(columns / ratio), target[1])


def inception_box(
    size: tuple[int, int], area: tuple[float, float], aspect: tuple[float, float], draws: RandomStream
) -> Box:
    """Draws a random part of a picture (Szegedy et al. 2015).

    Args:
        size: The picture's size.
        area: The lowest and highest fraction of the picture's area.
        aspect: The lowest and highest ratio of width to height.
        draws: The random numbers.
    """
    rows, columns = size
    for _ in range(10):
        part = rows * columns * draws.uniform(*area)
        shape = draws.log_uniform(*aspect)
        width, height = round(math.sqrt(part * shape)), round(math.sqrt(part / shape))
        if 0 < width <= columns and 0 < height <= rows:
            left, top = draws.integer(columns - width + 1), draws.integer(rows - height + 1)
            return left, top, left + width, top + height
    # In long, thin pictures no part may have fitted: take the largest one in the middle whose ratio is allowed.
    width, height = (
        min(columns, max(1, round(rows * aspect[1]))),
        min(rows, max(1, round(columns / aspect[0]))),
    )
    left, top = (columns - width) // 2, (rows - height) // 2
    return left, top, left + width, top + height


def shrink_factor(box: Box, target: tuple[int, int]) -> int:
    """Returns the factor (1, 2, 4 or 8) by which a JPEG may be reduced while it is decoded, so that the box that is cut
    out of it stays at least twice as large as the target size."""
    spare = min((box[2] - box[0]) / target[1], (box[3] - box[1]) / target[0]) / 2
    return next((factor for factor in (8, 4, 2) if spare >= factor), 1)


def rescale_box(box: Box, size: tuple[int, int], actual: tuple[int, int]) -> Box:
    """Converts a box in the picture's own pixels (`size`) to pixels of the picture as it was decoded (`actual`)."""
    if size == actual:
        return box
    left, top, right, bottom = _scaled(box, size, actual)
    return left, top, min(right, float(actual[1])), min(bottom, float(actual[0]))


def own_box(box: Box, size: tuple[int, int], actual: tuple[int, int]) -> Box:
    """Converts a box in pixels of the picture as it was decoded (`actual`) to the picture's own pixels (`size`).

    A pixel of a JPEG reduced by 8 stands for 8 x 8 of its own, but the last one in a row or column may stand for fewer.
    If EXIF data turn the picture, that pixel may come first instead of last; the box is then wrong by up to 7 pixels,
    which is less than half a pixel of the input.
    """
    if size == actual:
        return box
    factor = reduction(size, actual)
    return box[0] * factor, box[1] * factor, box[2] * factor, box[3] * factor


def small_affine(planes: Planes, config: TransformConfig, draws: RandomStream, moves: Moves = None) -> Planes:
    """Rotates a picture about its centre, shifts and scales it, all at random and in one step.

    Args:
        planes: The picture.
        config: The largest rotation in degrees, shift in fractions of a side, and change of scale.
        draws: The random numbers.
        moves: The list to which the matrix is appended.
    """
    rows, columns = size_of(planes)
    angle = math.radians(draws.uniform(-config.rotate, config.rotate))
    right = columns * draws.uniform(-config.translate, config.translate)
    down = rows * draws.uniform(-config.translate, config.translate)
    factor = draws.uniform(1 - config.scale, 1 + config.scale)
    cosine, sine = math.cos(angle) / factor, math.sin(angle) / factor
    middle_x, middle_y = columns / 2, rows / 2
    # Pillow takes the map from a pixel of the result to where it comes from.
    start_x = middle_x - cosine * (middle_x + right) - sine * (middle_y + down)
    start_y = middle_y + sine * (middle_x + right) - cosine * (middle_y + down)
    return affine(planes, (cosine, sine, start_x, -sine, cosine, start_y), "bilinear", (config.fill,), moves)


def affine(planes: Planes, matrix: Matrix, resample: str, fill: tuple[int, ...], moves: Moves = None) -> Planes:
    """Applies an affine map to every plane, with Pillow.

    Args:
        planes: The picture.
        matrix: The map.
        resample: A key of `RESAMPLE`.
        fill: The value of empty pixels, 0 to 255: one for all channels or one for each.
        moves: The list to which the matrix is appended.
    """
    if moves is not None:
        moves.append(matrix)
    result = []
    for number, plane in enumerate(planes):
        if plane.mode == "RGB":
            colour: float | tuple[int, ...] = fill if len(fill) == 3 else fill[:1] * 3
        else:
            colour = fill[number] if len(fill) > number else fill[0]
            colour = colour / 255 if plane.mode == "F" else colour
        result.append(plane.transform(plane.size, Image.Transform.AFFINE, matrix, _FILTERS[resample], fillcolor=colour))
    return tuple(result)
