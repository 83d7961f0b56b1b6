"""Learning rates by hand: warm-up, the four shapes, and their ends."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.config import OptimizerConfig, ScheduleConfig
from vitrail.errors import UserError
from vitrail.training.schedule import learning_rate


def rates(total: int, **schedule) -> list[float]:
    return [learning_rate(step, total, OptimizerConfig(lr=1.0), ScheduleConfig(**schedule)) for step in range(total)]


def test_warm_up_is_linear_and_reaches_the_peak():
    assert rates(10, kind="constant", warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0] + [1.0] * 6)


def test_cosine():
    expected = [0.5 * (1 + math.cos(math.pi * step / 8)) for step in range(8)]
    assert rates(10, kind="cosine", warmup_steps=2)[2:] == pytest.approx(expected)


def test_linear_falls_to_the_final_rate():
    assert rates(4, kind="linear", final_lr=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_stable_then_decay():
    assert rates(10, kind="stable", decay_fraction=0.4) == pytest.approx([1.0] * 6 + [1.0, 0.75, 0.5, 0.25])


@given(
    st.integers(1, 300),
    st.integers(0, 400),
    st.sampled_from(["cosine", "linear", "stable", "constant"]),
    st.floats(0, 1),
)
def test_rates_stay_between_zero_and_the_peak_and_fall_after_warm_up(total, warmup, kind, fraction):
    found = rates(total, kind=kind, warmup_steps=warmup, decay_fraction=fraction)
    assert all(0 <= rate <= 1 for rate in found)
    after = found[min(warmup, total) :]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(after))


def test_wrong_settings_are_named():
    with pytest.raises(UserError, match="kind"):
        ScheduleConfig("cosin")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="lr"):
        OptimizerConfig(lr=-1)


def test_a_cosine_ends_at_the_final_rate():
    expected = [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * step / 5)) for step in range(5)]
    assert rates(5, kind="cosine", final_lr=0.2) == pytest.approx(expected)
    assert rates(4, kind="stable", decay_fraction=0.5, final_lr=0.4) == pytest.approx([1.0, 1.0, 1.0, 0.7])
