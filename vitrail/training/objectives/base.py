"""The interface of an objective: batch -> loss, further views of a picture, what it adds to a step, pictures for the
report.

An objective is a module. Its parameters (a mask token, a decoder, a head) are optimised and kept in snapshots with
those of the model, and so are its buffers and models of its own, such as a teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from vitrail.config import Preprocessing, TrainConfig, TransformConfig
from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.process_group import ProcessGroup
from vitrail.tasks.base import LossSettings


@dataclass
class Losses:
    """The loss of one batch, and other measures."""

    loss: Tensor
    """The mean over the batch, to be minimised."""
    count: int
    """The number of samples."""
    measures: dict[str, float] = field(default_factory=dict)
    """Other numbers worth seeing, by name, each summed over the samples."""


@dataclass(frozen=True)
class Moment:
    """The point in a run at which a step is taken."""

    step: int
    """The step, from 0 to total - 1."""
    total: int
    """Optimizer steps of the whole run."""
    epoch: float
    """Passes over the data before the step."""


@dataclass(frozen=True)
class Illustration:
    """Pictures for the report: a row for each sample, a column for each thing that is shown of it."""

    name: str
    """The name of the file, without .png."""
    title: str
    about: str
    """A sentence below the title."""
    columns: Sequence[str]
    """The names of the columns."""
    rows: Sequence[Sequence[np.ndarray]]
    """uint8 [rows, columns, channels] for a picture, float [rows, columns] for a map from 0 to 1."""


class Objective(nn.Module):
    """The base class of objectives. A subclass defines `create` and `forward`; its other methods do nothing unless it
    overrides them. A model is any that the objective can train: a ViT without labels, any with them."""

    labelled: ClassVar[bool] = False
    """Whether it learns from targets, and its model is measured by the task's meter. If not, the model is measured by
    the objective's loss and by nearest neighbours of its features."""
    processes = ProcessGroup()
    """The processes that compute the other parts of each batch."""

    @classmethod
    def create(cls, config: TrainConfig, model: Any, settings: LossSettings) -> Self:
        """Makes the objective for a model.

        config: the training's. settings: what its loss is made from, if it learns from targets.
        """
        raise NotImplementedError

    @classmethod
    def views(cls, config: TrainConfig) -> Sequence[tuple[TransformConfig, Preprocessing]]:
        """Returns how each further view of a picture is made in a training of this `config`, besides the first.
        `Batch.views` has them, in training and in validation."""
        return ()

    @classmethod
    def unseen(cls, config: TrainConfig) -> float:
        """Returns the share of the patches that the model does not see in a step of a training of this `config`."""
        return config.model.patch_dropout

    def forward(self, model: Any, batch: Batch) -> Losses:
        """Computes the loss of a batch by `model`, the one that is trained."""
        raise NotImplementedError

    def begin(self, moment: Moment) -> None:
        """Prepares for a step, whose place in the training is `moment`."""

    def before_update(self) -> None:
        """Changes the gradients of a step before the weights are updated."""

    def after_update(self, model: Any) -> None:
        """Follows the model after its weights were updated."""

    def encoder(self, model: Any) -> Model:
        """Returns the model whose weights are measured and kept as the result."""
        return model

    def score(self, result: dict[str, Any]) -> float | None:
        """Returns how good a validation's result is: `best/` keeps the model with the highest. None if it cannot be
        told."""
        return -result["loss"]

    def illustrate(self, model: Any, batch: Batch) -> Illustration | None:
        """Draws what the model has learned on the samples of `batch`, a few; None if there is nothing to show."""
        return None
