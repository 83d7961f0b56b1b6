"""A classifier's head in closed form: ridge regression on features, its strength and its scale by leaving one out.

The scores are scaled to be read as logits: cross-entropy starts from sensible probabilities when fine-tuning goes on
from here.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks import ridge
from vitrail.tasks.base import FeatureSet, Solved
from vitrail.tasks.classification import logistic
from vitrail.tasks.ridge import STRENGTHS, scaled

LOGISTIC = 10**8
"""Logistic regression is trained where samples x features x classes are no more: seconds on one processor."""


def solve_head(
    train: FeatureSet, held_out: FeatureSet | None, num_classes: int, class_weights: Tensor | None = None
) -> Solved:
    """Solves the ridge, or logistic regression where that does better on held-out samples (of equal accuracies: where
    its loss is lower). class_weights: float64 [num_classes], how much a sample of each class counts, in all of it."""
    first = ridge_head(train.features, train.targets, num_classes, class_weights)
    size = len(train.features) * train.features.shape[1] * num_classes
    if held_out is None or not len(held_out.features) or size > LOGISTIC:
        return first
    other = logistic_head(train.features, train.targets, num_classes, class_weights)
    return max((first, other), key=lambda head: _merit(head, held_out, class_weights))


def ridge_head(features: Tensor, labels: Tensor, num_classes: int, class_weights: Tensor | None = None) -> Solved:
    """Solves the ridge whose strength and scale give the lowest cross-entropy of samples left out, one by one."""
    best: tuple[float, float, float] | None = None
    for l2, scores, own in leave_one_out(features, labels, num_classes, class_weights=class_weights):
        scale = fitted_scale(scores, own, class_weights)
        loss = float(F.cross_entropy(scale * scores, own, class_weights))
        if best is None or loss < best[0]:
            best = loss, l2, scale
    assert best is not None
    _, l2, scale = best
    weight, bias = solve(features, labels, num_classes, l2, class_weights).linear(scale)
    return Solved(weight, bias, f"ridge in closed form, l2 {l2:g}")


def logistic_head(features: Tensor, labels: Tensor, num_classes: int, class_weights: Tensor | None = None) -> Solved:
    """Trains logistic regression, its strength chosen on a fifth of the samples."""
    found = logistic.train(features, labels, num_classes, class_weights=class_weights)
    weight = found.weights / found.std[:, None]
    bias = found.bias - found.mean @ weight
    return Solved(weight.T.float().contiguous(), bias.float(), f"logistic regression, l2 {found.l2:g}")


def solve(
    features: Tensor, labels: Tensor, num_classes: int, l2: float, class_weights: Tensor | None = None
) -> ridge.LeastSquares:
    """Solves the ridge whose targets are 1 for a sample's class and -1 for all others. class_weights: float64
    [num_classes], how often a sample of each class counts; None: once."""
    assert len(features) == len(labels)
    counts = None if class_weights is None else class_weights[labels]
    return ridge.solve(features, lambda rows: signs(labels[rows], num_classes), l2, counts)


def leave_one_out(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    strengths: tuple[float, ...] = STRENGTHS,
    class_weights: Tensor | None = None,
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Gives (l2, scores float64 [judged, classes], labels [judged]) for each strength: what the ridge says of a sample
    when solved on all others."""
    counts = None if class_weights is None else class_weights[labels]
    found = ridge.leave_one_out(features, lambda rows: signs(labels[rows], num_classes), counts, strengths)
    for l2, scores, judged in found:
        yield l2, scores, labels[judged]


def signs(labels: Tensor, num_classes: int) -> Tensor:
    """Gives float64 [n, classes]: 1 for a sample's class, -1 for all others."""
    return 2 * F.one_hot(labels, num_classes).double() - 1


def fitted_scale(scores: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> float:
    """The factor that makes scores the best logits: the lowest cross-entropy. Targets are a little below certain, as
    Platt has them, so that scores without a mistake do not ask for an infinite one."""
    count, classes = scores.shape
    unsure = 1 / (count + 2)
    wanted = F.one_hot(labels, classes).double() * (1 - unsure - unsure / max(1, classes - 1))
    wanted += unsure / max(1, classes - 1)
    counted = scaled(scores, None if class_weights is None else class_weights[labels])
    low, high = 2.0**-10, 2.0**10
    for _ in range(50):  # the slope only rises with the factor, so its zero is found by halving
        middle = (low * high) ** 0.5
        slope = float((((middle * scores).softmax(dim=1) - wanted) * counted).sum())
        low, high = (middle, high) if slope < 0 else (low, middle)
    return (low * high) ** 0.5


def _merit(head: Solved, held_out: FeatureSet, class_weights: Tensor | None) -> tuple[float, float]:
    return logistic.merit(head.outputs(held_out.features).double(), held_out.targets, class_weights)
