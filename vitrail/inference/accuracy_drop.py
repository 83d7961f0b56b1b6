"""Estimates how much accuracy a changed model loses, with an upper bound that may be relied on.

Counting right answers before and after the change is simple but imprecise: on 500 pictures, the difference of two
similar models has a standard error of half a point or more. The expected drop is more precise. Where both models give
the same answer, a picture loses nothing, whatever its label. Where they differ, it loses on average the probability of
the plain model's answer less the probability of the changed model's answer. Both probabilities are the plain model's
own, calibrated by one temperature (Guo et al., 2017) that is fitted to the labelled pictures. Pictures without labels
count too. The counted difference is reported as well, as a check of the calibration.

The bound is one-sided: mean + z * standard error, taken over the pictures and one additional picture that stands for
those not seen. That one loses as much as the largest change of scores that was measured could cost. Without it, a
handful of pictures on which no answer happened to change would give a bound of 0; with it, the bound is close to the
rule of three.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from vitrail.tasks.classification.top1 import best

CONFIDENCE = 0.95
"""The probability with which a bound holds, unless another is given."""
RIVALS = 4
"""The number of classes, next to the plain model's answer, whose change of score is measured."""
_DOUBT = NormalDist().inv_cdf(0.99)
"""The calibration is rejected if the counted drop is this many standard errors above the expected drop."""
_TEMPERATURES = (0.05, 20.0)
"""The range in which the temperature is searched."""


class BoundedLoss(ABC):
    """A loss in percentage points that has an upper bound."""

    n: int
    expected: float
    error: float
    bound: float
    confidence: float
    tests: int
    unseen: float

    def within(self, max_drop: float) -> bool:
        """Tells whether the bound is at most `max_drop` points, to the two digits that are shown."""
        return self.bound <= max_drop + 0.005  # half of the last digit that is shown

    def pictures_needed(self, max_drop: float) -> int | None:
        """Computes how many pictures like these would bring the bound below `max_drop` points; None if no number
        would."""
        if self.expected >= max_drop:
            return None
        spread, z = self.error / 100 * math.sqrt(self.n), quantile(self.confidence, self.tests)
        low, high = 1, 1
        while bound_with_unseen(self.expected / 100, spread, high, self.unseen, z) * 100 > max_drop:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = bound_with_unseen(self.expected / 100, spread, middle, self.unseen, z) * 100 <= max_drop
            low, high = (low, middle) if fits else (middle, high)
        return high

    @abstractmethod
    def sentence(self) -> str:
        """Returns one line with the bound and what it was computed from."""


@dataclass(frozen=True)
class Drop(BoundedLoss):
    """The loss of top-1 accuracy, in percentage points."""

    n: int
    """The number of pictures, with and without labels."""
    labelled: int
    """The number of pictures with labels."""
    expected: float
    """The expected drop, from the calibrated probabilities."""
    error: float
    """The standard error of `expected`."""
    bound: float
    """The upper bound: the true drop is below it with probability `confidence`."""
    counted: float
    """Right answers before less right answers after, over the labelled pictures."""
    counted_error: float
    """The standard error of `counted`."""
    confidence: float
    tests: int
    """The number of bounds that hold together with that confidence (Bonferroni's correction)."""
    temperature: float
    """The temperature that calibrates the plain model's logits."""
    unseen: float
    """The loss assumed for the additional picture that was not seen, as a fraction of 1."""
    calibrated: bool
    """False if the counted drop contradicts the expected one; the bound is then that of the counted drop."""

    def sentence(self) -> str:
        """Returns one line with the bound, the expected drop and the counted drop."""
        shown = f"at most {self.bound:.2f} points lost with {self.confidence:.0%} confidence"
        expected = f"expected {self.expected:.2f} +- {self.error:.2f} over {self.n:,} pictures"
        counted = f"counted {self.counted:.2f} +- {self.counted_error:.2f} over {self.labelled:,} with labels"
        doubt = "" if self.calibrated else "; the counted loss contradicts the expected one, so it alone is believed"
        return f"{shown} ({expected}; {counted}{doubt})"

    def to_json(self) -> dict[str, Any]:
        """Returns all fields by their names, as a JSON object."""
        return dict(vars(self))


def estimate_drop(
    before: np.ndarray, after: np.ndarray, labels: np.ndarray, confidence: float = CONFIDENCE, tests: int = 1
) -> Drop:
    """Estimates how much accuracy is lost from one model to another on the same pictures.

    Args:
        before: Logits of the plain model, [pictures, classes].
        after: Logits of the changed model, [pictures, classes].
        labels: The class of each picture, [pictures]; -1 where it is not known. At least one must be known.
        confidence: The probability with which the bound shall hold.
        tests: The number of bounds, this one included, that shall all hold with that confidence.
    """
    known = labels >= 0
    assert known.any(), "the temperature is fitted to labels"
    z = quantile(confidence, tests)
    temperature, cold = fit_temperature(before[known], labels[known], z)
    n, first, then = len(before), best(before), best(after)
    losses = _losses(before, first, then, temperature)
    # The bound takes the lowest temperature that the labels allow: the more certain the model, the more a change costs.
    cautious, unseen = _losses(before, first, then, cold), _largest_loss(before, after, first, cold)
    bound = bound_with_unseen(cautious.mean(), cautious.std(), n, unseen, z)
    counted = (first[known] == labels[known]).astype(float) - (then[known] == labels[known])
    doubts = counted - losses[known]
    calibrated = doubts.mean() <= _DOUBT * doubts.std() / math.sqrt(len(doubts)) + 1e-12
    if not calibrated:
        bound = max(bound, bound_with_unseen(counted.mean(), counted.std(), len(counted), 1.0, z))
    return Drop(
        n=n,
        labelled=int(known.sum()),
        expected=100 * float(losses.mean()),
        error=100 * float(losses.std()) / math.sqrt(n),
        bound=100 * float(bound),
        counted=100 * float(counted.mean()),
        counted_error=100 * float(counted.std()) / math.sqrt(len(counted)),
        confidence=confidence,
        tests=tests,
        temperature=temperature,
        unseen=unseen,
        calibrated=bool(calibrated),
    )


def fit_temperature(logits: np.ndarray, labels: np.ndarray, z: float) -> tuple[float, float]:
    """Fits the temperature T with which softmax(logits / T) predicts the labels best.

    Returns T, and the lowest temperature within `z` standard errors of it, by the likelihood.
    """

    def cost(temperature: float) -> float:
        """Computes the cross-entropy of the labels, summed over the pictures."""
        scaled = logits / temperature
        return float((_log_sum(scaled) - scaled[np.arange(len(labels)), labels]).sum())

    logits = logits.astype(np.float64)
    low, high = (math.log(each) for each in _TEMPERATURES)
    best = _lowest(lambda power: cost(math.exp(power)), low, high)
    limit = cost(math.exp(best)) + z * z / 2
    cold, warm = low, best  # the cost falls from `low` to `best`: find where it passes the limit
    if cost(math.exp(low)) > limit:
        for _ in range(20):
            middle = (cold + warm) / 2
            cold, warm = (middle, warm) if cost(math.exp(middle)) > limit else (cold, middle)
    else:
        warm = low
    return math.exp(best), math.exp(warm)


def quantile(confidence: float, tests: int) -> float:
    """Computes the z of a one-sided bound, with Bonferroni's correction for `tests` bounds."""
    return NormalDist().inv_cdf(1 - (1 - confidence) / tests)


def _lowest(cost: Callable[[float], float], low: float, high: float, steps: int = 30) -> float:
    """Finds where a function with a single minimum is lowest, by golden-section search."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(steps):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = cost(right)
    return (low + high) / 2


def _losses(logits: np.ndarray, first: np.ndarray, then: np.ndarray, temperature: float) -> np.ndarray:
    """Computes what each picture loses when the answer `then` replaces the answer `first`: at least 0, [pictures]."""
    losses = np.zeros(len(logits))
    differ = np.flatnonzero(first != then)
    scaled = logits[differ].astype(np.float64) / temperature
    total, place = _log_sum(scaled), np.arange(len(differ))
    losses[differ] = np.exp(scaled[place, first[differ]] - total) - np.exp(scaled[place, then[differ]] - total)
    return losses


def _largest_loss(before: np.ndarray, after: np.ndarray, first: np.ndarray, temperature: float) -> float:
    """Computes how much a picture could lose by the largest change seen between its answer's score and a rival's.

    An answer is replaced only if it leads by less than the change. Of two classes whose calibrated logits differ by m,
    the first has tanh(m / 2) more of their joint probability than the second.
    """
    change = (after - before).astype(np.float64)
    count = min(RIVALS + 1, before.shape[1])
    rivals = np.argpartition(-before, count - 1, axis=1)[:, :count]
    moved = change[np.arange(len(before)), first][:, None] - np.take_along_axis(change, rivals, axis=1)
    return math.tanh(float(np.abs(moved).max()) / temperature / 2)


def bound_with_unseen(mean: float, spread: float, n: int, unseen: float, z: float) -> float:
    """Computes mean + z * standard error of n values and one more, `unseen`; `spread` is their standard deviation."""
    all_of_them = (n * mean + unseen) / (n + 1)
    variance = (n * (spread**2 + mean**2) + unseen**2) / (n + 1) - all_of_them**2
    return all_of_them + z * math.sqrt(max(0.0, variance) / n)


def _log_sum(values: np.ndarray) -> np.ndarray:
    """Computes log(sum(exp(values))) of each row, without overflow."""
    top = values.max(axis=1)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))
