"""A target is a few numbers in the user's units: float64 [samples, numbers], NaN where one is unknown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Audit, Audited
from vitrail.tasks.regression.scale import MEAN, STD

BINS, LEAST = 10, 5
"""Splits are cut so that each tenth of the samples, by the first number, keeps its share. Of few samples there are
fewer parts, of so many samples each: a part of one has none to spare."""
RESERVED = ("path", "error")
"""The columns that tables of answers have of their own."""


class NumberTarget(base.Target):
    plural = contents = "numbers"

    def unknown(self, count: int) -> np.ndarray:
        """Makes [count, 1]: how many numbers there would be, nobody has said."""
        return np.full((count, 1), np.nan)

    def known(self, targets: np.ndarray) -> np.ndarray:
        """Tells which samples have all of their numbers."""
        return np.asarray(np.isfinite(targets).all(axis=1))

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Numbers the quantile bins of the first number from 0; samples without all numbers get -1. Equal values share
        a bin, and the order of the samples does not matter."""
        strata, known = np.full(len(targets), -1, dtype=np.int64), self.known(targets)
        if not known.any():
            return strata
        first = targets[known, 0]
        bins = max(1, min(BINS, len(first) // LEAST))
        edges = np.quantile(first, np.arange(1, bins) / bins, method="inverted_cdf")
        strata[known] = np.searchsorted(edges, first)
        return strata

    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        if not np.isfinite(target).any():
            return ""
        return ", ".join(sorted(f"{name} {value!r}" for name, value in zip(names, target.tolist(), strict=True)))

    def reordered(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        moved = np.empty_like(targets)
        moved[:, places] = targets
        return moved

    def check_names(self, where: str, names: Sequence[str]) -> None:
        if not names:
            raise UserError(f"{where} has no numbers to learn: give a column for each of them")
        doubled = [each for each, count in Counter(names).items() if count > 1]
        if doubled:
            raise UserError(f"{where}: there are two columns of numbers called {doubled[0]!r}; rename one of them")
        taken = [name for name in names if name in RESERVED]
        if taken:
            raise UserError(f"{where}: a column of numbers cannot be called {taken[0]!r}, answers have one; rename it")

    def constants(self, targets: np.ndarray) -> dict[str, Any]:
        """Finds the mean and the deviation of every number; one that is always the same has a deviation of 1."""
        if not len(targets):
            return {}
        mean, std = targets.mean(axis=0), targets.std(axis=0)
        # What is left of equal numbers is rounding, which must not be blown up to a deviation of 1; nor what is too
        # small to divide by.
        constant = (targets == targets[0]).all(axis=0) | (std < np.finfo(np.float64).tiny)
        return {MEAN: np.where(constant, targets[0], mean).tolist(), STD: np.where(constant, 1.0, std).tolist()}

    def counted(self, names: Sequence[str]) -> str:
        return f"{len(names)} number{'s' if len(names) > 1 else ''} a picture ({', '.join(names)})"

    def fewer(self, names: Sequence[str], known: Sequence[str]) -> str:
        return f"the data has {len(names):,} of the model's {len(known):,} numbers: the others are not measured"

    def from_columns(
        self, columns: Mapping[str, Sequence[str]], asked: bool = False
    ) -> tuple[tuple[str, ...], np.ndarray] | None:
        """Reads the columns of a table, cells as text, as targets [rows, columns] with the columns' names; an empty
        cell is NaN. None where a column holds something that is no number, or nothing at all: that is no table of
        numbers, whether or not one was asked for."""
        numbers = [_numbers(cells) for cells in columns.values()]
        found = [each for each in numbers if each is not None]
        if not found or len(found) < len(numbers):
            return None
        return tuple(columns), np.stack(found, axis=1)

    def audit(self, splits: Mapping[str, Audited], names: Sequence[str]) -> Audit:
        """Finds the range of each number, outliers, and numbers that are always the same."""
        from vitrail.tasks.regression.audit import audit

        return audit(splits, names)

    def stored(self, target: np.ndarray) -> list[float | None]:
        """Gives the numbers, None for what is unknown."""
        return [value if np.isfinite(value) else None for value in target.tolist()]

    def restored(self, stored: Sequence[Any], outputs: int) -> np.ndarray:
        for row in stored:
            if not isinstance(row, list) or len(row) != outputs:
                raise ValueError(f"a sample does not have {outputs} numbers")
            if any(value is not None and type(value) not in (int, float) for value in row):
                raise ValueError("a sample has something that is no number")
        values = [[np.nan if value is None else float(value) for value in row] for row in stored]
        return np.array(values, dtype=np.float64).reshape(len(stored), outputs)

    def document(self, target: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        return {"numbers": dict(zip(names, self.stored(target), strict=True))}


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    """Reads a column; None where a cell is no number, or none is one."""
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if not (text := cell.strip()):
            continue
        try:
            values[row] = float(text)
        except ValueError:
            return None
        if "_" in text:  # a number in Python's source, but in nobody's table
            return None
    return values if np.isfinite(values).any() else None


PART = NumberTarget()
