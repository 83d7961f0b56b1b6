"""Measuring: turns, ratios and spreads, on a clock that the test holds."""

import pytest

from vitrail.inference import speed
from vitrail.inference.speed import interleave, machine, matrix_product, median_and_spread, ratio


class Clock:
    """A machine whose speed the test sets: running something takes its work over that speed."""

    def __init__(self) -> None:
        self.now, self.speed, self.fading, self.log = 0.0, 1.0, 1.0, []

    def program(self, name: str, work: float):
        def run() -> None:
            self.log.append(name)
            self.now += work / self.speed
            self.speed *= self.fading

        return run


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.now)
    return clock


def test_all_take_a_turn_in_every_round_and_none_always_follows_the_same_one(clock):
    runs = {name: clock.program(name, 1.0) for name in "abc"}
    times = interleave(runs, 40)
    assert times == {name: [1.0] * 40 for name in "abc"}
    prepared = 2 * len(runs)  # a first call and one to see how long it takes
    turns = clock.log[prepared:]
    orders = ["".join(turns[place : place + 3]) for place in range(0, len(turns), 3)]
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_a_short_program_is_repeated_until_its_turn_is_long_enough(clock):
    interleave({"short": clock.program("short", 0.01), "long": clock.program("long", 3.0)}, 2, least=0.25)
    assert clock.log.count("short") == 2 + 2 * 25
    assert clock.log.count("long") == 2 + 2


def test_a_machine_that_slows_down_changes_times_but_not_ratios(clock):
    runs = {"ours": clock.program("ours", 1.0), "theirs": clock.program("theirs", 1.5)}
    clock.fading = 0.95
    times = interleave(runs, 15)
    assert times["ours"][-1] > 4 * times["ours"][0]
    assert ratio(times["ours"], times["theirs"]).ratio == pytest.approx(1.5, rel=0.06)


def test_the_ratio_is_the_median_of_rounds_and_the_spread_their_middle_half():
    found = ratio([1.0] * 7, [0.5, 1.1, 1.2, 1.3, 1.4, 1.5, 90.0])
    assert found.ratio == pytest.approx(1.3)
    assert found.spread == pytest.approx((1.1, 1.5))
    assert median_and_spread([2.0]).spread == (2.0, 2.0)
    assert median_and_spread([2.0, 4.0]) == speed.Ratio(3.0, (2.0, 4.0))


def test_rounds_that_do_not_pair_are_a_bug():
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])


def test_the_peak_is_a_real_product():
    run, flops = matrix_product(64)
    run()
    assert flops == 2 * 64**3
    assert "torch" in machine()
