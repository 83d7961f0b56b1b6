"""Labels in closed form: ridge regression to 1 and -1, its strength, scale and bias by leaving one out."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks import ridge
from vitrail.tasks.base import Solved
from vitrail.tasks.multilabel.head import weighted_losses

_LEAST_SCALE = 2.0**-10
_ITERATIONS = 50
_EPSILON = 1e-10


def ridge_head(features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Solved:
    """Solves the ridge whose strength gives the lowest cross-entropy of samples left out, one by one.

    features: float32 [samples, width]. targets: [samples, labels] of 0 and 1. weights: float64 [labels], how much the
    presence of each label counts; the ridge counts all alike, and the scale and bias that make its outputs logits are
    fitted by the weights.
    """
    truths = (targets > 0).double()
    weights = torch.ones(truths.shape[1], dtype=torch.float64) if weights is None else weights.double()

    def signs(rows: Tensor) -> Tensor:
        return 2 * truths[rows] - 1

    best: tuple[float, float, float, float] | None = None
    for l2, scores, judged in ridge.leave_one_out(features, signs):
        own = truths[judged]
        scale, bias = fitted_logits(scores, own, weights)
        loss = float(weighted_losses(scale * scores + bias, own, weights, 0.0).sum() / len(own))
        if best is None or loss < best[0]:
            best = loss, l2, scale, bias
    assert best is not None
    _, l2, scale, bias = best
    weight, own_bias = ridge.solve(features, signs, l2).linear(scale)
    return Solved(weight, own_bias + bias, f"ridge in closed form, l2 {l2:g}")


def fitted_logits(scores: Tensor, truths: Tensor, weights: Tensor) -> tuple[float, float]:
    """Finds the scale, above 0, and the bias of all labels that make scores [samples, labels] the best logits.

    Targets are a little below certain, as Platt has them, so that scores without a mistake do not ask for an infinite
    scale. By Newton's method: the loss is convex in both.
    """
    unsure = 1 / (len(scores) + 2)
    wanted = truths * (1 - 2 * unsure) + unsure
    positive, negative = weights * wanted, 1 - wanted
    scale, bias = _minimum(scores, positive, negative, (1.0, 0.0))
    if scale < _LEAST_SCALE:  # scores that mislead: the best that may be is at the bound
        scale = _LEAST_SCALE
        _, bias = _minimum(scores, positive, negative, (scale, bias), bias_alone=True)
    return scale, bias


def _minimum(
    scores: Tensor, positive: Tensor, negative: Tensor, start: tuple[float, float], bias_alone: bool = False
) -> tuple[float, float]:
    """Finds the scale and bias of the lowest loss. positive, negative: [samples, labels], how much presence and absence
    count."""
    total = positive + negative
    found = torch.tensor(start, dtype=torch.float64)

    def loss(at: Tensor) -> float:
        logits = at[0] * scores + at[1]
        return float((positive * F.softplus(-logits) + negative * F.softplus(logits)).sum())

    now = loss(found)
    for _ in range(_ITERATIONS):
        share = (found[0] * scores + found[1]).sigmoid()
        slope, curve = total * share - positive, total * share * (1 - share)
        gradient = torch.stack([(slope * scores).sum(), slope.sum()])
        mixed = (curve * scores).sum()
        hessian = torch.stack([(curve * scores.square()).sum(), mixed, mixed, curve.sum()]).view(2, 2)
        hessian = hessian + _EPSILON * hessian.trace() * torch.eye(2, dtype=torch.float64)
        if bias_alone:
            step = torch.stack([torch.zeros_like(mixed), gradient[1] / hessian[1, 1]])
        else:
            step = torch.linalg.solve(hessian, gradient)
        after = loss(found - step)
        while after >= now and float(step.abs().max()) > _EPSILON:
            step = step / 2
            after = loss(found - step)
        if after >= now:
            break
        found, before, now = found - step, now, after
        if before - now < _EPSILON * abs(now):
            break
    return float(found[0]), float(found[1])
