"""Raises Pillow's own limit of pixels, which is one for the whole process, only while pictures are decoded."""

import contextlib
import threading
from collections.abc import Iterator

from PIL import Image

_lock = threading.Lock()
_needed: list[int] = []
"""The limits of the calls that run now and need a higher one than Pillow's, in whichever threads."""
_before: int | None = None
"""Pillow's limit before the first of them."""


@contextlib.contextmanager
def allow_pixels(max_pixels: int) -> Iterator[None]:
    """Lets Pillow open and decode pictures of up to `max_pixels` meanwhile, if its own limit is lower.

    Threads share Pillow's limit: it is the highest that one of them needs, and what it was before once none needs more.
    """
    global _before
    needed = (max_pixels + 1) // 2  # Pillow refuses pictures above twice its limit
    with _lock:
        if not _needed:
            _before = Image.MAX_IMAGE_PIXELS
        if raised := _before is not None and needed > _before:
            _needed.append(needed)
            Image.MAX_IMAGE_PIXELS = max(_needed)
    try:
        yield
    finally:
        if raised:
            with _lock:
                _needed.remove(needed)
                Image.MAX_IMAGE_PIXELS = max(_needed, default=_before)
