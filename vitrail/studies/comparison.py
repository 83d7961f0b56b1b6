"""Tests whether two points of a study differ, rightly even with two or three seeds.

A difference of two means can be due to chance in several ways, and each is weighed by how well it is known:

- the seeds of each point: their variance is estimated from `seeds` values, so it is weighed by Student's t with
  `seeds - 1` degrees of freedom;
- the test images: all seeds share them, so their effect does not show in the spread of the seeds. An accuracy p on n
  images has the variance p (1 - p) / n, weighed by the normal distribution.

A difference counts if its square is larger than the sum of (quantile^2 x variance) over these parts. This is Welch's t
with Banerjee's rule (1961) in place of Welch's estimate of the degrees of freedom, which for so few seeds is up to
several times too optimistic at the levels that Holm's method needs. False alarms are at most as frequent as the level
says, whatever the variances are, because the distribution of a squared normal number is concave.

The test is conservative in two more ways. Two models that are right and wrong on the same images differ by less chance
than is counted here, where the noise of the test images is taken as independent for each. And part of that noise, the
effect of each seed on each image, is in the spread of the seeds too.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Factors = dict[str, str | int | float]
"""The named values in which rows differ."""

LEVEL = 0.05
"""The probability that a study claims any difference that does not exist."""
MARGIN = 0.01
"""Points count as alike if the interval of their difference lies within one percentage point of 0."""
ABOVE, BELOW, ALIKE, UNTOLD = "above", "below", "within a point of", "not told apart from"


@dataclass(frozen=True)
class Point:
    """The rows that differ only in the seed."""

    factors: Factors
    mean: float
    """The mean accuracy over the seeds."""
    spread: float | None
    """The standard deviation over the seeds; None for a single seed, which has none."""
    seeds: int
    """The number of seeds."""
    n: int
    """The number of test images, the same for every seed."""

    @staticmethod
    def of(factors: Factors, values: Sequence[float], n: int) -> "Point":
        """Returns the point of these accuracies, one for each seed, on n test images."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Point(factors, statistics.fmean(values), spread, len(values), n)

    @property
    def test_variance(self) -> float:
        """Computes the variance of the accuracy due to the choice of test images. Two right and two wrong answers are
        added, so that an accuracy of 1 does not count as certain."""
        share = (self.mean * self.n + 2) / (self.n + 4)
        return share * (1 - share) / self.n


@dataclass(frozen=True)
class Contrast:
    """A sum of means, each times its weight; the weights add up to 0."""

    terms: tuple[tuple[float, Point], ...]
    """The weights and their points."""

    @staticmethod
    def between(one: Point, other: Point) -> "Contrast":
        """Returns the difference of two points."""
        return Contrast(((1.0, one), (-1.0, other)))

    def minus(self, other: "Contrast") -> "Contrast":
        """Returns the difference of two contrasts. They must have no point in common, since it would count twice."""
        return Contrast(self.terms + tuple((-weight, point) for weight, point in other.terms))

    @property
    def difference(self) -> float:
        """Returns the weighted sum of the means."""
        return sum(weight * point.mean for weight, point in self.terms)

    def half_width(self, level: float) -> float | None:
        """Returns half of the interval that misses the true difference with a probability of at most `level`; None if a
        point has one seed."""
        total = 0.0
        for weight, point in self.terms:
            if point.spread is None:
                return None
            total += (student_t(level, point.seeds - 1) * weight * point.spread) ** 2 / point.seeds
            total += (normal(level) * weight) ** 2 * point.test_variance
        return math.sqrt(total)


@dataclass(frozen=True)
class Comparison:
    """The result of testing a contrast together with the others of its study."""

    difference: float
    half_width: float | None
    """Half of the width of the interval; None if a point has one seed."""

    @property
    def low(self) -> float | None:
        """Returns the lower end of the interval; None with one seed."""
        return None if self.half_width is None else self.difference - self.half_width

    @property
    def high(self) -> float | None:
        """Returns the upper end of the interval; None with one seed."""
        return None if self.half_width is None else self.difference + self.half_width

    @property
    def word(self) -> str:
        """Returns the verdict: ABOVE, BELOW, ALIKE or UNTOLD."""
        if self.low is None or self.high is None:
            return UNTOLD
        if self.low > 0 or self.high < 0:
            return ABOVE if self.low > 0 else BELOW
        return ALIKE if self.low >= -MARGIN and self.high <= MARGIN else UNTOLD

    @property
    def points(self) -> str:
        """Returns the difference in percentage points with its interval, as text."""
        if self.low is None or self.high is None:
            return f"{100 * self.difference:+.1f} points (one seed, no interval)"
        return f"{100 * self.difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    def to_json(self) -> dict[str, Any]:
        """Returns the difference, its interval and the verdict as a JSON object."""
        return {"difference": self.difference, "low": self.low, "high": self.high, "verdict": self.word}


def compare(contrasts: Mapping[str, Contrast], level: float = LEVEL) -> dict[str, Comparison]:
    """Tests all contrasts of a study together by Holm's method.

    The probability that any difference is claimed where there is none is at most `level`. As long as contrasts differ
    from 0 at `level` divided by the number of those left, they are decided, and fewer are left. Each interval is of the
    level at which its contrast was judged, so it excludes 0 exactly if the contrast counts as different from 0.
    """
    left, found = dict(contrasts), {}
    while left:
        judged = {name: Comparison(each.difference, each.half_width(level / len(left))) for name, each in left.items()}
        decided = {name: each for name, each in judged.items() if each.word in (ABOVE, BELOW)}
        found |= decided or judged
        left = {name: each for name, each in left.items() if name not in found}
    return {name: found[name] for name in contrasts}


def verdict(expected: str, *words: str) -> str:
    """Says whether a finding holds, if it expects one verdict of every comparison."""
    if any(word not in (expected, UNTOLD) for word in words):
        return "does not hold"
    return "cannot be told" if UNTOLD in words else "holds"


@cache
def normal(level: float) -> float:
    """Returns what the absolute value of a standard normal number exceeds with the probability `level`."""
    return statistics.NormalDist().inv_cdf(1 - level / 2)


@cache
def student_t(level: float, freedom: int) -> float:
    """Returns what the absolute value of Student's t exceeds with the probability `level`, by bisection."""
    low, high = 0.0, 1.0
    while _outside(high, freedom) > level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _outside(middle, freedom) > level else (low, middle)
    return high


def _outside(t: float, freedom: int) -> float:
    """Computes the probability that Student's t is further from 0 than `t`.

    For whole degrees of freedom this is a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (power - 1) / power * cosine**2
    return 1 - (2 / math.pi * (angle + sine * total) if odd else sine * total)
