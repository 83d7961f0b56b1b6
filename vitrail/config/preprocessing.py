"""How a picture becomes a model's input at evaluation."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from vitrail.config.fields import check_fields, pair
from vitrail.errors import UserError

Crop = Literal["center", "squash"]
Resample = Literal["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes a model's input at evaluation. It lives in the bundle and nowhere else."""

    image_size: int | tuple[int, int] = 224
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: Resample = "bicubic"
    crop: Crop = "center"
    """center: the shorter side is resized to image_size / crop_fraction, then the centre is cut out.
    squash: the whole picture is resized to image_size, whatever its shape (the paper's evaluation)."""
    crop_fraction: float = 0.9
    range: tuple[float, float] | None = None
    """Of pictures with more than 8 bits a channel: the stored values that become 0 and 1, kept as floats in between and
    clipped outside. None: the range of their type, in 8 bits. Pictures of 8 bits are always 0 to 255."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size))
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        for name, choices in (("resample", get_args(Resample)), ("crop", get_args(Crop))):
            if getattr(self, name) not in choices:
                raise UserError(f"preprocessing: {name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        if len(self.mean) != len(self.std):
            raise UserError(f"preprocessing: {len(self.mean)} means but {len(self.std)} standard deviations")
        if not all(value > 0 for value in self.std):
            raise UserError(f"preprocessing: every std must be above 0, not {self.std}")
        if not 0 < self.crop_fraction <= 1:
            raise UserError(f"preprocessing: crop_fraction must be above 0 and at most 1, not {self.crop_fraction}")
        if self.range is not None:
            object.__setattr__(self, "range", rising(self.range, "preprocessing: range"))

    @property
    def rows_columns(self) -> tuple[int, int]:
        return pair(self.image_size)

    def to_json(self) -> dict[str, Any]:
        """As a dict; the range only where there is one, so that files without it are as they always were."""
        values = asdict(self)
        return values if self.range is not None else {name: values[name] for name in values if name != "range"}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        check_fields(cls, values)
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise UserError(f"the preprocessing cannot be read: {error}") from error


def rising(values: Any, name: str) -> tuple[float, float]:
    """Two finite numbers, the first below the second; `name` is what a refusal calls them."""
    try:
        low, high = (float(value) for value in values)
    except (TypeError, ValueError):
        raise UserError(f"{name} must be two numbers, LOW and HIGH, not {values!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        raise UserError(f"{name} must be two finite numbers, LOW below HIGH, not {low:g} and {high:g}")
    return low, high
