"""RandAugment (Cubuk et al. 2020) in its increasing form, and colour jitter, on Pillow images.

Each operation has a strength from 0 (nothing) to 1 (as far as it goes). What has a direction (turn, shear, shift,
brighter or darker) goes either way with equal chance.
"""

import math
from collections.abc import Callable

from PIL import Image, ImageEnhance, ImageOps

from vitrail.config import TransformConfig
from vitrail.data.decode import Planes
from vitrail.data.draws import Draws
from vitrail.data.geometry import affine, size_of

_Fill = tuple[int, ...]
_Operation = Callable[[Planes, float, Draws, _Fill], Planes]


def randaugment(planes: Planes, config: TransformConfig, draws: Draws, fill: _Fill) -> Planes:
    """Some operations, each chosen at random and applied with a random strength around the set one."""
    for _ in range(config.randaugment_layers):
        operation = OPERATIONS[draws.integer(len(OPERATIONS))]
        applied = draws.chance(config.randaugment_probability)
        magnitude = config.randaugment_magnitude + config.randaugment_std * draws.normal()
        if applied:
            planes = operation(planes, min(max(magnitude / 10, 0.0), 1.0), draws, fill)
    return planes


def colour_jitter(planes: Planes, jitter: float, draws: Draws) -> Planes:
    """Brightness, then contrast, then saturation."""
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        factor = draws.uniform(1 - jitter, 1 + jitter)
        planes = tuple(enhancer(plane).enhance(factor) for plane in planes)
    return planes


def _signed(value: float, draws: Draws) -> float:
    return -value if draws.chance(0.5) else value


def _plain(function: Callable[[Image.Image], Image.Image]) -> _Operation:
    """An operation that has no strength."""
    return lambda planes, strength, draws, fill: tuple(function(plane) for plane in planes)


def _enhance(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> _Operation:
    def apply(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
        factor = 1.0 + _signed(0.9 * strength, draws)
        return tuple(enhancer(plane).enhance(factor) for plane in planes)

    return apply


def _rotate(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    angle = math.radians(_signed(30.0 * strength, draws))
    rows, columns = size_of(planes)
    cosine, sine = math.cos(angle), math.sin(angle)
    start_x = columns / 2 - cosine * columns / 2 - sine * rows / 2
    start_y = rows / 2 + sine * columns / 2 - cosine * rows / 2
    return affine(planes, (cosine, sine, start_x, -sine, cosine, start_y), "bicubic", fill)


def _shear_x(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    return affine(planes, (1, _signed(0.3 * strength, draws), 0, 0, 1, 0), "bicubic", fill)


def _shear_y(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    return affine(planes, (1, 0, 0, _signed(0.3 * strength, draws), 1, 0), "bicubic", fill)


def _translate_x(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    shift = _signed(0.45 * strength, draws) * size_of(planes)[1]
    return affine(planes, (1, 0, shift, 0, 1, 0), "bicubic", fill)


def _translate_y(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    shift = _signed(0.45 * strength, draws) * size_of(planes)[0]
    return affine(planes, (1, 0, 0, 0, 1, shift), "bicubic", fill)


def _posterize(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    # Four bits to start with, none taken away at strength 0; at least one is kept, or the picture is black.
    bits = max(8 if strength == 0 else 4 - int(4 * strength), 1)
    return tuple(ImageOps.posterize(plane, bits) for plane in planes)


def _solarize(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    threshold = 256 - int(256 * strength)
    return tuple(ImageOps.solarize(plane, threshold) for plane in planes)


def _solarize_add(planes: Planes, strength: float, draws: Draws, fill: _Fill) -> Planes:
    added = int(110 * strength)
    table = [min(value + added, 255) if value < 128 else value for value in range(256)]
    return tuple(plane.point(table * len(plane.getbands())) for plane in planes)


OPERATIONS: tuple[_Operation, ...] = (
    _plain(ImageOps.autocontrast),
    _plain(ImageOps.equalize),
    _plain(ImageOps.invert),
    _rotate,
    _posterize,
    _solarize,
    _solarize_add,
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)
