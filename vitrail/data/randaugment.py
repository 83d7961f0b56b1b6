"""RandAugment (Cubuk et al. 2020) in timm's increasing form, and colour jitter, on Pillow images.

Pillow moves pictures of bytes and of floats; colour operations on floats are those of `float_operations`.

Each operation has a strength from 0 (no effect) to 1 (its strongest). Operations that have a direction (rotate, shear,
shift, brighten) take either direction with equal probability.
"""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vitrail.config import TransformConfig
from vitrail.data import float_operations as floats
from vitrail.data.decode import Planes, from_array, to_array
from vitrail.data.geometry import affine, size_of
from vitrail.masks_and_boxes import Matrix, Moves
from vitrail.random_stream import RandomStream

_Fill = tuple[int, ...]
"""The value of empty pixels, 0 to 255, for all channels or for each."""
_Enhancer = Callable[[Image.Image], ImageEnhance._Enhance]
_Operation = Callable[[Planes, float, RandomStream, _Fill], Planes]
"""Changes a picture with a strength from 0 to 1."""


class _Move:
    """An operation that moves a picture. `draw` returns its matrix for a size (rows, columns) and a strength."""

    def __init__(self, draw: Callable[[tuple[int, int], float, RandomStream], Matrix]) -> None:
        self.draw = draw

    def __call__(
        self, planes: Planes, strength: float, draws: RandomStream, fill: _Fill, moves: Moves = None
    ) -> Planes:
        return affine(planes, self.draw(size_of(planes), strength, draws), "bicubic", fill, moves)


def randaugment(
    planes: Planes, config: TransformConfig, draws: RandomStream, fill: _Fill, moves: Moves = None
) -> Planes:
    """Applies a number of random operations, each with a random strength around the configured one.

    Args:
        planes: The picture.
        config: The number, probability and strength of operations.
        draws: The random numbers.
        fill: The value of pixels that moving the picture leaves empty.
        moves: The list to which the matrices of moves are appended.
    """
    for _ in range(config.randaugment_layers):
        operation = OPERATIONS[draws.integer(len(OPERATIONS))]
        applied = draws.chance(config.randaugment_probability)
        magnitude = config.randaugment_magnitude + config.randaugment_std * draws.normal()
        if applied:
            strength = min(max(magnitude / 10, 0.0), 1.0)
            if isinstance(operation, _Move):
                planes = operation(planes, strength, draws, fill, moves)
            else:
                planes = operation(planes, strength, draws, fill)
    return planes


def colour_jitter(planes: Planes, jitter: float, draws: RandomStream) -> Planes:
    """Changes brightness, then contrast, then saturation by random factors between 1 - `jitter` and 1 + `jitter`."""
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        planes = _enhanced(planes, enhancer, draws.uniform(1 - jitter, 1 + jitter))
    return planes


# For each of Pillow's enhancers the function that does the same on floats.
_FLOAT_ENHANCE: dict[_Enhancer, Callable[[np.ndarray, float], np.ndarray]] = {
    ImageEnhance.Brightness: floats.brightness,
    ImageEnhance.Contrast: floats.contrast,
    ImageEnhance.Color: floats.saturation,
    ImageEnhance.Sharpness: floats.sharpness,
}


def _enhanced(planes: Planes, enhancer: _Enhancer, factor: float) -> Planes:
    """Applies one of Pillow's enhancers, or its counterpart for floats; factor 1 changes nothing."""
    return _applied(
        planes,
        lambda plane: enhancer(plane).enhance(factor),
        lambda pixels: _FLOAT_ENHANCE[enhancer](pixels, factor),
    )


def _applied(
    planes: Planes,
    of_bytes: Callable[[Image.Image], Image.Image],
    of_floats: Callable[[np.ndarray], np.ndarray],
) -> Planes:
    """Applies a colour operation: to each plane of bytes with Pillow, or to all planes of floats together with numpy.

    of_bytes: the operation on a Pillow image; of_floats: that on float32 [rows, columns, channels].
    """
    if planes[0].mode == "F":
        return from_array(of_floats(to_array(planes)))
    return tuple(of_bytes(plane) for plane in planes)


def _signed(value: float, draws: RandomStream) -> float:
    """Returns the value or its negative, with equal probability."""
    return -value if draws.chance(0.5) else value


def _plain(of_bytes: Callable[[Image.Image], Image.Image], of_floats: Callable[[np.ndarray], np.ndarray]) -> _Operation:
    """Makes an operation that ignores its strength."""
    return lambda planes, strength, draws, fill: _applied(planes, of_bytes, of_floats)


def _enhance(enhancer: _Enhancer) -> _Operation:
    """Makes an operation of one of Pillow's enhancers, with a factor of up to 1.9 or down to 0.1."""

    def apply(planes: Planes, strength: float, draws: RandomStream, fill: _Fill) -> Planes:
        return _enhanced(planes, enhancer, 1.0 + _signed(0.9 * strength, draws))

    return apply


def _rotate(size: tuple[int, int], strength: float, draws: RandomStream) -> Matrix:
    angle = math.radians(_signed(30.0 * strength, draws))
    rows, columns = size
    cosine, sine = math.cos(angle), math.sin(angle)
    start_x = columns / 2 - cosine * columns / 2 - sine * rows / 2
    start_y = rows / 2 + sine * columns / 2 - cosine * rows / 2
    return cosine, sine, start_x, -sine, cosine, start_y


def _shear_x(size: tuple[int, int], strength: float, draws: RandomStream) -> Matrix:
    return 1, _signed(0.3 * strength, draws), 0, 0, 1, 0


def _shear_y(size: tuple[int, int], strength: float, draws: RandomStream) -> Matrix:
    return 1, 0, 0, _signed(0.3 * strength, draws), 1, 0


def _translate_x(size: tuple[int, int], strength: float, draws: RandomStream) -> Matrix:
    return 1, 0, _signed(0.45 * strength, draws) * size[1], 0, 1, 0


def _translate_y(size: tuple[int, int], strength: float, draws: RandomStream) -> Matrix:
    return 1, 0, 0, 0, 1, _signed(0.45 * strength, draws) * size[0]


def _posterize(planes: Planes, strength: float, draws: RandomStream, fill: _Fill) -> Planes:
    # Strength 0 keeps all 8 bits, any other begins at 4 bits; 1 bit is the least, since 0 bits would be black.
    bits = max(8 if strength == 0 else 4 - int(4 * strength), 1)
    return _applied(
        planes, lambda plane: ImageOps.posterize(plane, bits), lambda pixels: floats.posterize(pixels, bits)
    )


def _solarize(planes: Planes, strength: float, draws: RandomStream, fill: _Fill) -> Planes:
    threshold = 256 - int(256 * strength)
    return _applied(
        planes, lambda plane: ImageOps.solarize(plane, threshold), lambda pixels: floats.solarize(pixels, threshold)
    )


def _solarize_add(planes: Planes, strength: float, draws: RandomStream, fill: _Fill) -> Planes:
    added = int(110 * strength)
    table = [min(value + added, 255) if value < 128 else value for value in range(256)]
    return _applied(
        planes,
        lambda plane: plane.point(table * len(plane.getbands())),
        lambda pixels: floats.solarize_add(pixels, added),
    )


# The operations that RandAugment chooses from. Their order is part of what a seed means.
OPERATIONS: tuple[_Operation, ...] = (
    _plain(ImageOps.autocontrast, floats.autocontrast),
    _plain(ImageOps.equalize, floats.equalize),
    _plain(ImageOps.invert, floats.invert),
    _Move(_rotate),
    _posterize,
    _solarize,
    _solarize_add,
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    _Move(_shear_x),
    _Move(_shear_y),
    _Move(_translate_x),
    _Move(_translate_y),
)
