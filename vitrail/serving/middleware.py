"""The middleware between the connections and the application, which every request and every answer passes.

A request gets an id, its key is checked, and its body is limited in size and in the time of its arrival. An answer gets
headers that keep browsers safe, a line in the log, and a count. Whatever goes wrong inside the application becomes a
plain JSON error here at the latest.
"""

import asyncio
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serving.errors import ApiError, busy_error, error_document, internal_error
from vitrail.serving.keys import ApiKeys, needs_no_key
from vitrail.serving.logs import log, request_id
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
"""Headers of every answer that does not set them itself."""
_CLIENT_LEFT = 499
"""The status in log and metrics of a request whose client left before its answer."""


class RequestMiddleware:
    """The ASGI application that admits requests to `app`, and answers those that it does not admit."""

    def __init__(self, app: ASGIApp, service: Service, keys: ApiKeys):
        self.app, self.service, self.keys = app, service, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request, or the start and end of the server."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.service)
        self.service.metrics.in_flight.inc()
        try:
            self._admit(scope)
            await self.app(scope, exchange.receive, exchange.send)
        except ApiError as error:
            await exchange.send_error(error)
        except asyncio.CancelledError:
            # The time to drain is over.
            await exchange.send_error(ApiError(503, "shutting_down", "the server is ending", retry_after=5))
            raise
        except Exception as error:
            log("error", logging.ERROR, error=error, request_id=exchange.id)
            await exchange.send_error(internal_error())
        finally:
            self.service.metrics.in_flight.dec()
            exchange.close()

    def _admit(self, scope: Scope) -> None:
        """Raises the ApiError of a request that must not reach the application."""
        # A proxy may believe the one and we the other: the end of this request could be the start of a hidden one.
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            message = "a request has either Content-Length or Transfer-Encoding, not both"
            raise ApiError(400, "bad_http", message, close=True)
        if not needs_no_key(scope["path"]) and not self.keys.accepts(scope["headers"]):
            raise ApiError(401, "unauthorized", "give the API key: Authorization: Bearer KEY")
        # Everything that is posted here is images.
        if scope["method"] == "POST" and (error := self.service.overload_error()):
            raise error


class Exchange:
    """One request and its answer, with the limits that hold for both.

    `receive` and `send` take the place of those that ASGI gives to the application.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service):
        self.scope, self._receive, self._send, self.service = scope, receive, send, service
        self.began = time.perf_counter()
        headers = dict(scope["headers"])
        self.id = request_id(headers.get(b"x-request-id"))
        self.deadline = asyncio.get_running_loop().time() + service.limits.receive_seconds
        self.claimed = _number(headers.get(b"content-length"))
        """Bytes of the body, by its header."""
        self.received = 0
        """Bytes of the body that have arrived."""
        self.complete = False
        """Whether all of the body has arrived."""
        self.status: int | None = None
        self.client_left = False

    async def receive(self) -> Message:
        """Returns the next part of the body, or raises an ApiError where it is too large or too slow.

        What is too large is refused as early as possible: by its header, or while it arrives. After the body it waits
        until the client leaves or the answer is sent.
        """
        if self.complete:
            message = await self._receive()
            self.client_left |= message["type"] == "http.disconnect"
            return message
        most = self.service.limits.max_body_bytes
        if self.claimed > most:
            raise self._too_large(most)
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self.service.limits.receive_seconds
            sentence = f"the request did not arrive within {seconds:g} seconds"
            raise ApiError(408, "too_slow", sentence, close=True) from None
        if message["type"] == "http.disconnect":
            self.client_left = True
            return message
        size = len(message.get("body", b""))
        self.received += size
        self.service.body_bytes += size
        if self.received > most:
            raise self._too_large(most)
        if self.service.body_bytes > self.service.limits.max_memory_bytes:
            raise busy_error("there are too many uploads at once")
        self.complete = not message.get("more_body", False)
        return message

    def _too_large(self, most: int) -> ApiError:
        return ApiError(413, "body_too_large", f"the request is larger than {most / 2**20:g} MB")

    async def send(self, message: Message) -> None:
        """Sends a part of the answer; its headers with ours."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            names = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in HEADERS.items() if name not in names]
            headers.append((b"x-request-id", self.id.encode()))
            if self.service.draining:
                headers.append((b"connection", b"close"))
            message["headers"] = headers
        await self._send(message)

    async def send_error(self, error: ApiError) -> None:
        """Sends an error as JSON, unless an answer has begun."""
        if self.status is not None:
            return
        self.service.metrics.rejected.labels(error.code).inc()
        body = json.dumps(error_document(error)).encode()
        extra = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        if error.status == 401:
            extra["www-authenticate"] = "Bearer"
        headers = [(name.lower().encode(), value.encode()) for name, value in extra.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        """Counts and logs the request, and gives back the memory of its body."""
        self.service.body_bytes -= self.received
        seconds = time.perf_counter() - self.began
        answered = self.status is not None and not (self.client_left and self.status == _CLIENT_LEFT)
        status = self.status if self.status is not None and answered else _CLIENT_LEFT
        route = getattr(self.scope.get("route"), "path", "none")
        self.service.metrics.count_request(self.scope["method"], route, status, seconds)
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
