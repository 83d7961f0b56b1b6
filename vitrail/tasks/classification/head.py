"""Learning classes: softmax cross-entropy, or a sigmoid for each class as in the paper's pre-training."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import FeatureSet, LossSettings, Solved
from vitrail.tasks.classification.top1 import right


class ClassLoss(base.Loss):
    """Cross-entropy of labels [batch], or of soft targets [batch, classes] if they are given."""

    def __init__(self, settings: LossSettings) -> None:
        assert settings.kind in ("softmax", "sigmoid")
        self.kind: Literal["softmax", "sigmoid"] = settings.kind
        self.classes, self.weights, self.smoothing = settings.outputs, settings.weights, settings.smoothing

    def to(self, device: torch.device) -> None:
        self.weights = None if self.weights is None else self.weights.to(device)

    def __call__(self, outputs: Tensor, targets: Tensor, soft: Tensor | None) -> Tensor:
        if self.weights is not None:
            return self._weighted(outputs, targets, soft, self.weights)
        if self.kind == "softmax":
            return F.cross_entropy(outputs, targets if soft is None else soft)
        wanted = F.one_hot(targets, self.classes).float() if soft is None else soft
        # A sum over the classes, as in the paper's code, so that the loss of one does not shrink as there are more.
        return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum") / len(outputs)

    def _weighted(self, logits: Tensor, labels: Tensor, soft: Tensor | None, weights: Tensor) -> Tensor:
        """Computes the loss with class weights.

        The sum over the batch is divided by the number of samples, not by the sum of their weights. Weights have a mean
        of 1 over the data, so a batch that is split into parts or among processes gives the same gradient.
        """
        smoothing = 0.0 if soft is None else self.smoothing
        wanted = soft_labels(labels, self.classes, 0.0) if soft is None else soft
        wanted, each = weighted(wanted, weights, smoothing)
        if self.kind == "softmax":
            loss = -(wanted * logits.log_softmax(dim=1))
        else:
            loss = each * F.softplus(logits) - wanted * logits
        return loss.sum() / len(logits)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return {"accuracy": int(right(outputs, targets).sum())}


class ClassHead(base.Head):
    """Learns one class for each picture."""

    losses = ("softmax", "sigmoid")

    def loss(self, settings: LossSettings) -> ClassLoss:
        return ClassLoss(settings)

    def soft_targets(self, targets: Tensor, outputs: int, smoothing: float) -> Tensor:
        if int(targets.min()) < 0:
            raise UserError("label smoothing, mixup and cutmix need a label for every sample; some have none")
        return soft_labels(targets, outputs, smoothing)

    def weights(self, targets: np.ndarray, outputs: int) -> np.ndarray:
        return balanced(targets, outputs)

    def weights_line(self, weights: np.ndarray, names: Sequence[str]) -> str:
        present = np.flatnonzero(weights)
        low, high = present[weights[present].argmin()], present[weights[present].argmax()]
        return (
            f"class weights: from {weights[low]:.3g} ({names[low]}) to {weights[high]:.3g} ({names[high]}), so that "
            "every class counts alike in training; accuracies are of samples as they are"
        )

    def unsolvable(self, kind: str) -> str | None:
        return None if kind == "softmax" else super().unsolvable(kind)

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        from vitrail.tasks.classification.closed_form import solve_head

        return solve_head(train, held_out, settings.outputs, settings.weights)


def soft_labels(labels: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Turns labels [batch] into soft targets [batch, num_classes]: 1 - smoothing on the label, and the smoothing spread
    evenly over all classes."""
    targets = torch.full((len(labels), num_classes), smoothing / num_classes, device=labels.device)
    targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
    return targets


def balanced(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Computes class weights n / (K * n_c), float64 [num_classes], for n samples, K classes that have samples, and n_c
    samples of class c. Classes without samples get 0, so that the mean over the samples is 1. Samples without a label
    (-1) do not count."""
    labels = np.asarray(labels)
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    present = counts > 0
    return np.where(present, counts.sum() / (max(1, int(present.sum())) * np.maximum(counts, 1)), 0.0)


def weighted(targets: Tensor, weights: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Applies class weights to soft targets, for a loss that is linear in its targets.

    A mixed picture counts as the pictures that it is made of, each by its share and the weight of its class. The
    smoothing is taken out before the weights are applied and put back afterwards, since it belongs to the picture's own
    class: else each sample would teach a little of the rarest class, multiplied by its large weight.

    Returns:
        The weighted targets [batch, classes], and the weight of each sample [batch, 1].
    """
    classes = targets.shape[1]
    shares = (targets - smoothing / classes) / (1 - smoothing) * weights
    each = shares.sum(dim=1, keepdim=True)
    return (1 - smoothing) * shares + smoothing / classes * each, each


PART = ClassHead()
