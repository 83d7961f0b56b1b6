"""Mean absolute error, root mean squared error and R2 in the user's units, every sample counted exactly once."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Meaning
from vitrail.tasks.regression.head import LOSS, NumberHead, distances
from vitrail.tasks.regression.scale import Scale


class Kept(NamedTuple):
    """What was asked and said of one sample; a number for each that the data has."""

    id: str
    true: tuple[float, ...]
    said: tuple[float, ...]
    """In the user's units, both."""
    loss: float


class Errors(base.Meter):
    """How far off answers are. All is computed from the rows at the end, so that it does not depend on batches or
    processes by a bit.

    The data may have some of the model's numbers, in another order: those are measured, in the data's order.
    """

    headline = ("r2", "mae", "rmse")
    chosen_by = ("r2", "mae")

    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        super().__init__(meaning, places)
        self.columns = np.arange(len(meaning.names)) if places is None else places
        """The model's output for each number that is measured."""
        self.scale = Scale.of(meaning.constants, len(meaning.names)).part(self.columns)
        self.kept: list[Kept] = []

    @property
    def names(self) -> list[str]:
        """Of what is measured, in order."""
        return [self.meaning.names[column] for column in self.columns.tolist()]

    def add(self, ids: list[str], targets: torch.Tensor, outputs: torch.Tensor) -> None:
        known = targets.isfinite().all(dim=1)
        if not bool(known.all()):
            raise UserError(f"{ids[int((~known).nonzero()[0])]}: lacks a number, so no answer can be right or wrong")
        base.refuse_not_finite(ids, outputs)
        given = outputs.float().cpu()[:, torch.from_numpy(self.columns)]
        true = targets.double().cpu()
        wanted = torch.from_numpy(self.scale.standardised(true.numpy())).float()
        kind = self.meaning.constants.get(LOSS, NumberHead.losses[0])
        losses = distances(kind, given, wanted).tolist()
        said = self.scale.restored(given.numpy()).tolist()
        self.n += len(ids)
        self.kept += [Kept(*row) for row in zip(ids, map(tuple, true.tolist()), map(tuple, said), losses, strict=True)]

    def merge(self, parts: "Sequence[Errors]", ids: Sequence[str]) -> None:
        self.n, self.skipped = sum(part.n for part in parts), sum(part.skipped for part in parts)
        self.kept = base.in_order([each for part in parts for each in part.kept], ids)

    def true(self) -> np.ndarray:
        """Gives the targets, float64 [samples, numbers]."""
        return np.array([each.true for each in self.kept]).reshape(self.n, len(self.columns))

    def said(self) -> np.ndarray:
        """Gives the answers, float64 [samples, numbers]."""
        return np.array([each.said for each in self.kept]).reshape(self.n, len(self.columns))

    def result(self) -> dict[str, Any]:
        """Gives errors in the user's units and R2, each the plain mean over the numbers; `loss` is that of training, of
        standardised numbers. R2 is None of fewer than two samples."""
        true, said = self.true(), self.said()
        per_class = {name: self._of_one(true[:, place], said[:, place]) for place, name in enumerate(self.names)}
        return {
            "n": self.n,
            "skipped": self.skipped,
            **{key: _mean([each[key] for each in per_class.values()]) for key in ("mae", "rmse", "r2")},
            "loss": math.fsum(each.loss for each in self.kept) / max(self.n, 1),
            "per_class": per_class,
        }

    def _of_one(self, true: np.ndarray, said: np.ndarray) -> dict[str, Any]:
        errors, n = said - true, max(self.n, 1)
        mae, mse = float(np.abs(errors).sum()) / n, float(np.square(errors).sum()) / n
        return {"n": self.n, "mae": mae, "rmse": math.sqrt(mse), "r2": r2(true, said)}

    @classmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Gives the loss, negated: what was asked for by choosing it. R2 is of squares, so one outlier would choose
        the model even of those who asked for huber or l1; and few samples have no R2."""
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
        said = [f"{_errors(result)}   loss {result['loss']:.4f}"]
        each = result["per_class"]
        if len(each) < 2:
            return said
        width = max(len(names[name]) for name in each)
        said[0] += ", the mean over the numbers:"
        return said + [f"  {names[name]:<{width}}  {_errors(facts)}" for name, facts in each.items()]


def r2(true: np.ndarray, said: np.ndarray) -> float | None:
    """Computes the coefficient of determination of numbers [samples]: 1 less the squared errors by the squared
    distances from the mean. Where all true numbers are equal, 1 for answers without error and 0 for others; of fewer
    than two samples there is none."""
    if len(true) < 2:
        return None
    rest, spread = float(np.square(true - said).sum()), float(np.square(true - true.mean()).sum())
    if spread == 0:
        return 1.0 if rest == 0 else 0.0
    return 1 - rest / spread


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _r2(result: Mapping[str, Any]) -> str:
    return "R2 unknown" if result["r2"] is None else f"R2 {result['r2']:.4f}"


def _errors(facts: Mapping[str, Any]) -> str:
    return f"{_r2(facts)}   mean absolute error {facts['mae']:.4g}   root mean squared {facts['rmse']:.4g}"


PART = Errors
