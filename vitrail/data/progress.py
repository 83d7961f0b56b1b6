"""A progress bar on stderr, for a person who is watching and only where there is something to wait for."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int, after: float = 0.0) -> Iterator[Callable[[float], None]]:
    """Gives a function to be told how many more are done; the bar appears once `after` seconds have gone by."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    due = time.monotonic() + after

    def advance(done: float) -> None:
        bar.advance(task, done)
        if not bar.live.is_started and time.monotonic() >= due:
            bar.start()

    try:
        if not after:
            bar.start()
        yield advance
    finally:
        bar.stop()
