"""What training asks of an objective: batch -> losses, what it adds to a step, which views it needs, what it shows.

An objective is a module: parameters of its own (a mask token, a decoder, a head) are optimised and kept in snapshots
with the model's, and so are its buffers and whatever follows the model (a teacher).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from vitrail.config import Preprocessing, TrainConfig, TransformConfig
from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.processes import Processes
from vitrail.tasks.base import LossSettings


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
    """Subclasses have `create` and compute `forward`; the other steps do nothing unless they say so. The model is one
    the objective can train: any for labels, a ViT without them."""

    labelled: ClassVar[bool] = False
    """Whether it learns from labels, and its model is measured by their accuracy. Otherwise it measures its own loss,
    and the features are measured by their nearest neighbours."""
    processes = Processes()
    """Those that see the other parts of a batch."""

    @classmethod
    def create(cls, config: TrainConfig, model: Any, settings: LossSettings) -> Self:
        """Makes the objective for a model. settings: of the loss of one that learns from targets."""
        raise NotImplementedError

    @classmethod
    def views(cls, config: TrainConfig) -> Sequence[tuple[TransformConfig, Preprocessing]]:
        """Says how each further view of a picture is made, besides the first: `Batch.views` has them, in training and
        in validation."""
        return ()

    @classmethod
    def unseen(cls, config: TrainConfig) -> float:
        """Gives the share of the patches that the model does not see in a step of training."""
        return config.model.patch_dropout

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
