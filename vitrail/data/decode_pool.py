"""Decoding files that may be hostile within limits: plain files in this process, others in processes that can be ended.

The processes are started when the first file needs one. They import Pillow, NumPy and this package's decoding, but not
torch. A process whose file takes too much time or memory is ended and replaced by another.
"""

import atexit
import contextlib
import functools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitrail.data.bad_image import KINDS, BadImage, TooCostly, WrongFormat
from vitrail.data.file_formats import ALL, format_of
from vitrail.data.plain_files import is_plain
from vitrail.environment import available_processors
from vitrail.errors import UserError

MOST_PROCESSES = 8
"""The most processes of a pool."""
_START_SECONDS = 60.0
"""The time a process may take to start, long enough for a machine that is busy."""
_END_SECONDS = 5.0
"""The time to wait for a process that was killed."""
_MOST_TEXT = 1 << 20
"""The most bytes of JSON in an answer."""
_WHOLE_MB = 2048.0
"""The most MB of pixels of a whole picture: enough for the largest that is decoded, as floats."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Environment variables of the processes. Their address space is limited, and threads would reserve much of it."""


@dataclass(frozen=True)
class DecodeLimits:
    """The limits for decoding one file."""

    seconds: float = 60.0
    memory_mb: float = 4096.0
    """Memory in MB of 2**20 bytes."""
    formats: tuple[str, ...] = ALL
    """The names of the formats that are allowed."""
    output_mb: float = 256.0
    """The most MB of pixels that another process may answer with: enough for the input of a model that takes pictures
    of 4000 x 4000."""

    def __post_init__(self) -> None:
        for flag, value in (("--decode-seconds", self.seconds), ("--decode-mb", self.memory_mb)):
            if not 0 < value < 1e9:
                raise UserError(f"{flag} {value:g}: must be a number above 0")

    def for_whole_pictures(self) -> "DecodeLimits":
        """Returns these limits for pictures that are not made smaller, of which the largest have more pixels."""
        return replace(self, output_mb=_WHOLE_MB)

    def check_format(self, content: bytes) -> None:
        """Raises WrongFormat for a file that is not in one of the allowed formats."""
        if self.formats == ALL or not content:
            return
        found = format_of(content)
        if found is None and "tga" in self.formats:  # TGA files cannot be recognised by their first bytes
            return
        if found not in self.formats:
            names = ", ".join(self.formats)
            problem = "is none of" if found is None else f"is a file of the format {found}, not of"
            raise WrongFormat(f"{problem} the formats that are read here: {names} (--formats)")


class BoundedDecoder:
    """Applies functions that decode to the contents of files, within limits."""

    def __init__(self, limits: DecodeLimits | None = None, pool: "DecodePool | None" = None) -> None:
        """Takes the limits (None: the defaults) and the pool of processes (None: the shared one)."""
        self.limits = limits or DecodeLimits()
        self._pool = pool

    def __call__(self, function: Callable[[Any], Any], content: Any) -> Any:
        """Returns `function(content)`, computed in another process if the content is a file that is not plain.

        Args:
            function: A function that can be pickled. It returns an array, or a dictionary of arrays and of values that
                JSON can hold, and may raise BadImage.
            content: The bytes of a file; anything else is never decoded in another process.

        Raises:
            BadImage: If the function raises it; TooCostly if the file exceeds the limits, WrongFormat if its format is
                not allowed.
        """
        if not isinstance(content, bytes):
            return function(content)
        if not self.is_apart(content):
            return function(content)
        return (self._pool or shared_pool()).run(function, content, self.limits)

    def is_apart(self, content: bytes) -> bool:
        """Tells whether a file is decoded in another process. Raises WrongFormat if its format is not allowed."""
        self.limits.check_format(content)
        return bool(content) and not is_plain(content)


class DecodePool:
    """A pool of processes that decode, which are started when they are needed. Threads may share a pool."""

    def __init__(self, most: int = MOST_PROCESSES) -> None:
        """Takes the most processes that run at a time."""
        self.most = most
        self.works = False
        """True if the last attempt to start a process succeeded."""
        self._free = threading.BoundedSemaphore(most)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._lock = threading.Lock()

    def run(self, function: Callable[[bytes], Any], content: bytes, limits: DecodeLimits) -> Any:
        """Waits for a free process and returns `function(content)` computed in it; errors as for `BoundedDecoder`."""
        with self._free:
            process = self._take()
            try:
                return process.ask(function, content, limits)
            finally:
                self._put_back(process)

    def start(self) -> None:
        """Starts a process, unless one is idle, so that the first file need not wait for it.

        Raises UserError if none can be started.
        """
        with self._free:
            self._put_back(self._take())

    def close(self) -> None:
        """Ends all processes; calls that wait for one of them fail."""
        with self._lock:
            processes, self._idle = [*self._idle, *self._busy], []
        for process in processes:
            process.end()

    def _take(self) -> "_Process":
        """Returns an idle process, or starts one. Raises UserError if that is not possible."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive():
                    self._busy.add(process)
                    return process
                process.end()
        try:
            process = _Process()
        except OSError as error:
            self.works = False
            raise UserError(f"no process to decode pictures could be started: {error}") from error
        self.works = True
        with self._lock:
            self._busy.add(process)
        return process

    def _put_back(self, process: "_Process") -> None:
        """Makes a process idle, or ends it if it cannot be used again."""
        with self._lock:
            self._busy.discard(process)
            if process.is_alive():
                self._idle.append(process)
                return
        process.end()


@functools.cache
def shared_pool() -> DecodePool:
    """Returns the pool for decoders without one of their own; its processes end when this process does."""
    pool = DecodePool(max(2, min(available_processors(), MOST_PROCESSES)))
    atexit.register(pool.close)
    return pool


if hasattr(os, "register_at_fork"):  # a forked copy of this process must not use the same processes
    os.register_at_fork(after_in_child=shared_pool.cache_clear)


class _Process:
    """A process that runs `decode_worker.py`. It is used by one thread at a time; any thread may end it."""

    def __init__(self) -> None:
        """Starts the process and waits until it is ready. Raises OSError if it does not start."""
        # `-m` would search for modules in the working directory too; this searches where this process does.
        code = f"import sys; sys.path[:] = {sys.path!r}; from vitrail.data.decode_worker import main; main()"
        self._process = subprocess.Popen(  # noqa: S603  this program itself
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
        )
        self._usable = True
        with _Deadline(self, _START_SECONDS):
            try:
                answer, _ = self._read(0)
            except (OSError, ValueError):
                answer = None
        if answer != {"ready": True}:
            self.end()
            raise OSError(f"{sys.executable} ended while it started (status {self._process.returncode})")

    def is_alive(self) -> bool:
        """Tells whether it can decode another file."""
        return self._usable and self._process.poll() is None

    def ask(self, function: Callable[[bytes], Any], content: bytes, limits: DecodeLimits) -> Any:
        """Sends a function and a file to the process and returns the result, or raises the BadImage that it raised.

        If the file takes too much time, or the process ends, it cannot be used again.
        """
        from vitrail.data.decode_worker import REQUEST

        request = pickle.dumps((function, limits.seconds, limits.memory_mb))
        assert self._process.stdin is not None
        deadline = _Deadline(self, limits.seconds)
        try:
            with deadline:
                for part in (REQUEST.pack(len(request), len(content)), request, content):
                    self._process.stdin.write(part)
                self._process.stdin.flush()
                answer, data = self._read(limits.output_mb)
            return _value(answer, data)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.end()
            if deadline.passed:
                reason = f"takes longer than {limits.seconds:g} seconds to decode (--decode-seconds)"
                raise TooCostly(reason) from None
            raise BadImage(f"ends the process that decodes it ({_reason(self._process.returncode)})") from error
        except TooCostly:
            self._usable = False  # it may not have freed all its memory, or not have sent all of its answer
            raise
        finally:
            self._usable = self._usable and not deadline.passed

    def end(self) -> None:
        """Ends the process, whatever it is doing, and waits until it is gone."""
        self._usable = False
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def kill(self) -> None:
        """Kills the process; the thread that waits for its answer then raises an error."""
        self._process.kill()

    def _read(self, most_mb: float) -> tuple[dict[str, Any], bytes]:
        """Reads an answer: its JSON, and the bytes of its arrays, at most so many MB. Raises OSError if the process
        ended before it."""
        from vitrail.data.decode_worker import ANSWER

        text_length, data_length = ANSWER.unpack(self._exactly(ANSWER.size))
        if text_length > _MOST_TEXT or data_length > most_mb * 2**20:
            raise TooCostly(f"becomes more than {most_mb:g} MB of pixels")
        return json.loads(self._exactly(text_length)), self._exactly(data_length)

    def _exactly(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise OSError("the process ended before its answer")
        return data


class _Deadline:
    """Kills a process if the block, which uses it, takes longer than `seconds`; `passed` is True then."""

    def __init__(self, process: _Process, seconds: float) -> None:
        self.passed = False
        self._process, self._done, self._lock = process, False, threading.Lock()
        self._timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._pass)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._done = True

    def _pass(self) -> None:
        with self._lock:
            if not self._done:
                self.passed = True
                self._process.kill()


def _value(answer: dict[str, Any], data: bytes) -> Any:
    """Rebuilds from an answer what the function returned, or raises what it raised. data: the bytes of the arrays."""
    if "failure" in answer:
        raise RuntimeError(f"the process that decodes has failed:\n{answer['failure']}")
    if "error" in answer:
        kind, message = answer["error"]
        raise KINDS[kind](message)
    value, offset = dict(answer["values"]), 0
    for name, kind, shape in answer["arrays"]:
        dtype = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        value[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        offset += count * dtype.itemsize
    return value[""] if set(value) == {""} else value


def _reason(status: int | None) -> str:
    """Names the signal or the exit status with which a process ended."""
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-status).name
    return f"status {status}"
