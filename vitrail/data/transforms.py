"""From a sample's content to the pixels of a model's input: uint8 [rows, columns, channels].

A transform is a pure function of the content and the draws, so it does not matter which thread applies it, nor
when. Normalising comes later, for a whole batch at once (`loader.py`).
"""

from collections.abc import Callable

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.decode import MAX_PIXELS, Planes, as_bytes, decode_planes, from_array, to_array
from vitrail.data.draws import Draws
from vitrail.data.geometry import (
    Box,
    evaluation_crop,
    evaluation_shrink,
    inception_box,
    rescale_box,
    resize,
    shrink_factor,
    size_of,
    small_affine,
)
from vitrail.data.randaugment import colour_jitter, randaugment

Transform = Callable[[bytes | np.ndarray, Draws], np.ndarray]


class EvaluationTransform:
    """Exactly what `Preprocessing` describes; the draws are not used.

    A JPEG at least four times as large as it has to be is reduced while it is decoded, which is many times quicker
    for photos of today's cameras; everything else is decoded whole.
    """

    def __init__(self, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS) -> None:
        self.preprocessing = preprocessing
        self.channels = len(preprocessing.mean)
        self.max_pixels = max_pixels

    def __call__(self, content: bytes | np.ndarray | Image.Image, draws: Draws | None = None) -> np.ndarray:
        if isinstance(content, np.ndarray):
            content = as_bytes(content, self.channels)
            if self.preprocessing.crop == "squash" and content.shape[:2] == self.preprocessing.rows_columns:
                return content
        sizes: list[tuple[int, int]] = []

        def shrink(size: tuple[int, int]) -> int:
            sizes.append(size)
            return evaluation_shrink(size, self.preprocessing)

        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels, shrink=shrink)
        return to_array(evaluation_crop(planes, self.preprocessing, sizes[0] if sizes else None))


class TrainingTransform:
    """Crop, small affine, RandAugment or colour jitter, shift, flip, erase: what TransformConfig asks for."""

    def __init__(self, config: TransformConfig, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.channels = len(preprocessing.mean)
        self.image_size = preprocessing.rows_columns
        self.max_pixels = max_pixels
        self._mean = tuple(min(max(round(255 * value), 0), 255) for value in preprocessing.mean)
        self._evaluation = EvaluationTransform(preprocessing, max_pixels=max_pixels)
        self._affine = bool(config.rotate or config.translate or config.scale)

    def __call__(self, content: bytes | np.ndarray, draws: Draws) -> np.ndarray:
        config = self.config
        pixels = self._cropped(content, draws)
        if self._affine or config.randaugment_layers or config.colour_jitter:
            planes = from_array(pixels) if isinstance(pixels, np.ndarray) else pixels
            if self._affine:
                planes = small_affine(planes, config.rotate, config.translate, config.scale, config.fill, draws)
            planes = randaugment(planes, config, draws, self._mean)
            if config.colour_jitter:
                planes = colour_jitter(planes, config.colour_jitter, draws)
            pixels = planes
        if not isinstance(pixels, np.ndarray):
            pixels = to_array(pixels)
        if config.crop == "pad" and config.padding:
            pixels = shift(pixels, config.padding, config.fill, draws)
        if draws.chance(config.flip):
            pixels = pixels[:, ::-1]
        if draws.chance(config.vertical_flip):
            pixels = pixels[::-1]
        if draws.chance(config.erase):
            pixels = erase(pixels, config.erase_area, self._mean if config.erase_fill == "mean" else None, draws)
        return pixels

    def decoded(self, content: bytes | np.ndarray) -> np.ndarray:
        """The content as pixels, for those who need several transforms of it."""
        if isinstance(content, np.ndarray):
            return as_bytes(content, self.channels)
        return to_array(decode_planes(content, self.channels, max_pixels=self.max_pixels))

    def _cropped(self, content: bytes | np.ndarray, draws: Draws) -> np.ndarray | Planes:
        """At the image size: as an array where nothing had to be resized, which is quick, else for Pillow."""
        if self.config.crop == "inception":
            return self._inception(content, draws)
        if self.config.crop == "evaluation":
            return self._evaluation(content)
        if isinstance(content, np.ndarray):
            content = as_bytes(content, self.channels)
            if content.shape[:2] == self.image_size:
                return content
        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels)
        return resize(planes, self.image_size, self.config.resample)

    def _inception(self, content: bytes | np.ndarray, draws: Draws) -> Planes:
        drawn: list[tuple[tuple[int, int], Box]] = []

        def draw(size: tuple[int, int]) -> int:
            drawn.append((size, inception_box(size, self.config.area, self.config.aspect, draws)))
            return shrink_factor(drawn[0][1], self.image_size)

        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels, shrink=draw)
        if not drawn:  # not a JPEG: the size is only known now
            draw(size_of(planes))
        size, box = drawn[0]
        return resize(planes, self.image_size, self.config.resample, rescale_box(box, size, size_of(planes)))


def shift(pixels: np.ndarray, padding: int, fill: int, draws: Draws) -> np.ndarray:
    """Padded on every side and cropped to the old size: a shift by up to `padding` pixels along each axis."""
    rows, columns = pixels.shape[:2]
    down = min(max(draws.integer(2 * padding + 1) - padding, -rows), rows)
    right = min(max(draws.integer(2 * padding + 1) - padding, -columns), columns)
    moved = np.full_like(pixels, fill)
    moved[max(down, 0) : rows + min(down, 0), max(right, 0) : columns + min(right, 0)] = pixels[
        max(-down, 0) : rows + min(-down, 0), max(-right, 0) : columns + min(-right, 0)
    ]
    return moved


def erase(pixels: np.ndarray, area: tuple[float, float], fill: tuple[int, ...] | None, draws: Draws) -> np.ndarray:
    """A random rectangle (Zhong et al. 2020) overwritten by one colour, or by noise where `fill` is None."""
    rows, columns, channels = pixels.shape
    for _ in range(10):
        part = rows * columns * draws.uniform(*area)
        shape = draws.log_uniform(0.3, 1 / 0.3)
        height, width = round((part * shape) ** 0.5), round((part / shape) ** 0.5)
        if 0 < height < rows and 0 < width < columns:
            top, left = draws.integer(rows - height + 1), draws.integer(columns - width + 1)
            pixels = pixels.copy()
            if fill is None:
                noise = np.frombuffer(draws.bytes(height * width * channels), dtype=np.uint8)
                pixels[top : top + height, left : left + width] = noise.reshape(height, width, channels)
            else:
                pixels[top : top + height, left : left + width] = np.array(fill, dtype=np.uint8)
            return pixels
    return pixels
