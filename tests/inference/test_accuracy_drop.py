"""The bound on lost accuracy holds as often as it says, and is sharp enough to be of use."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from vitrail.inference.accuracy_drop import estimate_drop, fit_temperature


def world(n: int, rng: np.random.Generator, noise: float, temperature: float = 0.7, classes: int = 20):
    """A model that is calibrated at `temperature`, a noisy copy of it, labels drawn from its own probabilities; and
    what the copy really loses on these pictures, in points."""
    before = rng.normal(size=(n, classes)) * rng.uniform(0.5, 3, size=(n, 1))
    chances = softmax(before / temperature, axis=1)
    labels = (chances.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)
    after = before + noise * rng.standard_t(4, size=before.shape)
    place = np.arange(n)
    truth = chances[place, before.argmax(axis=1)] - chances[place, after.argmax(axis=1)]
    return before, after, labels, truth


def true_loss(noise: float) -> float:
    return 100 * world(200_000, np.random.default_rng(99), noise)[3].mean()


@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("n", [60, 300])
def test_the_bound_is_above_the_true_loss_as_often_as_it_says(n, noise):
    truth, rng = true_loss(noise), np.random.default_rng(n)
    held = [estimate_drop(*world(n, rng, noise)[:3]).bound >= truth for _ in range(300)]
    # 95 % of 300 less three standard deviations of such a count.
    assert sum(held) >= 0.95 * 300 - 3 * math.sqrt(300 * 0.95 * 0.05)


def test_the_usual_interval_would_not_hold():
    """Why one picture more is counted: losses are rare and large, and the plain normal interval misses them."""
    truth, rng, n = true_loss(0.05), np.random.default_rng(0), 60
    found = [estimate_drop(*world(n, rng, 0.05)[:3]) for _ in range(300)]
    assert sum(each.expected + 1.645 * each.error >= truth for each in found) < 0.9 * 300


def test_the_expected_loss_is_right_on_average_and_sharper_than_counting():
    truth, rng = true_loss(0.2), np.random.default_rng(5)
    found = [estimate_drop(*world(400, rng, 0.2)[:3]) for _ in range(200)]
    expected, counted = (np.array([getattr(each, name) for each in found]) for name in ("expected", "counted"))
    assert expected.mean() == pytest.approx(truth, abs=4 * expected.std() / math.sqrt(200) + 0.02)
    assert counted.mean() == pytest.approx(truth, abs=4 * counted.std() / math.sqrt(200))
    assert expected.std() < 0.6 * counted.std()
    # Both say their own spread.
    assert np.mean([each.error for each in found]) == pytest.approx(expected.std(), rel=0.25)
    assert np.mean([each.counted_error for each in found]) == pytest.approx(counted.std(), rel=0.25)


def test_more_pictures_without_labels_sharpen_it():
    rng = np.random.default_rng(1)
    before, after, labels, _ = world(4000, rng, 0.2)
    few = estimate_drop(before[:400], after[:400], labels[:400])
    many = estimate_drop(before, after, np.where(np.arange(4000) < 400, labels, -1))
    assert (many.n, many.labelled) == (4000, 400)
    assert many.error < 0.5 * few.error
    assert many.temperature == few.temperature
    assert many.bound - many.expected < 0.6 * (few.bound - few.expected)


def test_few_pictures_promise_little_even_if_nothing_changed_on_them():
    rng = np.random.default_rng(2)
    before = rng.normal(size=(20, 5)) + 9 * np.eye(5)[rng.integers(5, size=20)]  # sure of every picture
    after = before + rng.normal(size=before.shape) / 2
    labels = before.argmax(axis=1)
    found = estimate_drop(before, after, labels)
    assert (after.argmax(axis=1) == labels).all()
    assert found.expected == 0
    # Three in n: the rule of three, by what the changed scores could cost.
    assert 100 * 2.5 * found.unseen / 20 < found.bound < 100 * 3 * found.unseen / 20
    assert found.unseen > 0.5


def test_rounding_costs_nothing():
    rng = np.random.default_rng(3)
    before = rng.normal(size=(10, 5)).astype(np.float32)
    found = estimate_drop(before, before * np.float32(1 + 1e-6), before.argmax(axis=1))
    assert found.bound < 0.005
    assert found.within(0.0)


def test_a_model_whose_confidence_lies_is_found_out_by_counting():
    """Its second answers are never right, though it says that they nearly are as likely as the first."""
    rng = np.random.default_rng(4)
    labels = rng.integers(10, size=500)
    before = rng.normal(size=(500, 10))
    place = np.arange(500)
    before[place, labels] = before.max(axis=1) + 0.1
    after = before.copy()
    wrong = rng.uniform(size=500) < 0.2
    after[wrong, (labels[wrong] + 1) % 10] = before[wrong].max(axis=1) + 1
    before[place, (labels + 3) % 10] += np.where(wrong, 0, 4)  # where nothing changes it is often sure and wrong
    after[place, (labels + 3) % 10] += np.where(wrong, 0, 4)
    found = estimate_drop(before, after, labels)
    assert not found.calibrated
    assert found.bound > found.counted > found.expected
    assert "contradicts" in found.sentence()


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.0])
def test_the_temperature_is_the_most_likely_one(truth):
    rng = np.random.default_rng(6)
    before, _, labels, _ = world(2000, rng, 0.1, temperature=truth)

    def cost(temperature: float) -> float:
        return -log_softmax(before / temperature, axis=1)[np.arange(2000), labels].sum()

    best, cold = fit_temperature(before, labels, 1.645)
    assert best == pytest.approx(minimize_scalar(cost, bounds=(0.1, 9), method="bounded").x, rel=1e-3)
    assert best == pytest.approx(truth, rel=0.1)
    assert cold < best
    assert cost(cold) - cost(best) == pytest.approx(1.645**2 / 2, rel=1e-2)


def test_a_model_that_is_always_right_counts_every_change_whole():
    before = 2 * np.eye(4)[np.arange(40) % 4]
    after = before.copy()
    after[0] = before[1]
    found = estimate_drop(before, after, np.arange(40) % 4)
    assert found.expected == pytest.approx(100 / 40, rel=1e-3)
    assert found.counted == pytest.approx(100 / 40)


def test_several_bounds_that_hold_together_are_wider():
    rng = np.random.default_rng(7)
    drawn = world(300, rng, 0.2)[:3]
    one, two = (estimate_drop(*drawn, tests=tests) for tests in (1, 2))
    assert two.bound > one.bound
    assert two.expected == one.expected
    assert estimate_drop(*drawn, confidence=0.975).bound == pytest.approx(two.bound)


def test_how_many_pictures_a_promise_needs():
    rng = np.random.default_rng(8)
    before, after, labels, _ = world(20_000, rng, 0.05)
    found = estimate_drop(before[:300], after[:300], labels[:300])
    limit = found.expected + 0.6 * (found.bound - found.expected)
    needed = found.pictures_needed(limit)
    assert needed is not None
    assert needed > 300
    # The same losses over so many pictures: within the limit; over some fewer, not.
    repeats = [np.concatenate([each[:300]] * math.ceil(needed * 1.3 / 300)) for each in (before, after, labels)]
    assert estimate_drop(*(each[: round(1.3 * needed)] for each in repeats)).bound < limit
    assert estimate_drop(*(each[: round(0.7 * needed)] for each in repeats)).bound > limit
    assert found.pictures_needed(found.expected) is None
