"""Estimates how much accuracy a changed model loses, with an upper bound that may be relied on.

Counting right answers before and after is honest and blunt: on 500 pictures the difference of two close models has a
standard error of half a point or more. The expected drop is sharper. Where both models give the same answer a picture
loses nothing, whatever its label; where they differ it loses, on average, the probability of the plain model's answer
less that of the other's. These probabilities are the plain model's own, calibrated by one temperature (Guo et al.,
2017) that is fitted to the labelled pictures. Pictures without labels count too, and the counted difference stays
beside it as the check of that calibration.

The bound is one-sided: mean + z * standard error, taken over the pictures and one more that was not seen. That one
loses as much as the largest change of scores that was seen could cost. Without it a handful of pictures on which
nothing happened to change would promise that nothing ever does; with it the bound is about the rule of three.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from vitrail.tasks.classification.top1 import best

CONFIDENCE = 0.95
RIVALS = 4
"""Classes next to the plain model's answer whose scores are watched."""
_DOUBT = NormalDist().inv_cdf(0.99)
"""The counted drop this many standard errors above the expected one says that the probabilities are not to be
believed."""
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class Drop:
    """How much top-1 accuracy is lost, in points of a hundred."""

    n: int
    """Pictures, with and without labels."""
    labelled: int
    expected: float
    error: float
    """The standard error of `expected`."""
    bound: float
    """Stays above the true drop with probability `confidence`."""
    counted: float
    """Right answers before less right answers after, over the labelled pictures."""
    counted_error: float
    """The standard error of `counted`."""
    confidence: float
    tests: int
    """Bounds that hold together with that confidence (Bonferroni's correction)."""
    temperature: float
    unseen: float
    """What the picture loses that was not seen, a fraction of 1."""
    calibrated: bool
    """False where the counted drop contradicts the expected one; then the bound is that of the counted drop."""

    def within(self, max_drop: float) -> bool:
        return self.bound <= max_drop + 0.005  # half of the last digit that is shown

    def pictures_needed(self, max_drop: float) -> int | None:
        """Computes how many pictures like these would bring the bound under `max_drop`; None where none would."""
        if self.expected >= max_drop:
            return None
        spread, z = self.error / 100 * math.sqrt(self.n), _quantile(self.confidence, self.tests)
        low, high = 1, 1
        while _bound(self.expected / 100, spread, high, self.unseen, z) * 100 > max_drop:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            fits = _bound(self.expected / 100, spread, middle, self.unseen, z) * 100 <= max_drop
            low, high = (low, middle) if fits else (middle, high)
        return high

    def sentence(self) -> str:
        """Says the promise in a line."""
        shown = f"at most {self.bound:.2f} points lost with {self.confidence:.0%} confidence"
        expected = f"expected {self.expected:.2f} +- {self.error:.2f} over {self.n:,} pictures"
        counted = f"counted {self.counted:.2f} +- {self.counted_error:.2f} over {self.labelled:,} with labels"
        doubt = "" if self.calibrated else "; the counted loss contradicts the expected one, so it alone is believed"
        return f"{shown} ({expected}; {counted}{doubt})"

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def estimate_drop(
    before: np.ndarray, after: np.ndarray, labels: np.ndarray, confidence: float = CONFIDENCE, tests: int = 1
) -> Drop:
    """Estimates the accuracy that is lost from one model to the other on the same pictures.

    Args:
        before, after: Logits of the plain and of the changed model, [pictures, classes].
        labels: The class of each picture, [pictures]; -1 where it is not known. At least one must be.
        confidence: How sure the bound shall be.
        tests: Of how many bounds this is one that shall all hold with that confidence.
    """
    known = labels >= 0
    assert known.any(), "the temperature is fitted to labels"
    z = _quantile(confidence, tests)
    temperature, cold = fit_temperature(before[known], labels[known], z)
    n, first, then = len(before), best(before), best(after)
    losses = _losses(before, first, then, temperature)
    # For the bound the temperature is the lowest that the labels allow: the surer the model, the more a change costs.
    cautious, unseen = _losses(before, first, then, cold), _largest_loss(before, after, first, cold)
    bound = _bound(cautious.mean(), cautious.std(), n, unseen, z)
    counted = (first[known] == labels[known]).astype(float) - (then[known] == labels[known])
    doubts = counted - losses[known]
    calibrated = doubts.mean() <= _DOUBT * doubts.std() / math.sqrt(len(doubts)) + 1e-12
    if not calibrated:
        bound = max(bound, _bound(counted.mean(), counted.std(), len(counted), 1.0, z))
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
    """Fits the temperature T with which softmax(logits / T) predicts the labels best; also gives the lowest T within
    `z` standard errors, by the likelihood."""

    def cost(temperature: float) -> float:
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


def _quantile(confidence: float, tests: int) -> float:
    return NormalDist().inv_cdf(1 - (1 - confidence) / tests)


def _lowest(cost: Callable[[float], float], low: float, high: float, steps: int = 30) -> float:
    """Finds where a function with one valley is lowest, by golden sections."""
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
    """Computes what each picture loses where the answer `then` takes the place of `first`; never less than 0."""
    losses = np.zeros(len(logits))
    differ = np.flatnonzero(first != then)
    scaled = logits[differ].astype(np.float64) / temperature
    total, place = _log_sum(scaled), np.arange(len(differ))
    losses[differ] = np.exp(scaled[place, first[differ]] - total) - np.exp(scaled[place, then[differ]] - total)
    return losses


def _largest_loss(before: np.ndarray, after: np.ndarray, first: np.ndarray, temperature: float) -> float:
    """Computes what the largest change seen between the answer's score and a rival's could cost a picture.

    An answer gives way only where its lead is less than the change; of two classes with a lead of m (in calibrated
    logits) one has tanh(m / 2) more of their probability than the other.
    """
    change = (after - before).astype(np.float64)
    count = min(RIVALS + 1, before.shape[1])
    rivals = np.argpartition(-before, count - 1, axis=1)[:, :count]
    moved = change[np.arange(len(before)), first][:, None] - np.take_along_axis(change, rivals, axis=1)
    return math.tanh(float(np.abs(moved).max()) / temperature / 2)


def _bound(mean: float, spread: float, n: int, unseen: float, z: float) -> float:
    """Computes mean + z * standard error of n values and one more, `unseen`."""
    all_of_them = (n * mean + unseen) / (n + 1)
    variance = (n * (spread**2 + mean**2) + unseen**2) / (n + 1) - all_of_them**2
    return all_of_them + z * math.sqrt(max(0.0, variance) / n)


def _log_sum(values: np.ndarray) -> np.ndarray:
    top = values.max(axis=1)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))
