"""Progress bars on stderr. They are drawn only if stderr is a terminal, and mostly only if the work takes long."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PATIENCE = 2.0
"""Seconds before `tracked` shows its bar; work that is done sooner shows none."""

_Item = TypeVar("_Item")


@contextmanager
def progress(what: str, total: int, after: float = 0.0, unit: str = "") -> Iterator[Callable[[float], None]]:
    """Shows a progress bar while the block runs; yields a function to call with the number of items newly done.

    Args:
        what: The words in front of the bar.
        total: The number of items there are.
        after: Seconds before the bar appears.
        unit: The name of the items, if the bar is to show their number per second ("images"); "" for no speed.
    """
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
    """Yields the items while a bar counts them; the bar appears after `after` seconds. total: the number of items."""
    with progress(what, total, after) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows a line with a spinner and the time elapsed while the block runs, for work of unknown length.

    what: the words on the line, such as "exporting".
    """
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
    """Formats a time in the unit that suits it: 90 s, 16 min, 2 h."""
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 120 else f"{rounded // 60} min" if rounded < 7200 else f"{rounded // 3600} h"
