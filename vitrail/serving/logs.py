"""The log: one JSON object a line, on stderr, written so that nothing ever waits for it.

Lines go to a queue of limited length, and a thread writes them. If stderr does not take them (a full pipe, a full disk,
a reader that has gone), that thread waits or fails alone: requests are answered, signals are heard, and the lines that
find no room are counted. Of each event only so many lines are kept a second. How many lines were dropped is a line of
its own, as soon as one can be written.
"""

import contextlib
import faulthandler
import io
import itertools
import json
import logging
import os
import queue
import re
import secrets
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("vitrail.serving")
CAPACITY = 2048
"""Lines that may wait to be written."""
LONGEST_LINE = 32_768
"""Bytes of a line that are kept; only tracebacks are longer."""
LINES_PER_SECOND = {"request": 1000}
"""Lines of an event that are kept in one second."""
OTHER_LINES_PER_SECOND = 20
"""The same for events that are not in `LINES_PER_SECOND`."""
_REPORT_INTERVAL = 1.0
"""Seconds after which dropped lines are reported even if no other line follows."""
_LAST_SECONDS = 1.0
"""How long the end of the program waits for the last lines to be written."""
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PREFIX, _COUNT = secrets.token_hex(5), itertools.count(1)


class LogWriter:
    """Writes bytes to a file descriptor in a thread of its own; `put` neither waits nor fails."""

    def __init__(self, descriptor: int, capacity: int = CAPACITY):
        self.descriptor, self.capacity = descriptor, capacity
        # A SimpleQueue and a reentrant lock: a destructor may log in the middle of anything, `put` included.
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.RLock()
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Hands over one line, or drops it if too many wait already."""
        if self._queue.qsize() >= self.capacity:
            self.count_dropped(1)
        else:
            self._queue.put(data)

    def count_dropped(self, lines: int) -> None:
        """Adds to the number of dropped lines that is written when there is room again."""
        with self._lock:
            self._dropped += lines

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Waits until everything is written, but no longer than `seconds`, and closes the descriptor."""
        self._queue.put(None)
        self._thread.join(seconds)
        if not self._thread.is_alive():
            os.close(self.descriptor)

    def _run(self) -> None:
        while True:
            try:
                data = self._queue.get(timeout=_REPORT_INTERVAL)
            except queue.Empty:
                data = b""
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            if dropped and not self._write(format_line("lines dropped", "warning", {"lines": dropped})):
                self.count_dropped(dropped)
            if data and not self._write(data):
                self.count_dropped(1)
            if data is None:
                return

    def _write(self, data: bytes) -> bool:
        """Writes all of it, however long that takes, or returns False where it cannot be written."""
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self.descriptor, rest) :]
                except BlockingIOError:  # whoever started this program made its stderr so
                    select.select([], [self.descriptor], [])
        except (OSError, ValueError):
            return False
        return True


class LogHandler(logging.Handler):
    """Hands records to a LogWriter as JSON, only so many of each event a second, and never raises anything."""

    def __init__(self, writer: LogWriter):
        super().__init__()
        self.writer = writer
        self._second = 0
        self._lines: Counter[str] = Counter()
        """Lines in the present second, by event."""

    def emit(self, record: logging.LogRecord) -> None:
        """Hands one record over, or counts it as dropped."""
        try:
            # Others put changing values in their messages, so theirs are counted by the line of code that logs them.
            ours = record.name == LOGGER.name
            if self._is_too_frequent(record.msg if ours else f"{record.pathname}:{record.lineno}"):
                self.writer.count_dropped(1)
                return
            facts = dict(getattr(record, "facts", {}))
            if record.exc_info:
                facts["traceback"] = logging.Formatter().formatException(record.exc_info)[-LONGEST_LINE // 2 :]
            self.writer.put(format_line(record.getMessage(), record.levelname.lower(), facts, record.created))
        except Exception:
            self.writer.count_dropped(1)

    def _is_too_frequent(self, event: str) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._lines.clear()
        self._lines[event] += 1
        return self._lines[event] > LINES_PER_SECOND.get(event, OTHER_LINES_PER_SECOND)


class LoggedStream(io.TextIOBase):
    """Takes the place of `sys.stderr`: what Python code prints goes through the LogWriter, as it is."""

    def __init__(self, writer: LogWriter):
        self._writer = writer
        self._text = ""

    def write(self, text: str) -> int:
        """Keeps the text until its line ends, so that no other line comes between."""
        self._text += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Hands over what has been kept, whether its line has ended or not."""
        text, self._text = self._text, ""
        if text:
            self._writer.put(text.encode(errors="backslashreplace")[:LONGEST_LINE])

    def writable(self) -> bool:
        """Returns True."""
        return True

    def isatty(self) -> bool:
        """Tells whether a person sees what is written."""
        return os.isatty(self._writer.descriptor)


def format_line(event: str, level: str, facts: dict[str, Any], created: float | None = None) -> bytes:
    """Returns one line of the log: time, level and event, then the facts."""
    moment = datetime.now(UTC) if created is None else datetime.fromtimestamp(created, UTC)
    line = {"time": moment.isoformat(timespec="milliseconds"), "level": level, "event": event[:LONGEST_LINE], **facts}
    return json.dumps(line, ensure_ascii=False, default=str).encode(errors="backslashreplace") + b"\n"


@contextlib.contextmanager
def redirect_stderr() -> Iterator[LogWriter]:
    """Makes this process's stderr belong to a LogWriter, which it yields; at the end stderr is as before.

    What Python prints to `sys.stderr` passes through it unchanged. What C libraries write to file descriptor 2 (libtiff
    about damaged files) becomes lines of the log, at level debug.
    """
    writer, stderr, had_faulthandler = LogWriter(os.dup(2)), sys.stderr, faulthandler.is_enabled()
    faulthandler.enable(writer.descriptor)
    sys.stderr = LoggedStream(writer)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def read() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                log("library", logging.DEBUG, text=line.strip()[:500])

    threading.Thread(target=read, name="stderr", daemon=True).start()
    try:
        yield writer
    finally:
        sys.stderr.flush()
        os.dup2(writer.descriptor, 2)
        sys.stderr = stderr
        if had_faulthandler:
            faulthandler.enable(2)
        else:
            faulthandler.disable()
        writer.close()


def configure(level: str, writer: LogWriter) -> None:
    """Sends our log and uvicorn's to the writer, from `level` on (debug, info, warning, error)."""
    handler = LogHandler(writer)
    logging.captureWarnings(True)
    logging.getLogger().handlers = [handler]  # for what libraries have to say
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is said to whom it came from
    for name in ("vitrail.serving", "uvicorn", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # The server's start and end are in our own log, and a stranger's broken request is not worth a warning.
    logging.getLogger("uvicorn.error").setLevel(max(logging.ERROR, logging.getLevelName(level.upper())))
    logging.getLogger("uvicorn.access").disabled = True  # our lines about requests say more


def log(event: str, level: int = logging.INFO, *, error: BaseException | None = None, **facts: Any) -> None:
    """Logs an event with its facts, and the traceback of `error` if there is one."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=error, extra={"facts": facts})


def request_id(given: bytes | None) -> str:
    """Returns the id of a request: the client's own if it is a harmless word, else a new one."""
    return given.decode() if given is not None and _GOOD_ID.fullmatch(given) else f"{_PREFIX}{next(_COUNT):06x}"
