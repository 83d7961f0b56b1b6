"""A progress bar on stderr, for a person who is watching and only where there is something to wait for."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PATIENCE = 2.0
"""Seconds before a bar appears in `tracked`: what is done sooner needs none."""

_Item = TypeVar("_Item")


@contextmanager
def progress(what: str, total: int, after: float = 0.0, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Gives a function to be told how many more are done; the bar appears once `after` seconds have gone by. With a
    `unit` it says how many of them a second."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    if unit:
        columns.insert(3, TextColumn(f"{{task.fields[speed]}} {unit}/s"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total, speed="-")
    began = time.monotonic()
    due = began + after

    def advance(done: float) -> None:
        bar.advance(task, done)
        bar.update(task, speed=f"{bar.tasks[0].completed / max(time.monotonic() - began, 1e-9):.0f}")
        if not bar.live.is_started and time.monotonic() >= due:
            bar.start()

    try:
        if not after:
            bar.start()
        yield advance
    finally:
        bar.stop()


def tracked(items: Iterable[_Item], total: int, what: str, after: float = PATIENCE) -> Iterator[_Item]:
    """Gives the items, under a bar that appears once `after` seconds have gone by. total: how many there are."""
    with progress(what, total, after) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Around work that cannot say how far it is: on a terminal a line that says what is done, and for how long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as line:
        line.add_task(what, total=None)
        yield


def duration(seconds: float) -> str:
    """A time as people say it: 90 s, 16 min, 2 h."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
