"""A linear probe: logistic regression on features that stay as they are, its one setting chosen on held-out samples.

Nothing is random but which samples are held out, and that is seeded: the same features give the same probe.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.random_stream import permutation
from vitrail.tasks.classification import top1

GRID = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths of regularisation that are tried, the strongest first: where two do equally well it is kept."""
DEFAULT = 1e-2
"""The strength where every class has a single sample, and none can be held out."""
HELD_OUT = 0.2
_EPSILON = 1e-5
_LOGITS = 1 << 22
"""Logits held at a time, 32 MB of them."""


@dataclass(frozen=True)
class Probe:
    """A linear map from features to one logit a class."""

    mean: Tensor  # [width]
    std: Tensor  # [width]
    weights: Tensor  # [width, classes]
    bias: Tensor  # [classes]
    l2: float
    """The strength of regularisation it was trained with."""

    def logits(self, features: Tensor) -> Tensor:
        """float64 [n, classes]."""
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
    """Trained on all samples; without `l2`, it is the one of GRID that does best when a fifth is held out.
    class_weights: float64 [num_classes], how much a sample of each class counts; None: all alike."""
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
    """Truth values: a fifth of every class, at least one sample of it, but never its only one."""
    out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        count = min(max(1, round(HELD_OUT * len(members))), len(members) - 1)
        out[members[torch.from_numpy(permutation(len(members), "held out", seed, label)[:count])]] = True
    return out


def merit(logits: Tensor, labels: Tensor, class_weights: Tensor | None) -> tuple[float, float]:
    """(the share that is right, minus the loss): accuracy first; of few samples many have the same, and the loss tells
    them apart."""
    right = top1.right(logits, labels).double()
    counted = torch.ones_like(right) if class_weights is None else class_weights[labels]
    return float((right * counted).sum() / counted.sum()), -float(F.cross_entropy(logits, labels, class_weights))


def _choose(x: Tensor, labels: Tensor, class_weights: Tensor, seed: int) -> float:
    out = held_out(labels, seed)
    if not bool(out.any()):
        return DEFAULT
    weights = x.new_zeros(x.shape[1] + 1, len(class_weights))
    best: tuple[float, float, float] | None = None
    for l2 in GRID:
        # From the last solution it is not far, and to compare strengths a rough one is enough.
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
    """[width + 1, classes]: the minimum of the mean cross-entropy + l2 / 2 |weights|^2; the bias, last, is free."""
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
    """(the loss, its gradient). The gradient is short enough to write down, and so the logits can go in parts."""
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
