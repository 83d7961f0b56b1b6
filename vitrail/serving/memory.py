"""Settings of the C library's memory allocator, for a server with many threads and large arrays."""

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The numbers of these settings in glibc's malloc.h."""


def configure_malloc() -> None:
    """Makes all threads take memory from one arena, which keeps as much as a batch needs.

    It must be called before there are other threads, so before torch is imported. By default each thread keeps tens of
    megabytes for itself once it has decoded a large image, and the process grows with the number of such threads. By
    default, too, blocks of more than 128 kB go back to the system at once: the buffer of every read from a connection
    and much of every batch would be fetched from it again, page by page.
    """
    with contextlib.suppress(AttributeError, OSError):  # only glibc has it
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 1)
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most it takes
        library.mallopt(_TRIM_THRESHOLD, 128 << 20)


def release_memory() -> None:
    """Gives unused memory back to the system. It takes milliseconds: for a moment when nobody waits."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
