"""Measures regression models: mean absolute error, root mean squared error and R2. Counts every sample exactly once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Meaning
from vitrail.tasks.regression.head import LOSS, NumberHead, distances
from vitrail.tasks.regression.scale import TargetScale


class Kept(NamedTuple):
    """The true and the predicted numbers of one sample, for each number that the data has, in the user's units."""

    id: str
    true: tuple[float, ...]
    predicted: tuple[float, ...]
    loss: float
    """The loss of the standardised numbers."""


class Errors(base.Meter):
    """Measures how far off answers are. Everything is computed from the rows at the end, so that neither the size of
    batches nor the number of processes changes a bit of the result.

    The data may have only some of the model's numbers, and in another order: those are measured, in the data's order.
    """

    headline = ("r2", "mae", "rmse")
    chosen_by = ("r2", "mae")

    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        super().__init__(meaning, places)
        self.columns = np.arange(len(meaning.names)) if places is None else places
        """The index of the model's output for each number that is measured."""
        self.scale = TargetScale.of(meaning.constants, len(meaning.names)).part(self.columns)
        self.kept: list[Kept] = []

    @property
    def names(self) -> list[str]:
        """The names of the numbers that are measured, in order."""
        return [self.meaning.names[column] for column in self.columns.tolist()]

    def add(
        self,
        ids: list[str],
        targets: torch.Tensor,
        outputs: torch.Tensor,
        annotations: Sequence[base.Annotation] = (),
    ) -> None:
        known = targets.isfinite().all(dim=1)
        if not bool(known.all()):
            raise UserError(f"{ids[int((~known).nonzero()[0])]}: lacks a number, so no answer can be right or wrong")
        base.refuse_not_finite(ids, outputs)
        given = outputs.float().cpu()[:, torch.from_numpy(self.columns)]
        true = targets.double().cpu()
        wanted = torch.from_numpy(self.scale.standardised(true.numpy())).float()
        kind = self.meaning.constants.get(LOSS, NumberHead.losses[0])
        losses = distances(kind, given, wanted).tolist()
        predicted = self.scale.restored(given.numpy()).tolist()
        self.n += len(ids)
        self.kept += [
            Kept(*row) for row in zip(ids, map(tuple, true.tolist()), map(tuple, predicted), losses, strict=True)
        ]

    def merge(self, parts: "Sequence[Errors]", ids: Sequence[str]) -> None:
        self.n, self.skipped = sum(part.n for part in parts), sum(part.skipped for part in parts)
        self.kept = base.in_order([each for part in parts for each in part.kept], ids)

    def true(self) -> np.ndarray:
        """Returns the targets, float64 [samples, numbers]."""
        return np.array([each.true for each in self.kept]).reshape(self.n, len(self.columns))

    def predicted(self) -> np.ndarray:
        """Returns the answers, float64 [samples, numbers]."""
        return np.array([each.predicted for each in self.kept]).reshape(self.n, len(self.columns))

    def result(self) -> dict[str, Any]:
        """Returns errors in the user's units and R2, each a plain mean over the numbers, and the loss, which is of
        standardised numbers as in training. R2 is None for fewer than two samples."""
        true, predicted = self.true(), self.predicted()
        per_class = {name: self._of_one(true[:, place], predicted[:, place]) for place, name in enumerate(self.names)}
        return {
            "n": self.n,
            "skipped": self.skipped,
            **{key: _mean([each[key] for each in per_class.values()]) for key in ("mae", "rmse", "r2")},
            "loss": math.fsum(each.loss for each in self.kept) / max(self.n, 1),
            "per_class": per_class,
        }

    def _of_one(self, true: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
        """Computes n, mae, rmse and r2 of one number. true, predicted: [samples]."""
        errors, n = predicted - true, max(self.n, 1)
        mae, mse = float(np.abs(errors).sum()) / n, float(np.square(errors).sum()) / n
        return {"n": self.n, "mae": mae, "rmse": math.sqrt(mse), "r2": r2(true, predicted)}

    @classmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Returns the loss, negated: the user chose by it what counts as good. R2 would not do: it is of squares, so
        that a single outlier could decide even for those who chose huber or l1, and too few samples have none."""
        return -result["loss"]

    @classmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        return f"{_r2(result)}, off by {result['mae']:.4g} on average"

    @classmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        return f"{cls.words(result)} of {result['n']:,} {split} images"

    @classmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        return f"{_r2(result)}, mean absolute error {result['mae']:.4g}"

    @classmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        lines = [f"{_errors(result)}   loss {result['loss']:.4f}"]
        each = result["per_class"]
        if len(each) < 2:
            return lines
        width = max(len(names[name]) for name in each)
        lines[0] += ", the mean over the numbers:"
        return lines + [f"  {names[name]:<{width}}  {_errors(facts)}" for name, facts in each.items()]


def r2(true: np.ndarray, predicted: np.ndarray) -> float | None:
    """Computes the coefficient of determination, 1 - squared errors / squared distances from the mean, of numbers
    [samples].

    If all true numbers are equal it is 1 for answers without error and 0 for others. For fewer than two samples it is
    None.
    """
    if len(true) < 2:
        return None
    rest, spread = float(np.square(true - predicted).sum()), float(np.square(true - true.mean()).sum())
    if spread == 0:
        return 1.0 if rest == 0 else 0.0
    return 1 - rest / spread


def _mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _r2(result: Mapping[str, Any]) -> str:
    return "R2 unknown" if result["r2"] is None else f"R2 {result['r2']:.4f}"


def _errors(facts: Mapping[str, Any]) -> str:
    return f"{_r2(facts)}   mean absolute error {facts['mae']:.4g}   root mean squared {facts['rmse']:.4g}"


PART = Errors
