"""What the loop asks of an objective: batch -> losses, and what it may add to a step.

An objective is a module: parameters of its own (a mask token, a decoder, a head) are optimised and kept in snapshots
with the model's, and so are its buffers and whatever follows the model (a teacher).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.processes import Processes


@dataclass
class Losses:
    """Of one batch."""

    loss: Tensor
    """The mean over the batch, to be minimised."""
    count: int
    """Samples."""
    measures: dict[str, float] = field(default_factory=dict)
    """What else is worth seeing, by name, as sums over the samples."""


@dataclass(frozen=True)
class Moment:
    """When a step takes place."""

    step: int
    """From 0 to total - 1."""
    total: int
    epoch: float
    """Passes over the data before it."""


@dataclass(frozen=True)
class Illustration:
    """Pictures for the report: a row for each sample, a column for each thing shown of it."""

    name: str
    """Of the file."""
    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[np.ndarray]]
    """uint8 [rows, columns, channels] is a picture, float [rows, columns] a map from 0 to 1."""


class Objective(nn.Module):
    """Subclasses compute `forward`; the other steps do nothing unless they say so. The model is one the objective can
    train: any for labels, a ViT without them."""

    processes = Processes()
    """Those that see the other parts of a batch."""

    def forward(self, model: Any, batch: Batch) -> Losses:
        raise NotImplementedError

    def begin(self, moment: Moment) -> None:
        """Before a step."""

    def before_update(self) -> None:
        """When all gradients of a step are there."""

    def after_update(self, model: Any) -> None:
        """When the model's weights have changed."""

    def encoder(self, model: Any) -> Model:
        """Whose weights are measured, and kept as the result."""
        return model

    def score(self, result: dict[str, Any]) -> float | None:
        """How good a validation's result is: `best/` has the highest. None: there is nothing to choose by."""
        return -result["loss"]

    def illustrate(self, model: Any, batch: Batch) -> Illustration | None:
        """What it has learned, shown on a few samples."""
        return None
