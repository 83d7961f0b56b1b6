"""Measures how fast programs are compared with each other, even while the machine does other work.

A time alone says little: processors are shared, throttled and warmed up. Programs that take turns in one process see
the same machine. So ratios are measured: in each round, one program's time over the other's; reported are the median of
the rounds and the middle half of them. The machine's peak speed is measured in the same rounds.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.environment import processor_name

TimedCall = Callable[[], Any]
"""A program to be timed."""
PEAK = "matrix product"
"""The name, among the programs that take turns, of the one that measures the machine's peak speed."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two programs' speeds."""

    ratio: float
    """How many times as fast the first program is as the second; the median of the rounds."""
    spread: tuple[float, float]
    """The quartiles of the rounds: the middle half lies between them."""


def interleave(runs: Mapping[str, TimedCall], rounds: int, least: float = 0.25) -> dict[str, list[float]]:
    """Measures the seconds of one call of each program, in every round.

    In a round all take a turn of at least `least` seconds, in an order drawn anew each time, so that threads still
    spinning or caches left cold by one do not always slow the same other.

    Returns:
        For each name, one number of seconds a round.
    """
    assert rounds >= 1
    repeats = {}
    for name, run in runs.items():
        run()  # the first call prepares
        repeats[name] = max(1, round(least / seconds(run)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    names, order = list(runs), np.random.default_rng(0)
    for _ in range(rounds):
        for name in (names[place] for place in order.permutation(len(names))):
            times[name].append(seconds(runs[name], repeats[name]))
    return times


def seconds(run: TimedCall, repeats: int = 1) -> float:
    """Measures the seconds of one call, as the mean of `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return max((time.perf_counter() - start) / repeats, 1e-9)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Computes how many times as fast `ours` is as `theirs`, from the seconds of the same rounds."""
    return median_and_spread([their / our for our, their in zip(ours, theirs, strict=True)])


def median_and_spread(values: Sequence[float]) -> Ratio:
    """Computes the median and the middle half of some values; of one or two values, their whole range."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 2 else (min(values), 0.0, max(values))
    return Ratio(statistics.median(values), (low, high))


def matrix_product(size: int = 1536) -> tuple[TimedCall, float]:
    """Returns a program that multiplies two square matrices, what a processor does fastest, and its number of FLOPs."""
    import torch

    left, right, out = torch.ones(size, size), torch.ones(size, size), torch.empty(size, size)

    def run() -> None:
        """Multiplies the matrices once."""
        torch.mm(left, right, out=out)

    return run, 2.0 * size**3


def machine() -> str:
    """Describes the processor, its cores and threads, and torch's version in a line."""
    import torch

    threads, cores = torch.get_num_threads(), os.cpu_count()
    return f"{processor_name()}, {cores} cores, {threads} threads, torch {torch.__version__}"
