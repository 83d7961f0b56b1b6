"""Learning from targets, by the loss of the task they answer."""

from typing import Any, Self

import torch
from torch import nn

from vitrail.config import TrainConfig
from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.tasks import task
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Losses, Objective


class Supervised(Objective):
    """asked: the name of the task. settings: what its loss is made of; told by the configuration and the data, which a
    resumed run has again, so that no snapshot need hold it."""

    labelled = True

    def __init__(self, asked: str, settings: LossSettings):
        super().__init__()
        self.task, self.settings = task(asked), settings
        self.loss = self.task.head.loss(settings)

    @classmethod
    def create(cls, config: TrainConfig, model: Model, settings: LossSettings) -> Self:
        return cls(model.config.task, settings)

    def forward(self, model: nn.Module, batch: Batch) -> Losses:
        """The batch's soft targets (mixing, smoothing) are what is learned where there are any."""
        outputs = model(batch.images).float()
        self.loss.to(outputs.device)
        loss = self.loss(outputs, batch.targets, batch.soft)
        with torch.no_grad():
            measures = self.loss.measures(outputs, batch.targets)
        return Losses(loss, len(batch.images), measures)

    def score(self, result: dict[str, Any]) -> float | None:
        """What is trained for: where outputs have weights, their mean."""
        return self.task.meter.score(result, balanced=self.settings.weights is not None)
