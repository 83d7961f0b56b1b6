"""Learning from labels: softmax cross-entropy, or a sigmoid for each class (multi-label pre-training)."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.loader import Batch
from vitrail.training.objectives.base import Losses, Objective


class Supervised(Objective):
    def __init__(self, kind: Literal["softmax", "sigmoid"], num_classes: int):
        super().__init__()
        self.kind, self.num_classes = kind, num_classes

    def forward(self, model: nn.Module, batch: Batch) -> Losses:
        """The batch's targets are soft labels (mixing, smoothing); without them the labels are hard."""
        images, labels, targets = batch.images, batch.labels, batch.targets
        logits = model(images).float()
        if self.kind == "softmax":
            loss = F.cross_entropy(logits, labels if targets is None else targets)
        else:
            if targets is None:
                targets = F.one_hot(labels, self.num_classes).float()
            # Summed over the classes, as the paper's code does, so that it does not vanish with their number.
            loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(images)
        with torch.no_grad():
            correct = int((logits.argmax(dim=1) == labels).sum())
        return Losses(loss, len(images), {"accuracy": correct})

    def score(self, result: dict[str, Any]) -> float | None:
        return result["top1"]
