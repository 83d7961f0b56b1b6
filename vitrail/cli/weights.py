"""The flags for what a weights file may not say of itself, the same in every command that runs a MODEL."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitrail.errors import UserError


@dataclass(frozen=True)
class Weights:
    model: Annotated[str | None, tyro.conf.arg(name="model")] = None
    """What a weights file cannot say: a name (B/16), fields (num_heads=16,pooling=average,activation=gelu_tanh), or
    both."""
    image_size: str | None = None
    """Another image size: 384, or rows and columns: 224x448. Positions are interpolated."""
    preprocessing: str | None = None
    """imagenet, half, single fields, or both: half,crop_fraction=0.875,std=0.3:0.3:0.2; else what the weights carry.
    range=0:4095 takes these stored values of pictures with more than 8 bits as black and white."""

    weights_from: Literal["average", "raw"] | None = None
    """Of a training checkpoint with both: the average of the weights (the default) or the raw ones."""

    def options(self) -> dict[str, Any]:
        """As `vitrail.load` takes them."""
        return {**asdict(self), "image_size": read_size(self.image_size)}


@dataclass(frozen=True)
class NamedWeights(Weights):
    labels: Path | None = None
    """A file of class names: JSON with label_names and label_descriptions, or one name a line."""


def read_size(text: str | None) -> tuple[int, int] | None:
    """One token for one size: two numbers would swallow what stands behind them."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})?", text):
        raise UserError(f"--image-size {text}: give a number of pixels, or rows and columns such as 224x448")
    rows, _, columns = text.partition("x")
    return int(rows), int(columns or rows)


Flags = tyro.conf.OmitArgPrefixes
