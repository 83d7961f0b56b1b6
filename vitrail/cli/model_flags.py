"""Defines the flags for what a weights file may not say of itself; they are the same in every command that runs a
MODEL."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitrail.errors import UserError


@dataclass(frozen=True)
class Weights:
    """Options for reading the weights of a MODEL."""

    model: Annotated[str | None, tyro.conf.arg(name="model")] = None
    """The model that a weights file holds, if the file does not say it: a name (B/16), fields
    (num_heads=16,pooling=average,activation=gelu_tanh), or both."""
    image_size: str | None = None
    """An image size other than the model's own: 384, or rows and columns such as 224x448. Positions are
    interpolated."""
    preprocessing: str | None = None
    """How images are prepared for the model: imagenet, half, single fields, or both such as
    half,crop_fraction=0.875,std=0.3:0.3:0.2; by default as the weights say. range=0:4095 takes these stored values of
    pictures with more than 8 bits as black and white."""

    weights_from: Literal["average", "raw"] | None = None
    """The weights to take from a training checkpoint that has both: their average (the default) or the raw ones."""

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `vitrail.load`."""
        return {**asdict(self), "image_size": read_size(self.image_size)}


@dataclass(frozen=True)
class NamedWeights(Weights):
    """Options for reading the weights of a MODEL, and the names of its classes."""

    labels: Path | None = None
    """A file with the names of the classes: JSON with label_names and label_descriptions, or one name a line."""


def read_size(text: str | None) -> tuple[int, int] | None:
    """Parses an image size. It is one word, because two numbers would be read as taking the next argument too."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})?", text):
        raise UserError(f"--image-size {text}: give a number of pixels, or rows and columns such as 224x448")
    rows, _, columns = text.partition("x")
    return int(rows), int(columns or rows)


Flags = tyro.conf.OmitArgPrefixes
"""Makes the fields of a dataclass flags without a prefix."""
