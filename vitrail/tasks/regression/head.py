"""Learning numbers: the distance of standardised outputs from standardised targets, and the head in closed form."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UserError
from vitrail.tasks import base, ridge
from vitrail.tasks.base import FeatureSet, LossSettings, Solved
from vitrail.tasks.regression.scale import TargetScale

LOSS = "loss"
"""The key of the constant that says which loss a model was trained with, so that it can be measured by the same
loss."""
STRENGTHS_OF_NUMBERS = (1e-5, 1e-4, 1e-3, *ridge.STRENGTHS)
"""The strengths of regularisation to try: weaker ones too, since a number may depend on finer details than a class
does."""


def _huber(outputs: Tensor, wanted: Tensor) -> Tensor:
    return F.huber_loss(outputs, wanted, reduction="none", delta=1.0)


def _l1(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs - wanted).abs()


def _l2(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs - wanted).square()


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"huber": _huber, "l1": _l1, "l2": _l2}
"""The distance of standardised numbers, element by element, for each loss. huber is half the square up to a difference
of 1, and linear beyond."""


def distances(kind: str, outputs: Tensor, wanted: Tensor) -> Tensor:
    """Computes the loss of each sample [batch]: the mean over its numbers. outputs, wanted: [batch, numbers],
    standardised."""
    return DISTANCES[kind](outputs, wanted).mean(dim=1)


class NumberLoss(base.Loss):
    """Mean distance between outputs and targets. Targets, soft ones too, are [batch, numbers] in the user's units;
    outputs are standardised."""

    def __init__(self, settings: LossSettings) -> None:
        assert settings.kind in DISTANCES
        self.kind = settings.kind
        scale = TargetScale.of(settings.constants, settings.outputs)
        self.mean, self.std = torch.from_numpy(scale.mean), torch.from_numpy(scale.std)

    def to(self, device: torch.device) -> None:
        if device.type == "mps":  # Apple's GPUs have no double precision
            self.mean, self.std = self.mean.float(), self.std.float()
        self.mean, self.std = self.mean.to(device), self.std.to(device)

    def __call__(self, outputs: Tensor, targets: Tensor, soft: Tensor | None) -> Tensor:
        wanted = targets if soft is None else soft
        # Standardised in double precision: in single precision, large numbers that differ little would become equal.
        return distances(self.kind, outputs, ((wanted - self.mean) / self.std).float()).mean()

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Computes the absolute error in the user's units, averaged over the numbers of each sample."""
        return {"mae": float((outputs * self.std + self.mean - targets).abs().mean(dim=1).sum())}


class NumberHead(base.Head):
    """Learns one or several numbers for each picture."""

    losses = tuple(DISTANCES)

    def loss(self, settings: LossSettings) -> NumberLoss:
        return NumberLoss(settings)

    def soft_targets(self, targets: Tensor, outputs: int, smoothing: float) -> Tensor:
        """Returns the targets unchanged: they can be mixed as they are, since the mean of numbers, standardised, is the
        mean of the standardised numbers."""
        if smoothing:
            raise UserError(
                "--transform.label-smoothing is for classes, and this data has numbers: set it to 0; mixup and cutmix "
                "go with numbers"
            )
        return targets

    def constants(self, kind: str) -> dict[str, Any]:
        return {LOSS: kind}

    def unsolvable(self, kind: str) -> str | None:
        """Returns None: the head in closed form is a good beginning for every loss."""
        return None

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        """Fits the ridge whose strength gives the lowest squared error by leave-one-out."""
        scale = TargetScale.of(settings.constants, settings.outputs)
        wanted = torch.from_numpy(scale.standardised(train.targets.double().cpu().numpy()))
        assert wanted.shape == (len(train.features), settings.outputs)
        best: tuple[float, float] | None = None
        for l2, outputs, judged in ridge.leave_one_out(train.features, wanted.__getitem__, None, STRENGTHS_OF_NUMBERS):
            error = float((outputs - wanted[judged]).square().mean())
            if best is None or error < best[0]:
                best = error, l2
        assert best is not None
        weight, bias = ridge.solve(train.features, wanted.__getitem__, best[1]).linear()
        return Solved(weight, bias, f"ridge in closed form, l2 {best[1]:g}")


PART = NumberHead()
