"""Number targets: float64 [samples, numbers] in the user's units, NaN for a number that is not known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.audits import Audit, CheckedSplit
from vitrail.tasks.regression.scale import MEAN, STD

BINS, LEAST = 10, 5
"""A data set is split so that each of 10 quantile bins of the first number has its share in each split. With fewer than
50 samples there are fewer bins, so that each has at least 5 samples."""
RESERVED = ("path", "error")
"""Names that columns of numbers cannot have, since tables of answers have columns of these names already."""


class NumberTarget(base.Target):
    """One or several numbers for each sample."""

    plural = contents = "numbers"

    def unknown(self, count: int) -> np.ndarray:
        """Makes [count, 1] of NaN: how many numbers there would be is not known either."""
        return np.full((count, 1), np.nan)

    def known(self, targets: np.ndarray) -> np.ndarray:
        """Returns which samples have all of their numbers."""
        return np.asarray(np.isfinite(targets).all(axis=1))

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Returns the quantile bin of each sample's first number, from 0; -1 for samples that lack a number. Equal
        values share a bin, and the order of the samples makes no difference."""
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

    def check_names(self, where: str, names: Sequence[str]) -> None:
        if not names:
            raise UserError(f"{where} has no numbers to learn: give a column for each of them")
        doubled = base.first_repeated(names)
        if doubled is not None:
            raise UserError(f"{where}: there are two columns of numbers called {doubled!r}; rename one of them")
        taken = [name for name in names if name in RESERVED]
        if taken:
            raise UserError(f"{where}: a column of numbers cannot be called {taken[0]!r}, answers have one; rename it")

    def constants(self, targets: np.ndarray) -> dict[str, Any]:
        """Finds the mean and the standard deviation of every number; the deviation of one that is always the same is
        set to 1."""
        if not len(targets):
            return {}
        mean, std = targets.mean(axis=0), targets.std(axis=0)
        # The deviation of equal numbers is rounding error, and a tiny one cannot be divided by: neither may be scaled
        # up to 1.
        constant = (targets == targets[0]).all(axis=0) | (std < np.finfo(np.float64).tiny)
        return {MEAN: np.where(constant, targets[0], mean).tolist(), STD: np.where(constant, 1.0, std).tolist()}

    def counted(self, names: Sequence[str]) -> str:
        return f"{len(names)} number{'s' if len(names) > 1 else ''} a picture ({', '.join(names)})"

    def fewer(self, names: Sequence[str], known: Sequence[str]) -> str:
        return f"the data has {len(names):,} of the model's {len(known):,} numbers: the others are not measured"

    def from_columns(
        self, columns: Mapping[str, Sequence[str]], requested: bool = False
    ) -> tuple[tuple[str, ...], np.ndarray] | None:
        """Reads columns of numbers; an empty cell is NaN. Returns None if a column is empty or has a cell that is not a
        number, whether or not the user has named the task."""
        numbers = [_numbers(cells) for cells in columns.values()]
        found = [each for each in numbers if each is not None]
        if not found or len(found) < len(numbers):
            return None
        return tuple(columns), np.stack(found, axis=1)

    def audit(self, splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
        """Finds the range of each number, outliers, and numbers that are always the same."""
        from vitrail.tasks.regression.audit import audit

        return audit(splits, names)

    def stored(self, target: np.ndarray) -> list[float | None]:
        """Returns the numbers, None for what is not known."""
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
    """Reads a column as float64 [rows]; returns None if a cell is not a number, or if all are empty."""
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if not (text := cell.strip()):
            continue
        try:
            values[row] = float(text)
        except ValueError:
            return None
        if "_" in text:  # float() reads "1_000" as Python does, but in a table it is not a number
            return None
    return values if np.isfinite(values).any() else None


PART = NumberTarget()
