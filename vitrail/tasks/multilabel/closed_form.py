"""A multi-label head in closed form: ridge regression to 1 and -1; strength, scale and bias chosen by leave-one-out."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks import ridge
from vitrail.tasks.base import Solved
from vitrail.tasks.multilabel.head import weighted_losses

_LEAST_SCALE = 2.0**-10
"""The smallest scale that turns outputs into logits."""
_ITERATIONS = 50
"""The largest number of steps of Newton's method."""
_EPSILON = 1e-10
"""Relative precision at which Newton's method stops, and the share of its trace that keeps the Hessian invertible."""


def label_ridge_head(features: Tensor, targets: Tensor, weights: Tensor | None = None) -> Solved:
    """Fits the ridge whose strength gives the lowest cross-entropy by leave-one-out.

    The weights do not change the ridge, only the scale and bias that turn its outputs into logits.

    Args:
        features: float32 [samples, width].
        targets: 0 or 1, [samples, labels].
        weights: float64 [labels], how much the presence of each label counts; None: as much as its absence.
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
    """Finds one scale, above 0, and one bias that turn the scores of all labels into logits with the lowest
    cross-entropy.

    As in Platt scaling, targets are a little away from 0 and 1: if no answer is wrong, the best scale would otherwise
    be infinite. The loss is convex in both numbers, so Newton's method finds its minimum.

    Args:
        scores: [samples, labels].
        truths: 0 or 1, [samples, labels].
        weights: [labels], how much the presence of each label counts.
    """
    unsure = 1 / (len(scores) + 2)
    wanted = truths * (1 - 2 * unsure) + unsure
    positive, negative = weights * wanted, 1 - wanted
    scale, bias = _minimum(scores, positive, negative, (1.0, 0.0))
    if scale < _LEAST_SCALE:  # scores that order the samples wrongly: the best allowed scale is the bound
        scale = _LEAST_SCALE
        _, bias = _minimum(scores, positive, negative, (scale, bias), bias_alone=True)
    return scale, bias


def _minimum(
    scores: Tensor, positive: Tensor, negative: Tensor, start: tuple[float, float], bias_alone: bool = False
) -> tuple[float, float]:
    """Finds the scale and bias with the lowest loss by Newton's method.

    Args:
        scores: [samples, labels].
        positive: [samples, labels], how much the presence of each label counts.
        negative: [samples, labels], how much its absence counts.
        start: the scale and bias to begin from.
        bias_alone: whether the scale stays as it is.
    """
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
