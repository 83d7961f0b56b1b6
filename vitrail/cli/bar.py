"""Shows the progress of `predict` and `embed` on stderr: a bar and images/s.

Pictures are found as they are needed, so another thread counts them meanwhile. Until the total is known, and if it
cannot be (a list on stdin, archives), the line only says how many are done.
"""

import shutil
import sys
import threading
import time
from collections.abc import Container, Sequence

from vitrail.data.inputs import STDIN, find_pictures, writable
from vitrail.inference.jobs.job import JobProgress
from vitrail.io.progress import duration

_WIDTH, _NARROW = 30, 8
"""The width of a bar, and the smallest width at which one is shown."""


class Total:
    """The total number of pictures; a thread counts their names in the background."""

    def __init__(self, paths: Sequence[str], seen: Container[str] = ()) -> None:
        self.value: int | None = None
        if STDIN not in paths and sys.stderr.isatty():
            threading.Thread(target=self._count, args=(paths, seen), name="vitrail-count", daemon=True).start()

    def _count(self, paths: Sequence[str], seen: Container[str]) -> None:
        """Counts the pictures that have no row yet; gives up at the members of an archive."""
        n = 0
        for each in find_pictures(paths):
            if each.path is None or "::" in each.path:  # counting members would mean reading the archive
                return
            n += writable(each.path) not in seen
        self.value = n


class Bar:
    """The line that shows progress; on a terminal it is renewed, elsewhere printed every half minute.

    `processes` is the number of processes of the job, of which only the first shows a bar; 0 shows nothing.
    """

    def __init__(self, processes: int = 1, total: Total | None = None) -> None:
        self.processes, self.total = processes, total
        self.terminal = sys.stderr.isatty() and processes > 0
        self.last = time.monotonic()

    def close(self) -> None:
        """Removes the line."""
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def update(self, done: JobProgress) -> None:
        """Renews the line, if enough time has passed."""
        now = time.monotonic()
        if not self.processes or now - self.last < (0.2 if self.terminal else 30):
            return
        self.last = now
        start, end = ("\r\x1b[K", "") if self.terminal else ("", "\n")
        print(f"{start}{self._text(done)}", end=end, file=sys.stderr, flush=True)

    def _text(self, done: JobProgress) -> str:
        """Returns the line, cut to the width of the terminal."""
        total = (self.total and self.total.value) or 0
        total = total if done.n <= total else 0  # more pictures have appeared since they were counted
        text = f"{done.n:,} of {total:,} pictures" if total else f"{done.n:,} pictures"
        text += f"  {done.speed:.1f} images/s"
        if total and done.speed:
            text += f"  {duration((total - done.n) / done.speed)} left"
        text += f"  {done.errors} unreadable" * bool(done.errors)
        text += f"  (in the first of {self.processes} processes)" * (self.processes > 1)
        if not self.terminal:
            return text
        # The line must not wrap: a terminal can renew only one row.
        room = shutil.get_terminal_size().columns - 1
        width = min(_WIDTH, room - len(text) - 2)
        if total and width >= _NARROW:
            full = width * done.n // total
            text = f"{'━' * full}{'─' * (width - full)}  {text}"
        return text[:room]
