"""A classifier's head in closed form: ridge regression on features, its strength chosen by leave-one-out.

The outputs of the ridge are scaled so that they serve as logits: fine-tuning that goes on from this head then begins
with sensible probabilities.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks import ridge
from vitrail.tasks.base import FeatureSet, Solved
from vitrail.tasks.classification import logistic
from vitrail.tasks.ridge import STRENGTHS, scaled_rows

LOGISTIC = 10**8
"""Logistic regression is tried only if samples x features x classes are at most this: that takes seconds on one
processor."""


def solve_head(
    train: FeatureSet, held_out: FeatureSet | None, num_classes: int, class_weights: Tensor | None = None
) -> Solved:
    """Computes a head by ridge regression, or by logistic regression if that does better on held-out samples.

    Better means a higher accuracy; with equal accuracies, a lower loss.

    Args:
        train: the samples to fit.
        held_out: the samples to compare the two by; None or none at all: the ridge is taken.
        num_classes: the number of classes.
        class_weights: float64 [num_classes], how much a sample of each class counts in fitting and in comparing; None:
            all alike.
    """
    first = ridge_head(train.features, train.targets, num_classes, class_weights)
    size = len(train.features) * train.features.shape[1] * num_classes
    if held_out is None or not len(held_out.features) or size > LOGISTIC:
        return first
    other = logistic_head(train.features, train.targets, num_classes, class_weights)
    return max((first, other), key=lambda head: _merit(head, held_out, class_weights))


def ridge_head(features: Tensor, labels: Tensor, num_classes: int, class_weights: Tensor | None = None) -> Solved:
    """Fits the ridge whose strength and scale give the lowest cross-entropy by leave-one-out."""
    best: tuple[float, float, float] | None = None
    for l2, scores, own in leave_one_out_scores(features, labels, num_classes, class_weights=class_weights):
        scale = fitted_scale(scores, own, class_weights)
        loss = float(F.cross_entropy(scale * scores, own, class_weights))
        if best is None or loss < best[0]:
            best = loss, l2, scale
    assert best is not None
    _, l2, scale = best
    weight, bias = solve_classes(features, labels, num_classes, l2, class_weights).linear(scale)
    return Solved(weight, bias, f"ridge in closed form, l2 {l2:g}")


def logistic_head(features: Tensor, labels: Tensor, num_classes: int, class_weights: Tensor | None = None) -> Solved:
    """Fits logistic regression, its strength chosen on a fifth of the samples."""
    found = logistic.train(features, labels, num_classes, class_weights=class_weights)
    weight = found.weights / found.std[:, None]
    bias = found.bias - found.mean @ weight
    return Solved(weight.T.float().contiguous(), bias.float(), f"logistic regression, l2 {found.l2:g}")


def solve_classes(
    features: Tensor, labels: Tensor, num_classes: int, l2: float, class_weights: Tensor | None = None
) -> ridge.LeastSquares:
    """Fits ridge regression to targets that are 1 for a sample's class and -1 for all others. class_weights: float64
    [num_classes], how often a sample of each class counts; None: once."""
    assert len(features) == len(labels)
    counts = None if class_weights is None else class_weights[labels]
    return ridge.solve(features, lambda rows: signs(labels[rows], num_classes), l2, counts)


def leave_one_out_scores(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    strengths: tuple[float, ...] = STRENGTHS,
    class_weights: Tensor | None = None,
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Tries each strength: yields (l2, scores float64 [judged, classes], labels [judged]). The scores of a sample come
    from the ridge fitted on all other samples."""
    counts = None if class_weights is None else class_weights[labels]
    found = ridge.leave_one_out(features, lambda rows: signs(labels[rows], num_classes), counts, strengths)
    for l2, scores, judged in found:
        yield l2, scores, labels[judged]


def signs(labels: Tensor, num_classes: int) -> Tensor:
    """Returns float64 [n, classes]: 1 for a sample's class, -1 for all others."""
    return 2 * F.one_hot(labels, num_classes).double() - 1


def fitted_scale(scores: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> float:
    """Finds the factor that turns scores into logits with the lowest cross-entropy.

    As in Platt scaling, targets are a little below 1: if no sample is wrong, the best factor would otherwise be
    infinite.
    """
    count, classes = scores.shape
    unsure = 1 / (count + 2)
    wanted = F.one_hot(labels, classes).double() * (1 - unsure - unsure / max(1, classes - 1))
    wanted += unsure / max(1, classes - 1)
    counted = scaled_rows(scores, None if class_weights is None else class_weights[labels])
    low, high = 2.0**-10, 2.0**10
    for _ in range(50):  # the slope rises with the factor, so bisection finds where it is 0
        middle = (low * high) ** 0.5
        slope = float((((middle * scores).softmax(dim=1) - wanted) * counted).sum())
        low, high = (middle, high) if slope < 0 else (low, middle)
    return (low * high) ** 0.5


def _merit(head: Solved, held_out: FeatureSet, class_weights: Tensor | None) -> tuple[float, float]:
    """Returns (accuracy, minus the loss) of a head on held-out samples."""
    return logistic.merit(head.outputs(held_out.features).double(), held_out.targets, class_weights)
