"""The simulation in bench/scale.py does the arithmetic that it states at its top."""

import math

import pytest

from bench.scale import BATCH, Measured, Worker, huge, simulate, sweep

# Ten milliseconds, and one an image; a megabyte at a gigabyte a second; nothing varies, nothing is hidden.
WORKER = Worker(0.010, 0.001, 10**6, 1e9, 1e-4, 0.0, 0.0, 1e9)


def with_(**changes: float) -> Worker:
    return Worker(**{**vars(WORKER), **changes})


def test_one_process_waits_for_nobody():
    found = simulate(WORKER, 1, 32)
    assert found.step == found.compute == pytest.approx(0.042)
    assert found.exposed == 0
    assert found.images_per_second == pytest.approx(32 / 0.042)


def test_the_ring_by_hand():
    assert WORKER.all_reduce(2) == pytest.approx(0.001 + 2e-4)
    assert WORKER.all_reduce(256) == pytest.approx(2 * 255 / 256 * 0.001 + 510 * 1e-4)
    assert WORKER.words(8) == pytest.approx(6 * 2 * 3 * 1e-4)
    assert simulate(WORKER, 4, 8).step == pytest.approx(0.018 + WORKER.all_reduce(4) + WORKER.words(4))


def test_what_is_hidden_is_not_waited_for():
    hidden = with_(overlap=1.0, latency=0.0)
    assert simulate(hidden, 4, 8).exposed == 0, "a ring of 1.5 ms behind a backward pass of 5.3"
    slow = with_(overlap=1.0, latency=0.0, bandwidth=1e8)
    assert simulate(slow, 4, 8).exposed == pytest.approx(0.015 - 0.008 * 2 / 3)


def test_the_slowest_decides_and_the_seed_repeats():
    varied = with_(spread=0.1)
    first, again = simulate(varied, 64, 8), simulate(varied, 64, 8)
    assert first == again
    # The largest of 64 draws is about 2.4 deviations above the mean.
    assert first.slowest == pytest.approx(0.018 * math.exp(2.4 * 0.1 - 0.005), rel=0.02)
    assert simulate(varied, 1, 8).slowest == pytest.approx(0.018), "alone, the mean stays"


def test_a_step_is_no_shorter_than_its_data_take():
    found = simulate(with_(loader=100.0), 2, 32)
    assert found.step == found.loading == pytest.approx(0.32)


def test_a_shared_batch_ends_where_it_cannot_be_shared():
    assert [(each.count, each.batch) for each in sweep(WORKER, 8, shared=True)] == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert [each.batch for each in sweep(WORKER, 8, shared=False)] == [8] * 9


def test_what_is_measured_becomes_a_worker():
    times = {1024: 1e-4, 4000: 3e-4}
    found = Measured(0.010 + BATCH * 1e-3, 0.010 + BATCH // 2 * 1e-3, 0.1, 0.02, [], 4000, times, 100.0)
    worker = found.worker()
    assert (worker.fixed, worker.each) == (pytest.approx(0.010), pytest.approx(1e-3))
    assert found.told == pytest.approx(3e-4 + 6 * 1e-4)
    assert simulate(worker, 2, BATCH // 2, told=found.told).exposed == pytest.approx(found.told)


def test_accelerators_are_assumed_as_stated():
    worker = huge(100.0)
    assert worker.loader == 1600
    assert worker.each == pytest.approx(1.005e12 / 1e14, rel=0.01), "H/14 takes a teraFLOP to learn from an image"
