"""Lets a signal end a run after its step, with the state saved, and not in the middle of it."""

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""The signal that comes when the terminal is closed or its connection is lost; None on Windows, which has no such
signal."""


class Interrupted(Exception):
    """The run was stopped by Ctrl-C, SIGTERM or SIGHUP, after its step was finished and its state saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def interruptible(speaks: bool = True) -> Iterator[list[int]]:
    """Catches Ctrl-C, SIGTERM and SIGHUP: they are appended to the list that is yielded, and do not stop the program at
    once.

    A second Ctrl-C does stop it. Under nohup SIGHUP stays ignored, as asked for there. SIGINT is caught even if it was
    ignored: shells start background jobs that way, and a SIGINT sent to one is meant.

    Args:
        speaks: whether this process answers on the terminal.
    """
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        if speaks:
            _answer(number)
        if number == HANGUP:
            _without_terminal()

    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        numbers.append(HANGUP)
    try:
        before = {number: signal.signal(number, remember) for number in numbers}
    except ValueError:  # not in the main thread: the caller handles signals there
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(number: int) -> None:
    """Writes to the terminal that the signal was received. It bypasses Python's stream and the progress bar, which the
    signal may have interrupted while they were writing."""
    again = "; Ctrl-C again stops without" if number == signal.SIGINT else ""
    text = f"{signal.Signals(number).name}: finishing the step, then saving{again} ..."
    with suppress(OSError):
        os.write(2, f"\r\x1b[K{text}\r\n".encode() if os.isatty(2) else f"{text}\n".encode())


def _without_terminal() -> None:
    """Sends further output nowhere: writing to a terminal that was closed would fail, and so stop the run from being
    saved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # isatty returns False for a terminal that is closed
            os.dup2(nowhere, stream)
    os.close(nowhere)
