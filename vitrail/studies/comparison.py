"""Whether two points of a study differ: a test that is right with two or three seeds.

What chance does to a difference of two means has several parts, and each is weighed by how well it is known:

- the seeds of each point: their variance is estimated from `seeds` values, so it is weighed by Student's t with
  `seeds - 1` degrees of freedom;
- the test images: all seeds share them, so their chance does not show in the spread of the seeds. An accuracy p on n
  images has the variance p (1 - p) / n, weighed by the normal distribution.

A difference counts where its square is larger than the sum of (quantile^2 x variance) over these parts: Welch's t, with
Banerjee's rule (1961) in place of Welch's estimate of the degrees of freedom, which with so few seeds is up to several
times too optimistic at the levels that Holm's method asks for. A false alarm is at most as frequent as asked for,
whatever the variances are, because the distribution of a squared normal number is concave.

It errs on the safe side in two more ways. Two models that are right and wrong on the same images differ by less chance
than is counted here, where the noise of the test images is taken as if each had its own. And part of that noise, what
each seed does with each image, is in the spread of the seeds too.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Factors = dict[str, str | int | float]

LEVEL = 0.05
"""The chance that a study tells any two points apart that do not differ."""
MARGIN = 0.01
"""Points whose interval lies within one percentage point of 0 are called alike."""
ABOVE, BELOW, ALIKE, UNTOLD = "above", "below", "within a point of", "not told apart from"


@dataclass(frozen=True)
class Point:
    """The rows that differ in the seed alone."""

    factors: Factors
    mean: float
    """Of the accuracies."""
    spread: float | None
    """The standard deviation over the seeds; None of one seed, which says nothing of it."""
    seeds: int
    n: int
    """Test images, the same for every seed."""

    @staticmethod
    def of(factors: Factors, values: Sequence[float], n: int) -> "Point":
        """The point of one accuracy a seed."""
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Point(factors, statistics.fmean(values), spread, len(values), n)

    @property
    def test_variance(self) -> float:
        """Of the accuracy by the chance of the test images; two right and two wrong are added, so that an accuracy of
        1 is not taken for certain."""
        share = (self.mean * self.n + 2) / (self.n + 4)
        return share * (1 - share) / self.n


@dataclass(frozen=True)
class Contrast:
    """A sum of means, each times its weight; the weights add up to 0."""

    terms: tuple[tuple[float, Point], ...]

    @staticmethod
    def between(one: Point, other: Point) -> "Contrast":
        return Contrast(((1.0, one), (-1.0, other)))

    def minus(self, other: "Contrast") -> "Contrast":
        """Of other points: what both have in common would be counted twice."""
        return Contrast(self.terms + tuple((-weight, point) for weight, point in other.terms))

    @property
    def difference(self) -> float:
        return sum(weight * point.mean for weight, point in self.terms)

    def half_width(self, level: float) -> float | None:
        """Half of the interval that misses the true difference with a chance of at most `level`; None where a point
        has one seed."""
        total = 0.0
        for weight, point in self.terms:
            if point.spread is None:
                return None
            total += (student_t(level, point.seeds - 1) * weight * point.spread) ** 2 / point.seeds
            total += (normal(level) * weight) ** 2 * point.test_variance
        return math.sqrt(total)


@dataclass(frozen=True)
class Comparison:
    """What is known of a contrast, beside the others of its study."""

    difference: float
    half_width: float | None
    """None where a point has one seed."""

    @property
    def low(self) -> float | None:
        return None if self.half_width is None else self.difference - self.half_width

    @property
    def high(self) -> float | None:
        return None if self.half_width is None else self.difference + self.half_width

    @property
    def word(self) -> str:
        if self.low is None or self.high is None:
            return UNTOLD
        if self.low > 0 or self.high < 0:
            return ABOVE if self.low > 0 else BELOW
        return ALIKE if self.low >= -MARGIN and self.high <= MARGIN else UNTOLD

    @property
    def points(self) -> str:
        """The difference in percentage points, with its interval."""
        if self.low is None or self.high is None:
            return f"{100 * self.difference:+.1f} points (one seed, no interval)"
        return f"{100 * self.difference:+.1f} points [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"

    def to_json(self) -> dict[str, Any]:
        return {"difference": self.difference, "low": self.low, "high": self.high, "verdict": self.word}


def compare(contrasts: Mapping[str, Contrast], level: float = LEVEL) -> dict[str, Comparison]:
    """Compares all of a study's contrasts together, by Holm's method: the chance that any difference is told that is
    none is at most `level`.

    As long as some are told apart at `level` divided by how many are left, those are done with, and fewer are left.
    Each interval is of the level at which its contrast was judged, so that it leaves out 0 if and only if the contrast
    is told from 0.
    """
    left, found = dict(contrasts), {}
    while left:
        judged = {name: Comparison(each.difference, each.half_width(level / len(left))) for name, each in left.items()}
        told = {name: each for name, each in judged.items() if each.word in (ABOVE, BELOW)}
        found |= told or judged
        left = {name: each for name, each in left.items() if name not in found}
    return {name: found[name] for name in contrasts}


def verdict(expected: str, *words: str) -> str:
    """What becomes of a finding that expects one word of every comparison."""
    if any(word not in (expected, UNTOLD) for word in words):
        return "does not hold"
    return "cannot be told" if UNTOLD in words else "holds"


@cache
def normal(level: float) -> float:
    """What the absolute value of a standard normal number exceeds with the chance `level`."""
    return statistics.NormalDist().inv_cdf(1 - level / 2)


@cache
def student_t(level: float, freedom: int) -> float:
    """What the absolute value of Student's t exceeds with the chance `level`, by bisection."""
    low, high = 0.0, 1.0
    while _outside(high, freedom) > level:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _outside(middle, freedom) > level else (low, middle)
    return high


def _outside(t: float, freedom: int) -> float:
    """The chance that Student's t is further from 0 than `t`: the finite sums for whole degrees of freedom
    (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= (power - 1) / power * cosine**2
    return 1 - (2 / math.pi * (angle + sine * total) if odd else sine * total)
