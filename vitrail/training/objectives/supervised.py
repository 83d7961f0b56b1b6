"""Learning from labels: softmax cross-entropy, or a sigmoid for each class (multi-label pre-training)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Losses:
    """Of one batch."""

    loss: Tensor
    """The mean over the batch, to be minimised."""
    correct: int
    """Samples whose highest score is that of their label."""
    count: int


class Supervised:
    def __init__(self, kind: Literal["softmax", "sigmoid"], num_classes: int):
        self.kind, self.num_classes = kind, num_classes

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, targets: Tensor | None) -> Losses:
        """`targets` are soft labels (mixing, smoothing); without them the labels are hard."""
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
        return Losses(loss, correct, len(images))
