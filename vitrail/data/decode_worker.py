"""The process that `decode_pool.py` starts: decodes one picture after the other until its standard input ends.

A request has a function, pickled by the process that started this one, and the bytes of a file. An answer has JSON and
raw arrays and no pickle, so that a hostile file that takes over a decoder here can do no harm there.
"""

import json
import math
import os
import pickle
import signal
import struct
import time
import traceback
from pathlib import Path
from typing import IO, Any

import numpy as np

import vitrail.data.transforms  # noqa: F401  most requests need it: imported before the first one comes
from vitrail.data.bad_image import BadImage, TooCostly
from vitrail.data.decode import open_header
from vitrail.data.plain_files import webp_pixels
from vitrail.environment import silence_pillow

REQUEST = struct.Struct("<IQ")
"""The head of a request: the length of the pickled function with its limits, and that of the file."""
ANSWER = struct.Struct("<IQ")
"""The head of an answer: the length of the JSON, and that of all arrays together."""
_BYTES_A_PIXEL = 20
"""The memory for each pixel, about, that the most costly of Pillow's readers need."""


def main() -> None:
    """Answers requests from standard input on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the process that started this one ends both
    silence_pillow()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Standard output is redirected so that a library that prints does not print into an answer.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    limits = _ProcessLimits()
    _send(answers, {"ready": True})
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        length, size = REQUEST.unpack(head)
        function, seconds, memory_mb = pickle.loads(requests.read(length))  # noqa: S301  from the process that started this
        content = requests.read(size)
        if len(content) < size:
            break
        answer = _answer(limits, function, content, (seconds, memory_mb))
        _send(answers, *answer)
        del content, answer
    requests.close()
    answers.close()


def _answer(
    limits: "_ProcessLimits", function: Any, content: bytes, allowed: tuple[float, float]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Applies the function to a file and returns the answer: its result, its BadImage, or the traceback of a bug.

    allowed: the limits in seconds and in MB.
    """
    seconds, memory_mb = allowed
    try:
        limits.set(seconds, memory_mb * 2**20 + len(content))
        value = function(content)
        return _flat(value)
    except (BadImage, MemoryError) as error:
        if isinstance(error, MemoryError) or _lacked_memory(error, content, memory_mb):
            return _error(TooCostly(f"needs more than {memory_mb:g} MB of memory to decode (--decode-mb)")), []
        return _error(error), []
    except Exception:
        return {"failure": traceback.format_exc()}, []


def _flat(value: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Divides a result into JSON, with the type and shape of each array, and the arrays.

    value: an array, or a dictionary of arrays and of values that JSON can hold.
    """
    if isinstance(value, np.ndarray):
        value = {"": value}
    names = [name for name, item in value.items() if isinstance(item, np.ndarray)]
    arrays = [np.ascontiguousarray(value[name]) for name in names]
    document = {
        "values": {name: item for name, item in value.items() if name not in names},
        "arrays": [[name, array.dtype.str, value[name].shape] for name, array in zip(names, arrays, strict=True)],
    }
    return document, arrays


def _error(error: BadImage) -> dict[str, Any]:
    return {"error": [type(error).__name__, str(error)]}


def _lacked_memory(error: BadImage, content: bytes, memory_mb: float) -> bool:
    """Tells whether a file could not be decoded because memory was lacking.

    Many libraries report a damaged file then. So if the header of a file states more pixels than fit into the memory,
    that is taken for the reason.
    """
    if isinstance(error.__cause__ or error.__context__, MemoryError):
        return True
    if type(error) is not BadImage:
        return False
    return "decoder error -9" in str(error) or _claimed_pixels(content) * _BYTES_A_PIXEL > memory_mb * 2**20


def _claimed_pixels(content: bytes) -> int:
    """Returns the number of pixels that the header of a file states; 0 if it cannot be read."""
    try:
        if content[:4] == b"RIFF":
            return webp_pixels(content)  # Pillow would allocate the memory for the pixels to read the header
        image = open_header(content)
        return image.width * image.height
    except Exception:
        return 0


def _send(answers: IO[bytes], document: dict[str, Any], arrays: list[np.ndarray] | None = None) -> None:
    """Writes an answer."""
    text, arrays = json.dumps(document).encode(), arrays or []
    answers.write(ANSWER.pack(len(text), sum(array.nbytes for array in arrays)))
    answers.write(text)
    for array in arrays:
        answers.write(array.data)
    answers.flush()


class _ProcessLimits:
    """The limits of the operating system for this process: address space on Linux, and processor time, which ends this
    process even if the one that started it is gone."""

    def __init__(self) -> None:
        try:
            import resource
        except ImportError:  # Windows
            resource = None
        self._resource = resource
        self._space = self._address_space()

    def set(self, seconds: float, memory: float) -> None:
        """Allows so many more seconds on each processor, and memory in bytes beyond what the process began with."""
        if self._resource is None:
            return
        processors = os.cpu_count() or 1  # some decoders use several processors
        self._set(self._resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds * processors) + 1)
        if self._space is not None:
            self._set(self._resource.RLIMIT_AS, self._space + math.ceil(memory))

    def _set(self, which: int, soft: int) -> None:
        """Sets one of the system's soft limits, at most to its hard limit."""
        assert self._resource is not None
        _, hard = self._resource.getrlimit(which)
        unlimited = hard == self._resource.RLIM_INFINITY
        self._resource.setrlimit(which, (soft if unlimited else min(soft, hard), hard))

    @staticmethod
    def _address_space() -> int | None:
        """Returns the address space that this process has now in bytes; None if the system does not state it."""
        try:
            return int(Path("/proc/self/statm").read_bytes().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return None
