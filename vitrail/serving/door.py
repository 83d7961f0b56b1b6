"""The cheapest refusal: while there is no room, images are turned away on the first bytes of their request.

Under overload most requests are refused, and what that costs is taken from those that are answered. The usual way
(parser, task, application, a line in the log) takes ten times as long. They are counted, and the log says once a second
how many they were. Whatever is unusual about a request goes the usual way, where the same is said about it.
"""

import json

from vitrail.serving.gate import HEADERS
from vitrail.serving.keys import Keys, is_open
from vitrail.serving.logs import request_id
from vitrail.serving.refusals import Refusal, document
from vitrail.serving.service import Service

_LONGEST_HEAD = 8192
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"connection", b""))


class Door:
    def __init__(self, service: Service, keys: Keys):
        self.service, self.keys = service, keys
        self._headers = b"".join(b"%s: %s\r\n" % each for each in HEADERS.items())
        self._rejected = service.metrics.rejected.labels("busy")
        self._requests = service.metrics.requests.labels("POST", "none", "503")

    def turn_away(self, data: bytes) -> tuple[bytes, int] | None:
        """The answer to a request that begins with `data`, and how much of its body is still to come; None where it is
        to be read properly."""
        if not data.startswith(b"POST /") or self.service.draining:
            return None
        refusal = self.service.no_room()
        if refusal is None or (head := read_head(data)) is None:
            return None
        path, headers, start, length = head
        left = length - (len(data) - start)
        if left < 0 or length > self.service.limits.max_body_bytes:  # another request follows, or it is too large
            return None
        if not is_open(path) and not self.keys.accept(headers.items()):
            return None
        self.service.turned_away += 1
        self._rejected.inc()
        self._requests.inc()
        return self._answer(refusal, request_id(headers.get(b"x-request-id"))), left

    def _answer(self, refusal: Refusal, given: str) -> bytes:
        body = json.dumps(document(refusal)).encode()
        extra = {"content-type": "application/json", "content-length": len(body), **refusal.headers}
        lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in {**extra, "x-request-id": given}.items())
        return b"HTTP/1.1 %d Service Unavailable\r\n%s%s\r\n%s" % (
            refusal.status,
            lines.encode(),
            self._headers,
            body,
        )


def read_head(data: bytes) -> tuple[str, dict[bytes, bytes], int, int] | None:
    """Path, headers, where the body starts and how long it is, of a plain POST whose head is all there."""
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
        # Twice, folded over two lines, or none that a header may be called: not for us to understand.
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
    """Printable, one line."""
    return value.isascii() and value.decode("ascii").isprintable()
