"""What every request passes on its way in, and every answer on its way out.

In: a request id, the key, the size of the body while it arrives, and a deadline for its arrival. Out: headers that keep
browsers safe, a line in the log, and a count. Whatever goes wrong inside becomes a plain JSON error here at the latest.
"""

import asyncio
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serving.keys import Keys, is_open
from vitrail.serving.logs import log, request_id
from vitrail.serving.refusals import Refusal, busy, document, internal
from vitrail.serving.service import Service

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"permissions-policy": b"camera=(self), microphone=(), geolocation=()",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Unless an answer says otherwise."""
_GONE = 499
"""In log and metrics, for a client that left before its answer."""


class Gate:
    def __init__(self, app: ASGIApp, service: Service, keys: Keys):
        self.app, self.service, self.keys = app, service, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        passage = Passage(scope, receive, send, self.service)
        self.service.metrics.in_flight.inc()
        try:
            self._admit(scope)
            await self.app(scope, passage.receive, passage.send)
        except Refusal as refusal:
            await passage.refuse(refusal)
        except asyncio.CancelledError:
            # The time to drain is over.
            await passage.refuse(Refusal(503, "shutting_down", "the server is ending", retry_after=5))
            raise
        except Exception as error:
            log("error", logging.ERROR, error=error, request_id=passage.id)
            await passage.refuse(internal())
        finally:
            self.service.metrics.in_flight.dec()
            passage.close()

    def _admit(self, scope: Scope) -> None:
        if not is_open(scope["path"]) and not self.keys.accept(scope["headers"]):
            raise Refusal(401, "unauthorized", "give the API key: Authorization: Bearer KEY")
        if scope["method"] == "POST" and (refusal := self.service.no_room()):  # whatever is posted here is images
            raise refusal


class Passage:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service):
        self.scope, self._receive, self._send, self.service = scope, receive, send, service
        self.began = time.perf_counter()
        headers = dict(scope["headers"])
        self.id = request_id(headers.get(b"x-request-id"))
        self.deadline = asyncio.get_running_loop().time() + service.limits.receive_seconds
        self.claimed = _number(headers.get(b"content-length"))
        self.received = 0
        self.whole = False
        self.status: int | None = None
        self.left = False

    async def receive(self) -> Message:
        """The body, chunk by chunk. What is too large is refused at once, by its header or while it arrives."""
        if self.whole:
            message = await self._receive()  # waits until the client leaves, or the answer is sent
            self.left |= message["type"] == "http.disconnect"
            return message
        most = self.service.limits.max_body_bytes
        if self.claimed > most:
            raise self._too_large(most)
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self.service.limits.receive_seconds
            raise Refusal(408, "too_slow", f"the request did not arrive within {seconds:g} seconds") from None
        if message["type"] == "http.disconnect":
            self.left = True
            return message
        size = len(message.get("body", b""))
        self.received += size
        self.service.body_bytes += size
        if self.received > most:
            raise self._too_large(most)
        if self.service.body_bytes > self.service.limits.max_memory_bytes:
            raise busy("there are too many uploads at once")
        self.whole = not message.get("more_body", False)
        return message

    def _too_large(self, most: int) -> Refusal:
        return Refusal(413, "body_too_large", f"the request is larger than {most / 2**20:g} MB")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", []))
            names = {name.lower() for name, _ in own}
            own += [(name, value) for name, value in HEADERS.items() if name not in names]
            own.append((b"x-request-id", self.id.encode()))
            if self.service.draining:
                own.append((b"connection", b"close"))
            message["headers"] = own
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """An error as JSON, where no answer has begun."""
        if self.status is not None:
            return
        self.service.metrics.rejected.labels(refusal.code).inc()
        body = json.dumps(document(refusal)).encode()
        extra = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        if refusal.status == 401:
            extra["www-authenticate"] = "Bearer"
        headers = [(name.lower().encode(), value.encode()) for name, value in extra.items()]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        self.service.body_bytes -= self.received
        seconds = time.perf_counter() - self.began
        status = self.status if self.status is not None and not (self.left and self.status == _GONE) else _GONE
        route = getattr(self.scope.get("route"), "path", "none")
        self.service.metrics.answered(self.scope["method"], route, status, seconds)
        facts: dict[str, Any] = {
            "request_id": self.id,
            "method": self.scope["method"],
            "path": self.scope["path"][:256],
            "status": status,
            "milliseconds": round(seconds * 1000, 2),
            "bytes": self.received,
            "client": (self.scope.get("client") or ("",))[0],
        }
        log("request", **facts)


def _number(text: bytes | None) -> int:
    return int(text[:20]) if text is not None and text.isdigit() else 0
