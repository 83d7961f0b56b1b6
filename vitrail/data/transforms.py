"""Transforms: from the content of a sample to the pixels [rows, columns, channels] of the model's input.

The pixels are uint8; if the preprocessing has a range of values, they are float32 from 0 to 1. With a range, pictures
with more than 8 bits are floats in every step, and pictures of 8 bits are converted to floats after the last step.

A transform is a pure function of the content and the random numbers, so it does not matter when and in which thread it
is applied. Normalising comes later, for a whole batch at once (`loader.py`).
"""

from typing import Any

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.decode import MAX_PIXELS, Planes, as_pixels, as_units, decode_planes, from_array, to_array
from vitrail.data.geometry import (
    evaluation_box,
    evaluation_crop,
    evaluation_shrink,
    inception_box,
    own_box,
    rescale_box,
    resize,
    shrink_factor,
    size_of,
    small_affine,
)
from vitrail.data.randaugment import colour_jitter, randaugment
from vitrail.masks_and_boxes import Box, Frame, Matrix, Moves, mirror, translation, upside_down
from vitrail.random_stream import RandomStream

TransformInput = bytes | np.ndarray | Image.Image | Planes
"""What a transform takes: an encoded image, an array of stored values, a Pillow image, or planes decoded already."""
_Part = tuple[tuple[int, int], Box | None]
"""The size of a picture, and the box of it that was resized to the input; None for all of it."""


class EvaluationTransform:
    """The transform of evaluation and prediction, exactly as `Preprocessing` describes it; nothing in it is random.

    A JPEG that is at least four times as large as needed is reduced while it is decoded, which is several times faster
    for photos of today's cameras. Other pictures are decoded at full size.
    """

    def __init__(self, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS) -> None:
        self.preprocessing = preprocessing
        self.channels = len(preprocessing.mean)
        self.limits = preprocessing.range
        self.dtype = pixel_type(preprocessing)
        self.max_pixels = max_pixels

    def __call__(self, content: TransformInput, draws: RandomStream | None = None) -> np.ndarray:
        pixels, _ = self.cropped(content)
        return pixels if self.limits is None else as_units(pixels)

    def with_frame(self, content: TransformInput, draws: RandomStream | None = None) -> tuple[np.ndarray, Frame]:
        """Returns the pixels, as calling the transform does, and the map between the picture and these pixels."""
        pixels, size = self.cropped(content)
        return pixels if self.limits is None else as_units(pixels), self.frame(size)

    def with_size(self, content: TransformInput) -> dict[str, Any]:
        """Returns the pixels and the picture's own size, as a process that decodes can send them."""
        pixels, (rows, columns) = self.cropped(content)
        return {"pixels": pixels if self.limits is None else as_units(pixels), "rows": rows, "columns": columns}

    def frame(self, size: tuple[int, int]) -> Frame:
        """Returns the map between a picture of this size (rows, columns) and the pixels that are made of it."""
        return Frame.of(size, self.preprocessing.rows_columns, evaluation_box(size, self.preprocessing))

    def cropped(self, content: TransformInput) -> tuple[np.ndarray, tuple[int, int]]:
        """Returns the pixels before they are converted to floats, and the picture's own size (rows, columns).

        They are uint8, or float32 from 0 to 1 if the picture has more than 8 bits and the preprocessing a range.
        """
        if isinstance(content, np.ndarray):
            pixels = as_pixels(content, self.channels, self.limits)
            size = pixels.shape[:2]
            if self.preprocessing.crop == "squash" and size == self.preprocessing.rows_columns:
                return pixels, size
            content = from_array(pixels)
        sizes: list[tuple[int, int]] = []

        def shrink(size: tuple[int, int]) -> int:
            sizes.append(size)
            return evaluation_shrink(size, self.preprocessing)

        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels, shrink=shrink, limits=self.limits)
        size = sizes[0] if sizes else size_of(planes)
        return to_array(evaluation_crop(planes, self.preprocessing, size)), size


class TrainingTransform:
    """The transform of training, as `TransformConfig` asks for it: crop, small affine map, RandAugment, colour jitter,
    shift, flips and random erasing, in this order."""

    def __init__(self, config: TransformConfig, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.channels = len(preprocessing.mean)
        self.limits = preprocessing.range
        self.dtype = pixel_type(preprocessing)
        self.image_size = preprocessing.rows_columns
        self.max_pixels = max_pixels
        self._mean = tuple(min(max(round(255 * value), 0), 255) for value in preprocessing.mean)
        self._evaluation = EvaluationTransform(preprocessing, max_pixels=max_pixels)
        self._affine = bool(config.rotate or config.translate or config.scale)

    def __call__(self, content: TransformInput, draws: RandomStream) -> np.ndarray:
        pixels, _ = self._cropped(content, draws)
        return self._augmented(pixels, draws)

    def with_frame(self, content: TransformInput, draws: RandomStream) -> tuple[np.ndarray, Frame]:
        """Returns the pixels, as calling the transform does, and the map between the picture and these pixels."""
        moves: list[Matrix] = []
        pixels, (size, box) = self._cropped(content, draws)
        pixels = self._augmented(pixels, draws, moves)
        return pixels, Frame.of(size, self.image_size, box).then(*moves)

    def _augmented(self, pixels: np.ndarray | Planes, draws: RandomStream, moves: Moves = None) -> np.ndarray:
        """Applies every step after the crop. moves: the list to which the matrices of moves are appended."""
        config = self.config
        if self._affine or config.randaugment_layers or config.colour_jitter:
            planes = from_array(pixels) if isinstance(pixels, np.ndarray) else pixels
            if self._affine:
                planes = small_affine(planes, config, draws, moves)
            planes = randaugment(planes, config, draws, self._mean, moves)
            if config.colour_jitter:
                planes = colour_jitter(planes, config.colour_jitter, draws)
            pixels = planes
        if not isinstance(pixels, np.ndarray):
            pixels = to_array(pixels)
        if config.crop == "pad" and config.padding:
            pixels = shift(pixels, config.padding, config.fill, draws, moves)
        if draws.chance(config.flip):
            pixels = pixels[:, ::-1]
            if moves is not None:
                moves.append(mirror(self.image_size))
        if draws.chance(config.vertical_flip):
            pixels = pixels[::-1]
            if moves is not None:
                moves.append(upside_down(self.image_size))
        if draws.chance(config.erase):
            pixels = erase(pixels, config.erase_area, self._mean if config.erase_fill == "mean" else None, draws)
        return pixels if self.limits is None else as_units(pixels)

    def decoded(self, content: TransformInput) -> np.ndarray | Planes:
        """Decodes content once, to be given to several transforms.

        Returns pixels if they are uint8. Floats are returned as planes, since an array of floats would be taken for
        stored values and scaled again.
        """
        if isinstance(content, np.ndarray):
            pixels = as_pixels(content, self.channels, self.limits)
        else:
            pixels = to_array(decode_planes(content, self.channels, max_pixels=self.max_pixels, limits=self.limits))
        return pixels if pixels.dtype == np.uint8 else from_array(pixels)

    def _cropped(self, content: TransformInput, draws: RandomStream) -> tuple[np.ndarray | Planes, _Part]:
        """Crops the picture and resizes it to the image size; returns it with the part that was taken.

        It is returned as an array if nothing had to be resized, which is faster, else as planes.
        """
        if self.config.crop == "inception":
            return self._inception(content, draws)
        if self.config.crop == "evaluation":
            pixels, size = self._evaluation.cropped(content)
            return pixels, (size, evaluation_box(size, self.preprocessing))
        if isinstance(content, np.ndarray):
            pixels = as_pixels(content, self.channels, self.limits)
            if pixels.shape[:2] == self.image_size:
                return pixels, (self.image_size, None)
            content = from_array(pixels)
        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels, limits=self.limits)
        return resize(planes, self.image_size, self.config.resample), (size_of(planes), None)

    def _inception(self, content: TransformInput, draws: RandomStream) -> tuple[Planes, _Part]:
        """Takes a random part of the picture, which is drawn before decoding so that a JPEG can be reduced."""
        drawn: list[tuple[tuple[int, int], Box]] = []

        def draw(size: tuple[int, int]) -> int:
            drawn.append((size, inception_box(size, self.config.area, self.config.aspect, draws)))
            return shrink_factor(drawn[0][1], self.image_size)

        planes = decode_planes(content, self.channels, max_pixels=self.max_pixels, shrink=draw, limits=self.limits)
        if not drawn:  # not a JPEG, so `draw` was not called yet
            draw(size_of(planes))
        size, box = drawn[0]
        actual = size_of(planes)
        box = rescale_box(box, size, actual)
        return resize(planes, self.image_size, self.config.resample, box), (size, own_box(box, size, actual))


def pixel_type(preprocessing: Preprocessing) -> type[np.generic]:
    """Returns the type of the pixels that transforms with this preprocessing return."""
    return np.uint8 if preprocessing.range is None else np.float32


def shift(pixels: np.ndarray, padding: int, fill: int, draws: RandomStream, moves: Moves = None) -> np.ndarray:
    """Shifts pixels at random by up to `padding` along each axis, as if padded on every side and cropped to the old
    size.

    fill: the value of empty pixels, 0 to 255; moves: the list to which the matrix is appended.
    """
    rows, columns = pixels.shape[:2]
    down = min(max(draws.integer(2 * padding + 1) - padding, -rows), rows)
    right = min(max(draws.integer(2 * padding + 1) - padding, -columns), columns)
    if moves is not None:
        moves.append(translation(right, down))
    moved = np.full_like(pixels, fill if pixels.dtype == np.uint8 else fill / 255)
    moved[max(down, 0) : rows + min(down, 0), max(right, 0) : columns + min(right, 0)] = pixels[
        max(-down, 0) : rows + min(-down, 0), max(-right, 0) : columns + min(-right, 0)
    ]
    return moved


def erase(
    pixels: np.ndarray, area: tuple[float, float], fill: tuple[int, ...] | None, draws: RandomStream
) -> np.ndarray:
    """Overwrites a random rectangle of the pixels (Zhong et al. 2020).

    Args:
        pixels: [rows, columns, channels]; not changed in place.
        area: The lowest and highest fraction of the picture's area.
        fill: The colour, one value of 0 to 255 for each channel; None for noise.
        draws: The random numbers.
    """
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
                put = noise.reshape(height, width, channels)
            else:
                put = np.array(fill, dtype=np.uint8)
            pixels[top : top + height, left : left + width] = put if pixels.dtype == np.uint8 else as_units(put)
            return pixels
    return pixels
