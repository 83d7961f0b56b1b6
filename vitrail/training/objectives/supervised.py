"""Learns from targets, by the loss of their task."""

from typing import Any, Self

import torch
from torch import nn

from vitrail.config import TrainConfig
from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.tasks import task
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Losses, Moment, Objective


class Supervised(Objective):
    """Learns from targets. The configuration and the data decide everything about the loss, so no snapshot needs to
    hold it."""

    labelled = True

    def __init__(self, asked: str, settings: LossSettings):
        """Makes the loss. asked: the name of the task. settings: what the loss is made from."""
        super().__init__()
        self.task, self.settings = task(asked), settings
        self.loss = self.task.head.loss(settings)

    @classmethod
    def create(cls, config: TrainConfig, model: Model, settings: LossSettings) -> Self:
        return cls(model.config.task, settings)

    def forward(self, model: nn.Module, batch: Batch) -> Losses:
        """Computes the loss of a batch, from its soft targets (mixup, cutmix, label smoothing) if it has any."""
        outputs = self.loss.outputs(model, batch.images)
        self.loss.to(batch.images.device)
        loss = self.loss(outputs, batch.targets, batch.soft)
        with torch.no_grad():
            measures = self.loss.measures(outputs, batch.targets)
        return Losses(loss, len(batch.images), measures)

    def begin(self, moment: Moment) -> None:
        self.loss.begin(moment.step / moment.total)

    def score(self, result: dict[str, Any]) -> float | None:
        """Returns the task's score; every class counts alike in it if the loss has class weights."""
        return self.task.meter.score(result, balanced=self.settings.weights is not None)
