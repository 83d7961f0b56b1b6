"""How fast things are beside each other, on a machine that does other work too.

A time alone says little: processors are shared, throttled and warmed up. Programs that take turns in one process see
the same machine, so what is measured here is ratios: round by round, one's time over the other's, as the median of the
rounds with the middle half of them. Beside them stands the machine's own peak, measured in the same rounds.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], Any]
PEAK = "matrix product"
"""The name of the machine's own peak among the programs that take turns."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one is as another."""

    ratio: float
    """The median of the rounds; above 1 the first is faster."""
    spread: tuple[float, float]
    """The middle half of the rounds."""


def interleave(runs: Mapping[str, Run], rounds: int, least: float = 0.25) -> dict[str, list[float]]:
    """Seconds a call of each, in every round. All take a turn in a round, of at least `least` seconds, in an order
    drawn anew each time: threads that one leaves spinning, or caches it leaves cold, are not always the same one's
    loss."""
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


def seconds(run: Run, repeats: int = 1) -> float:
    """Of one call, as the mean of some."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return max((time.perf_counter() - start) / repeats, 1e-9)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """How many times as fast we are as they, from the seconds of the same rounds."""
    return summary([their / our for our, their in zip(ours, theirs, strict=True)])


def summary(values: Sequence[float]) -> Ratio:
    """The median and the middle half of some; of one or two, all of them."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 2 else (min(values), 0.0, max(values))
    return Ratio(statistics.median(values), (low, high))


def matrix_product(size: int = 1536) -> tuple[Run, float]:
    """A product of square matrices, the work a processor does fastest; and how many FLOPs one is."""
    import torch

    left, right, out = torch.ones(size, size), torch.ones(size, size), torch.empty(size, size)

    def run() -> None:
        torch.mm(left, right, out=out)

    return run, 2.0 * size**3


def machine() -> str:
    """The machine and its torch, for a table's first line."""
    import torch

    threads, cores = torch.get_num_threads(), os.cpu_count()
    return f"{_processor()}, {cores} cores, {threads} threads, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
