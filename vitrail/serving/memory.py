"""Where threads take memory from."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Of glibc's malloc.h."""


def share_memory() -> None:
    """All threads from one place, which keeps what a batch needs: to be called before there are any, so before torch
    is imported.

    By default each thread keeps to itself tens of megabytes of what its largest image took, and the process grows with
    the number of threads that have met a large one. And what is larger than 128 kB goes back to the system at once:
    the buffer of every read from a connection, and much of every batch, would be fetched from it page by page again.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most it takes
        library.mallopt(_TRIM_THRESHOLD, 128 << 20)


def give_back() -> None:
    """To the system, what is kept and not in use: for a moment when nobody waits."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
