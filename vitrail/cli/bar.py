"""How far `predict` and `embed` are: a bar with images/s on stderr, whatever the number.

Pictures are found as they are needed, so how many there are is counted beside the work; until that is known, and where
it cannot be (a list on stdin, archives), the line says how many are done.
"""

import shutil
import sys
import threading
import time
from collections.abc import Container, Sequence

from vitrail.data.inputs import STDIN, find, writable
from vitrail.inference.jobs.job import Progress
from vitrail.io.progress import duration

_WIDTH, _NARROW = 30, 8
"""Of a bar; a narrower one is left out."""


class Total:
    """How many pictures there are to do: names alone are counted, by a thread that no one waits for."""

    def __init__(self, paths: Sequence[str], seen: Container[str] = ()) -> None:
        self.value: int | None = None
        if STDIN not in paths and sys.stderr.isatty():
            threading.Thread(target=self._count, args=(paths, seen), name="vitrail-count", daemon=True).start()

    def _count(self, paths: Sequence[str], seen: Container[str]) -> None:
        n = 0
        for each in find(paths):
            if each.path is None or "::" in each.path:  # a member of an archive: the next ones would have to be read
                return
            n += writable(each.path) not in seen
        self.value = n


class Bar:
    """A line that renews itself on a terminal, one in a while elsewhere. It is that of the first of so many processes;
    0: nothing is shown."""

    def __init__(self, processes: int = 1, total: Total | None = None) -> None:
        self.processes, self.total = processes, total
        self.terminal = sys.stderr.isatty() and processes > 0
        self.last = time.monotonic()

    def close(self) -> None:
        """Removes the line."""
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def update(self, done: Progress) -> None:
        now = time.monotonic()
        if not self.processes or now - self.last < (0.2 if self.terminal else 30):
            return
        self.last = now
        start, end = ("\r\x1b[K", "") if self.terminal else ("", "\n")
        print(f"{start}{self._text(done)}", end=end, file=sys.stderr, flush=True)

    def _text(self, done: Progress) -> str:
        total = (self.total and self.total.value) or 0
        total = total if done.n <= total else 0  # more came while it was counted
        text = f"{done.n:,} of {total:,} pictures" if total else f"{done.n:,} pictures"
        text += f"  {done.speed:.1f} images/s"
        if total and done.speed:
            text += f"  {duration((total - done.n) / done.speed)} left"
        text += f"  {done.errors} unreadable" * bool(done.errors)
        text += f"  (in the first of {self.processes} processes)" * (self.processes > 1)
        if not self.terminal:
            return text
        # A line that wraps cannot be renewed.
        room = shutil.get_terminal_size().columns - 1
        width = min(_WIDTH, room - len(text) - 2)
        if total and width >= _NARROW:
            full = width * done.n // total
            text = f"{'━' * full}{'─' * (width - full)}  {text}"
        return text[:room]
