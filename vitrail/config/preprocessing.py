"""Configures how a picture becomes a model's input in evaluation."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitrail.config.fields import LARGEST_SIDE, Configuration, ImageSize, Positive, SharePositive, pair
from vitrail.errors import UserError

Crop = Literal["center", "squash"]
"""How a picture of any shape becomes one of the model's image size."""
Resample = Literal["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"]
"""How pixels are interpolated."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""The mean of ImageNet's red, green and blue, each from 0 to 1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""The standard deviation of ImageNet's red, green and blue."""
LEAST_CROP = 0.01
"""The smallest accepted `crop_fraction`: with less, a picture would be enlarged more than 100 times to be cropped."""


def rising(values: Any, name: str) -> tuple[float, float]:
    """Returns two finite numbers, the first below the second; a UserError, which calls them `name`, if they are not."""
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name} must be two numbers, LOW and HIGH, not {values!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        raise UserError(f"{name} must be two finite numbers, LOW below HIGH, not {low:g} and {high:g}")
    return low, high


@dataclass(frozen=True)
class Preprocessing(Configuration):
    """The steps by which a picture becomes a model's input in evaluation: resize, crop, scale to 0 to 1, subtract the
    mean, divide by the standard deviation. They are kept in the bundle and nowhere else."""

    image_size: ImageSize = 224
    """Rows and columns of the model's input in pixels; one number means a square."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Mean that is subtracted from each channel, whose pixels are from 0 to 1."""
    std: tuple[Positive, ...] = (0.5, 0.5, 0.5)
    """Standard deviation that each channel is then divided by."""
    resample: Resample = "bicubic"
    """Interpolation when pictures are resized."""
    crop: Crop = "center"
    """How the image size is reached. center: the shorter side is resized to image_size / crop_fraction, then the centre
    is cut out; squash: the whole picture is resized, whatever its shape (the paper's evaluation)."""
    crop_fraction: SharePositive = 0.9
    """Share of the shorter side that a center crop keeps."""
    range: Annotated[tuple[float, float], rising] | None = None
    """Stored values that become 0 and 1, for pictures with more than 8 bits a channel: values between them are kept as
    floats, others are clipped. None: the ends of their type, reduced to 8 bits. Pictures of 8 bits always go from 0 to
    255."""

    part = "preprocessing"
    left_out = ("range",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(1 <= side <= LARGEST_SIDE for side in self.rows_columns):
            raise UserError(
                f"preprocessing: image_size must be from 1 to {LARGEST_SIDE} pixels, not {self.rows_columns}"
            )
        if self.crop_fraction < LEAST_CROP:
            raise UserError(f"preprocessing: crop_fraction must be at least {LEAST_CROP}, not {self.crop_fraction}")
        if len(self.mean) != len(self.std):
            raise UserError(f"preprocessing: {len(self.mean)} means but {len(self.std)} standard deviations")

    @property
    def rows_columns(self) -> tuple[int, int]:
        """Returns the image size as (rows, columns)."""
        return pair(self.image_size)
