"""Class targets: int64 [samples], the index of the class in the list of names, or -1 if it is not known."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.audits import Audit, CheckedSplit
from vitrail.tasks.base import BadCell, ReadColumns

UNLABELLED = -1
"""The target of a sample without a class."""
COLUMN_NAMES = ("label", "class", "class_name", "category", "cls")
"""Columns with these names hold classes even if their cells are numbers."""


class ClassTarget(base.Target):
    """A class for each sample."""

    precedence = 1
    single_class = True

    def unknown(self, count: int) -> np.ndarray:
        return np.full(count, UNLABELLED, dtype=np.int64)

    def known(self, targets: np.ndarray) -> np.ndarray:
        return targets >= 0

    def strata(self, targets: np.ndarray) -> np.ndarray:
        return targets

    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        return "" if target == UNLABELLED else names[int(target)]

    def reordered(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.append(places, UNLABELLED)[targets]  # -1 picks the last entry, which stays -1

    def check_names(self, where: str, names: Sequence[str]) -> None:
        doubled = base.first_repeated(names)
        if doubled is not None:
            raise UserError(f"{where}: the class name {doubled!r} occurs more than once")
        if len(names) < 2:
            have = f"only one class, {names[0]!r}" if names else "no classes"
            raise UserError(f"{where} has {have}; telling classes apart needs at least two")

    def from_columns(self, columns: Mapping[str, Sequence[str]], requested: bool = False) -> ReadColumns | None:
        """Reads a single column of class names. If all its cells are numbers, the user must have named the task, or the
        column must have one of COLUMN_NAMES."""
        if len(columns) != 1:
            return None
        ((column, cells),) = columns.items()
        if not requested and column.lower() not in COLUMN_NAMES and all(_is_number(cell) for cell in cells):
            return None
        named = [cell.strip() for cell in cells]
        if "" in named:
            raise BadCell(column, named.index(""), "is empty: write the picture's class, or take the row out")
        names = base.sorted_classes(set(named))
        places = {name: place for place, name in enumerate(names)}
        return names, np.array([places[name] for name in named], dtype=np.int64)

    def labels(self, targets: np.ndarray) -> np.ndarray:
        return targets

    def audit(self, splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
        counts = {
            split: np.bincount(each.targets[each.targets >= 0], minlength=len(names)) for split, each in splits.items()
        }
        balance = {
            name: {split: int(count[place]) for split, count in counts.items()} for place, name in enumerate(names)
        }
        totals = [sum(each.values()) for each in balance.values()]
        told = f"{len(totals):,}  (of {min(totals):,} to {max(totals):,} images)" if totals else "none"
        return Audit(balance, lines=[(self.plural, told)])


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


PART = ClassTarget()
