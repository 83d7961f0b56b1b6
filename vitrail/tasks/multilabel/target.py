"""Label targets: int8 [samples, labels], 1 for each label that a sample has, else 0; all -1 if its labels are not
known."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.audits import Audit, CheckedSplit
from vitrail.tasks.base import BadCell, ReadColumns

_UNKNOWN = -1
"""Fills the row of a sample whose labels are not known."""
JOIN = "|"
"""Separates the labels of one picture, in tables that are read and in tables that are written."""
_TRUTHS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "": _UNKNOWN}
"""How cells of columns of 0 and 1 are read."""


class LabelTarget(base.Target):
    """Any number of labels for each sample."""

    precedence = 0
    plural = "labels"

    def unknown(self, count: int) -> np.ndarray:
        return np.full((count, 1), _UNKNOWN, dtype=np.int8)

    def known(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray((targets >= 0).all(axis=1))

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Returns the rarest label of each sample, the first of equally rare ones; the number of labels for a sample
        that has none, and -1 for one whose labels are not known."""
        known = self.known(targets)
        counts = (targets[known] > 0).sum(axis=0)
        rarity = np.where(targets > 0, counts, len(targets) + 1)
        found = np.where((targets > 0).any(axis=1), rarity.argmin(axis=1), targets.shape[1])
        return np.where(known, found, _UNKNOWN).astype(np.int64)

    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Joins the labels of a sample, sorted; a single "|" says that the sample is known to have none."""
        if (target < 0).any():
            return ""
        return JOIN.join(sorted(names[index] for index in np.flatnonzero(target).tolist())) or JOIN

    def check_names(self, where: str, names: Sequence[str]) -> None:
        if not names:
            raise UserError(f"{where} has no labels, so there is nothing to learn")
        doubled = base.first_repeated(names)
        if doubled is not None:
            raise UserError(f"{where}: the label {doubled!r} occurs more than once")
        joined = [each for each in names if JOIN in each]
        if joined:
            raise UserError(f"{where}: the label {joined[0]!r} has a {JOIN!r} in it, which stands between labels")

    def from_columns(self, columns: Mapping[str, Sequence[str]], requested: bool = False) -> ReadColumns | None:
        """Reads labels from one column or several.

        In a single column labels are joined by "|", and an empty cell is a picture without labels. Several columns, one
        for each label, hold 0 or 1, and a row of empty cells is a picture whose labels are not known.
        """
        flags = all(cell.strip().lower() in _TRUTHS for cells in columns.values() for cell in cells)
        if flags and (len(columns) > 1 or requested):
            return _flags(columns)
        if len(columns) != 1:
            return None
        (cells,) = columns.values()
        return _joined(cells) if requested or any(JOIN in cell for cell in cells) else None

    def from_folders(self, folders: Sequence[Sequence[int]], names: Sequence[str]) -> np.ndarray:
        targets = np.zeros((len(folders), len(names)), dtype=np.int8)
        for row, places in enumerate(folders):
            targets[row, list(places)] = 1
        return targets

    def audit(self, splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
        """Counts the pictures of each label; finds labels of one picture or none, and pictures without labels."""
        from vitrail.tasks.multilabel.audit import audit

        return audit(splits, names)

    def stored(self, target: np.ndarray) -> list[int] | None:
        """Returns the indices of the labels; None if they are not known."""
        return None if (target < 0).any() else np.flatnonzero(target).tolist()

    def restored(self, stored: Sequence[Any], outputs: int) -> np.ndarray:
        targets = np.zeros((len(stored), outputs), dtype=np.int8)
        for row, places in enumerate(stored):
            if places is None:
                targets[row] = _UNKNOWN
                continue
            if not isinstance(places, list) or any(type(place) is not int for place in places):
                raise ValueError("a sample's labels are not a list of places")
            if places and not 0 <= min(places) <= max(places) < outputs:
                raise ValueError(f"a sample has a label that is none of the {outputs}")
            targets[row, places] = 1
        return targets

    def document(self, target: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        places = self.stored(target)
        return {"labels": None if places is None else [names[place] for place in places]}


def _flags(columns: Mapping[str, Sequence[str]]) -> ReadColumns:
    """Reads columns of 0 and 1, one for each label."""
    names = tuple(columns)
    rows = [[_TRUTHS[cell.strip().lower()] for cell in columns[name]] for name in names]
    targets = np.array(rows, dtype=np.int8).T
    partly = (targets < 0).any(axis=1) & ~(targets < 0).all(axis=1)
    if partly.any():
        row = int(partly.argmax())
        column = names[int((targets[row] < 0).argmax())]
        raise BadCell(column, row, "is empty while others of its row are not: write 0 or 1, or leave the row empty")
    return names, np.ascontiguousarray(targets)


def _joined(cells: Sequence[str]) -> ReadColumns:
    """Reads a column of labels that are joined by "|"."""
    sets = [{part.strip() for part in cell.split(JOIN) if part.strip()} for cell in cells]
    names = base.sorted_classes(set().union(*sets))
    places = {name: place for place, name in enumerate(names)}
    targets = np.zeros((len(cells), len(names)), dtype=np.int8)
    for row, labels in enumerate(sets):
        targets[row, [places[label] for label in labels]] = 1
    return names, targets


PART = LabelTarget()
