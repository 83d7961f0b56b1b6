"""The flags for what a weights file may not say of itself, the same in every command that takes a MODEL."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class Weights:
    model: Annotated[str | None, tyro.conf.arg(name="model")] = None
    """The model's name (such as B/16), where a weights file cannot say."""
    image_size: tuple[int, int] | int | None = None
    """Another image size: one number, or rows and columns. Positions are interpolated."""
    preprocessing: str | None = None
    """imagenet, half, single fields, or both: half,crop_fraction=0.875,std=0.3:0.3:0.2; else what the weights carry."""

    def options(self) -> dict[str, Any]:
        """As `vitrail.load` takes them."""
        return asdict(self)


@dataclass(frozen=True)
class NamedWeights(Weights):
    labels: Path | None = None
    """A file of class names: JSON with label_names and label_descriptions, or one name a line."""


Flags = tyro.conf.OmitArgPrefixes
