"""The cheapest refusal: while the queue is full, images are refused on the first bytes of their request.

Under overload most requests are refused, and the time that takes is missing for those that are answered. The usual way,
through parser, task, middleware and log, takes ten times as long. These refusals are counted, and the log says once a
second how many there were. A request with anything unusual in its head goes the usual way, and is refused there.
"""

import json

from vitrail.serving.errors import ApiError, error_document
from vitrail.serving.keys import ApiKeys, needs_no_key
from vitrail.serving.logs import request_id
from vitrail.serving.middleware import HEADERS
from vitrail.serving.service import Service

_LONGEST_HEAD = 8192
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"connection", b""))


class OverloadResponder:
    """Answers requests for which there is no room, from the bytes of their head."""

    def __init__(self, service: Service, keys: ApiKeys):
        self.service, self.keys = service, keys
        self._headers = b"".join(b"%s: %s\r\n" % each for each in HEADERS.items())
        self._rejected = service.metrics.rejected.labels("busy")
        self._requests = service.metrics.requests.labels("POST", "none", "503")

    def reject(self, data: bytes) -> tuple[bytes, int] | None:
        """Returns the answer to a request that begins with `data`, and how many bytes of its body are still to come.

        It returns None for a request that there is room for, or that the parser has to read.
        """
        if not data.startswith(b"POST /") or self.service.draining:
            return None
        error = self.service.overload_error()
        if error is None or (head := parse_request_head(data)) is None:
            return None
        path, headers, start, length = head
        left = length - (len(data) - start)
        if left < 0 or length > self.service.limits.max_body_bytes:  # another request follows, or it is too large
            return None
        if not needs_no_key(path) and not self.keys.accepts(headers.items()):
            return None
        self.service.rejected_early += 1
        self._rejected.inc()
        self._requests.inc()
        return self._answer(error, request_id(headers.get(b"x-request-id"))), left

    def _answer(self, error: ApiError, given: str) -> bytes:
        body = json.dumps(error_document(error)).encode()
        extra = {"content-type": "application/json", "content-length": len(body), **error.headers}
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in {**extra, "x-request-id": given}.items())
        return b"HTTP/1.1 %d Service Unavailable\r\n%s%s\r\n%s" % (
            error.status,
            lines.encode(),
            self._headers,
            body,
        )


def parse_request_head(data: bytes) -> tuple[str, dict[bytes, bytes], int, int] | None:
    """Reads the head of a plain POST: its path, its headers, where the body starts and how long it is.

    It returns None for everything else, also for a head that has not arrived whole.
    """
    end = data.find(b"\r\n\r\n", 0, _LONGEST_HEAD)
    if end < 0:
        return None
    first, *lines = data[:end].split(b"\r\n")
    method, _, rest = first.partition(b" ")
    target, _, version = rest.partition(b" ")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        name = name.lower()
        # A header that stands twice, is folded over two lines, or has an impossible name is left to the parser.
        if not colon or name in headers or not _is_token(name) or not _is_plain(value):
            return None
        if name in _UNUSUAL and (name, value.lower()) != (b"connection", b"keep-alive"):
            return None
        headers[name] = value
    length = headers.get(b"content-length", b"")
    if method != b"POST" or version != b"HTTP/1.1" or b"host" not in headers or not _is_plain(target):
        return None
    if not target.isascii() or b"%" in target or not length.isdigit() or len(length) > 12:
        return None
    return target.partition(b"?")[0].decode(), headers, end + 4, int(length)


def _is_token(name: bytes) -> bool:
    return name.replace(b"-", b"").isalnum()


def _is_plain(value: bytes) -> bool:
    """Tells whether a value is printable ASCII on one line."""
    return value.isascii() and value.decode("ascii").isprintable()
