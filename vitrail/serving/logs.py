"""The log: one JSON object a line, on stderr."""

import faulthandler
import itertools
import json
import logging
import os
import re
import secrets
import sys
import threading
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("vitrail.serving")
_GOOD_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PREFIX, _COUNT = secrets.token_hex(5), itertools.count(1)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str = "info") -> None:
    """Ours and uvicorn's, to one handler; uvicorn's own lines about requests are left out, ours say more."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.captureWarnings(True)
    logging.getLogger().handlers = [handler]  # for what libraries have to say
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is said to whom it came from
    for name in ("vitrail.serving", "uvicorn", "asyncio", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # What uvicorn says of a life in order we say ourselves; what a stranger's broken request does is no warning.
    logging.getLogger("uvicorn.error").setLevel(max(logging.ERROR, logging.getLevelName(level.upper())))
    logging.getLogger("uvicorn.access").disabled = True


def adopt_stderr() -> None:
    """What C libraries write to stderr (libtiff about damaged files) becomes lines of the log too, at level debug."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    faulthandler.enable(sys.stderr)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)

    def read() -> None:
        with os.fdopen(reader, errors="replace") as lines:
            for line in lines:
                log("library", logging.DEBUG, text=line.strip()[:500])

    threading.Thread(target=read, name="stderr", daemon=True).start()


def log(event: str, level: int = logging.INFO, *, error: BaseException | None = None, **facts: Any) -> None:
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=error, extra={"facts": facts})


def request_id(given: bytes | None) -> str:
    """The client's own, where it is a harmless word; else a new one, of this process and a count."""
    return given.decode() if given is not None and _GOOD_ID.fullmatch(given) else f"{_PREFIX}{next(_COUNT):06x}"
