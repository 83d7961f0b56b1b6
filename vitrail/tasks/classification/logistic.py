"""Logistic regression on fixed features (a linear probe), with its regularisation chosen on held-out samples.

The only random choice is which samples are held out, and that is seeded: equal features give an equal probe.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.random_stream import permutation
from vitrail.tasks.classification import top1

GRID = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths of regularisation to try, the strongest first. Of two that do equally well the stronger one is taken."""
DEFAULT_STRENGTH = 1e-2
"""The strength if every class has a single sample, so that none can be held out."""
HELD_OUT = 0.2
"""The share of each class that is held out."""
_EPSILON = 1e-5
_LOGITS = 1 << 22
"""How many logits are held in memory at a time: 32 MB of them."""


@dataclass(frozen=True)
class Probe:
    """A linear map from features to one logit for each class."""

    mean: Tensor  # [width]
    std: Tensor  # [width]
    weights: Tensor  # [width, classes]
    bias: Tensor  # [classes]
    l2: float
    """The strength of regularisation that it was trained with."""

    def logits(self, features: Tensor) -> Tensor:
        """Computes logits, float64 [n, classes], for features [n, width]."""
        return ((features.double() - self.mean) / self.std) @ self.weights + self.bias


@torch.no_grad()
def train(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    l2: float | None = None,
    seed: int = 0,
    class_weights: Tensor | None = None,
) -> Probe:
    """Trains logistic regression on all samples.

    Args:
        features: [n, width].
        labels: int64 [n].
        num_classes: the number of classes.
        l2: the strength of regularisation; None: the strength in GRID that does best on a held-out fifth.
        seed: decides which samples are held out.
        class_weights: float64 [num_classes], how much a sample of each class counts; None: all alike.
    """
    assert len(features) == len(labels)
    assert len(features)
    x = features.double()
    mean, std = x.mean(dim=0), x.std(dim=0, correction=0) + _EPSILON
    x = (x - mean) / std
    counts = x.new_ones(num_classes) if class_weights is None else class_weights
    chosen = _choose(x, labels, counts, seed) if l2 is None else l2
    weights = _minimise(x, labels, x.new_zeros(x.shape[1] + 1, num_classes), counts, chosen)
    return Probe(mean, std, weights[:-1], weights[-1], chosen)


def held_out(labels: Tensor, seed: int) -> Tensor:
    """Chooses a fifth of every class, at least one sample but never its only one: bool [n]."""
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        count = min(max(1, round(HELD_OUT * len(members))), len(members) - 1)
        out[members[torch.from_numpy(permutation(len(members), "held out", seed, label)[:count])]] = True
    return out


def merit(logits: Tensor, labels: Tensor, class_weights: Tensor | None) -> tuple[float, float]:
    """Returns (accuracy, minus the loss), for comparing by accuracy first. With few samples accuracies are often equal;
    then the loss decides."""
    right = top1.right(logits, labels).double()
    counted = torch.ones_like(right) if class_weights is None else class_weights[labels]
    return float((right * counted).sum() / counted.sum()), -float(F.cross_entropy(logits, labels, class_weights))


def _choose(x: Tensor, labels: Tensor, class_weights: Tensor, seed: int) -> float:
    """Returns the strength in GRID that does best on held-out samples."""
    out = held_out(labels, seed)
    if not bool(out.any()):
        return DEFAULT_STRENGTH
    weights = x.new_zeros(x.shape[1] + 1, len(class_weights))
    best: tuple[float, float, float] | None = None
    for l2 in GRID:
        # Begins from the solution for the last strength, which is near; a rough minimum is enough to compare.
        weights = _minimise(x[~out], labels[~out], weights, class_weights, l2, rough=True)
        logits = x[out] @ weights[:-1] + weights[-1]
        result = (*merit(logits, labels[out], class_weights), l2)
        if best is None or result[:2] > best[:2]:
            best = result
    assert best is not None
    return best[2]


def _minimise(
    x: Tensor, labels: Tensor, start: Tensor, class_weights: Tensor, l2: float, rough: bool = False
) -> Tensor:
    """Finds the minimum of mean cross-entropy + l2 / 2 |weights|^2, as variables [width + 1, classes] whose last row is
    the bias, which is not penalised.

    Args:
        x: standardised features [n, width].
        labels: int64 [n].
        start: the variables to begin from.
        class_weights: [classes].
        l2: the strength of regularisation.
        rough: whether a less exact minimum is enough.
    """
    variables = start.clone()
    optimizer = torch.optim.LBFGS(
        [variables],
        max_iter=100 if rough else 500,
        history_size=20,
        tolerance_grad=1e-4 if rough else 1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        loss, gradient = _objective(x, labels, variables, class_weights, l2)
        variables.grad = gradient
        return loss

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]
    return variables


def _objective(x: Tensor, labels: Tensor, variables: Tensor, class_weights: Tensor, l2: float) -> tuple[Tensor, Tensor]:
    """Computes the loss and its gradient. The gradient is written out, rather than left to autograd, so that the logits
    can be computed in parts."""
    weights, bias = variables[:-1], variables[-1]
    loss = l2 / 2 * weights.square().sum()
    gradient = torch.cat([l2 * weights, torch.zeros_like(bias)[None]])
    rows = max(1, _LOGITS // len(bias))
    for part, own in zip(x.split(rows), labels.split(rows), strict=True):
        logits = part @ weights + bias
        loss += F.cross_entropy(logits, own, class_weights, reduction="sum") / len(x)
        error = (logits.softmax(dim=1) - F.one_hot(own, len(bias))) * (class_weights[own] / len(x))[:, None]
        gradient[:-1] += part.T @ error
        gradient[-1] += error.sum(dim=0)
    return loss, gradient
