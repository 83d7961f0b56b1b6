"""Estimates how much of its score a changed model loses, where the score is computed from counts over all samples.

The mean IoU of masks is such a score: it belongs to a whole set of pictures and not to one of them. What it loses is
counted: the score of all counts before, less that of all counts after. How surely that is known is found by leaving out
one picture after the other (the jackknife, Tukey 1958): pictures and not pixels are what is drawn at random, since
pixels of one picture say much the same.

The bound is one-sided, as that of `accuracy_drop`: mean + z * standard error over the pictures and one more that stands
for those not seen. That one loses as much as any picture has gained or lost by the change, or, if that is more, as
much as the probabilities of any picture have changed. Without it, pictures on which no pixel changed would promise that
none ever does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.inference.accuracy_drop import CONFIDENCE, BoundedLoss, bound_with_unseen, quantile


@dataclass(frozen=True)
class ScoreDrop(BoundedLoss):
    """The loss of a score, in percentage points."""

    n: int
    """The number of pictures."""
    name: str
    """The name of the score: "mIoU"."""
    before: float
    """The score of the plain model, as a fraction of 1."""
    after: float
    """The score of the changed model."""
    expected: float
    """The loss that was counted."""
    error: float
    """Its standard error."""
    bound: float
    """The upper bound: the true loss is below it with probability `confidence`."""
    confidence: float
    tests: int
    """The number of bounds that hold together with that confidence (Bonferroni's correction)."""
    unseen: float
    """The loss assumed for the additional picture that was not seen, as a fraction of 1."""

    def sentence(self) -> str:
        """Returns one line with the bound and the counted loss."""
        shown = f"at most {self.bound:.2f} points of {self.name} lost with {self.confidence:.0%} confidence"
        return f"{shown} (counted {self.expected:.2f} +- {self.error:.2f} over {self.n:,} pictures)"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields by their names, as a JSON object."""
        return dict(vars(self))


class PairedCounts:
    """The counts of both models for the same pictures; only numbers above 0 are kept."""

    def __init__(self) -> None:
        self.largest_change = 0.0
        """The largest of the changes that were added."""
        self._shape: tuple[int, ...] = ()
        self._rows: tuple[list[_Sparse], list[_Sparse]] = ([], [])

    def __len__(self) -> int:
        return len(self._rows[0])

    def add(self, before: np.ndarray, after: np.ndarray, change: float) -> None:
        """Adds the counts of one picture, int64 of one shape for all, and how much the probabilities in it changed."""
        self._shape = before.shape
        for rows, counts in zip(self._rows, (before, after), strict=True):
            places = np.flatnonzero(counts)
            rows.append((places, counts.ravel()[places]))
        self.largest_change = max(self.largest_change, change)

    def drop(
        self, score: Callable[[np.ndarray], float], name: str, confidence: float = CONFIDENCE, tests: int = 1
    ) -> ScoreDrop:
        """Estimates the loss of a score.

        Args:
            score: Computes it from counts.
            name: Its name.
            confidence: The probability with which the bound shall hold.
            tests: The number of bounds, this one included, that shall all hold with that confidence.
        """
        n = len(self)
        assert n, "there is nothing to compare"
        totals = [self._total(rows) for rows in self._rows]
        first, then = (score(total) for total in totals)
        lost = first - then
        own, left_out = [], []
        for pair in zip(*self._rows, strict=True):
            alone = [self._total([each]) for each in pair]
            own.append(score(alone[0]) - score(alone[1]))
            rest = [score(total - each) for total, each in zip(totals, alone, strict=True)]
            left_out.append(lost if n == 1 else rest[0] - rest[1])
        influence = n * lost - (n - 1) * np.nan_to_num(np.array(left_out), nan=lost)
        spread = float(influence.std(ddof=1)) if n > 1 else 1.0
        unseen = max(self.largest_change, float(np.nan_to_num(np.abs(own)).max()))
        return ScoreDrop(
            n=n,
            name=name,
            before=first,
            after=then,
            expected=100 * lost,
            error=100 * spread / math.sqrt(n),
            bound=100 * bound_with_unseen(lost, spread, n, unseen, quantile(confidence, tests)),
            confidence=confidence,
            tests=tests,
            unseen=unseen,
        )

    def _total(self, rows: "Sequence[_Sparse]") -> np.ndarray:
        """Adds up the counts of pictures."""
        total = np.zeros(math.prod(self._shape), dtype=np.int64)
        for places, counts in rows:
            total[places] += counts
        return total.reshape(self._shape)


_Sparse = tuple[np.ndarray, np.ndarray]
"""The places of the counts above 0, and these counts."""
