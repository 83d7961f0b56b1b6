"""Learning labels: a sigmoid for each label, and the sum of their binary cross-entropies."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import FeatureSet, LossSettings, Solved


class LabelLoss(base.Loss):
    """Binary cross-entropy of targets [batch, labels], or of soft targets if they are given. Samples whose labels are
    not known (-1) add nothing."""

    def __init__(self, settings: LossSettings) -> None:
        assert settings.kind == "sigmoid"
        self.weights, self.smoothing = settings.weights, settings.smoothing

    def to(self, device: torch.device) -> None:
        self.weights = None if self.weights is None else self.weights.to(device)

    def __call__(self, outputs: Tensor, targets: Tensor, soft: Tensor | None) -> Tensor:
        wanted = targets.to(outputs.dtype) if soft is None else soft
        if self.weights is None:
            losses = F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        else:
            losses = weighted_losses(outputs, wanted, self.weights, 0.0 if soft is None else self.smoothing)
        if soft is None:
            losses = losses * (targets >= 0)
        # A sum over the labels, so that the loss of one does not shrink as there are more, and a mean over the samples.
        return losses.sum() / len(outputs)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Computes the F1 of each sample's labels at a score of 0.5; it is 1 if there are none and none are
        predicted."""
        predicted, true = outputs > 0, targets > 0
        both = (predicted & true).sum(dim=1)
        either = predicted.sum(dim=1) + true.sum(dim=1)
        return {"sample_f1": float(torch.where(either > 0, 2 * both / either.clamp(min=1), 1.0).sum())}


class LabelHead(base.Head):
    """Learns any number of labels for each picture."""

    losses = ("sigmoid",)

    def loss(self, settings: LossSettings) -> LabelLoss:
        return LabelLoss(settings)

    def soft_targets(self, targets: Tensor, outputs: int, smoothing: float) -> Tensor:
        """Makes float targets [batch, labels], each moved by half the smoothing towards the other answer."""
        if bool((targets < 0).any()):
            raise UserError("label smoothing, mixup and cutmix need the labels of every sample; some have none")
        return targets.float() * (1 - smoothing) + smoothing / 2

    def weights(self, targets: np.ndarray, outputs: int) -> np.ndarray:
        return positive_weights(targets)

    def weights_line(self, weights: np.ndarray, names: Sequence[str]) -> str:
        low, high = int(weights.argmin()), int(weights.argmax())
        return (
            f"class weights: a picture that has a label counts from {weights[low]:.3g} ({names[low]}) to "
            f"{weights[high]:.3g} ({names[high]}) times as much as one without it"
        )

    def unsolvable(self, kind: str) -> str | None:
        return None if kind in self.losses else super().unsolvable(kind)

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        from vitrail.tasks.multilabel.closed_form import label_ridge_head

        return label_ridge_head(train.features, train.targets, settings.weights)


def positive_weights(targets: np.ndarray) -> np.ndarray:
    """Computes float64 [labels]: negatives / positives, so that both weigh the same in every label; 1 for a label that
    all or no samples have. Samples whose labels are not known are not counted. targets: [samples, labels]."""
    known = targets[(targets >= 0).all(axis=1)]
    positives = (known > 0).sum(axis=0)
    negatives = len(known) - positives
    return np.where((positives > 0) & (negatives > 0), negatives / np.maximum(positives, 1), 1.0)


def weighted_losses(outputs: Tensor, wanted: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Computes the cross-entropies [batch, labels] if the presence of a label counts as much as its weight says.

    A mixed picture counts as the pictures that it is made of. The smoothing is taken out before the weights are applied
    and put back afterwards, since it belongs to the answer that it was taken from: else each picture would teach a
    little of the rarest label, multiplied by its large weight.

    Args:
        outputs: logits [batch, labels].
        wanted: soft targets [batch, labels].
        weights: [labels].
        smoothing: the label smoothing that is part of `wanted`.
    """
    share = (wanted - smoothing / 2) / (1 - smoothing)
    present, absent = weights.to(share.dtype) * share, 1 - share
    positive = present * (1 - smoothing / 2) + absent * (smoothing / 2)
    negative = present * (smoothing / 2) + absent * (1 - smoothing / 2)
    return positive * F.softplus(-outputs) + negative * F.softplus(outputs)


PART = LabelHead()
