"""Where threads take memory from."""

import contextlib
import ctypes

_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def share_memory() -> None:
    """All threads from one place: to be called before there are any, so before torch is imported.

    By default each thread keeps to itself tens of megabytes of what its largest image took, and the process grows with
    the number of threads that have met a large one.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
