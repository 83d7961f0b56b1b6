"""An HTTP/1.1 connection of uvicorn with limits of time, which uvicorn's own has not.

Limited are the arrival of the headers (408), the rest of a body whose request has been answered already, and the time
in which a client takes its answer. The arrival of the body is limited by the middleware. While the queue is full,
`overload` answers before the request is parsed.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serving.errors import ApiError, busy_error, error_document
from vitrail.serving.overload import OverloadResponder
from vitrail.serving.service import Service

_IDLE = {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
_KEEP_ALIVE, _KEEP_ALIVE_CROWDED = 75, 5
"""Seconds a connection may be idle: longer than the minute of usual load balancers, so that none sends into one that
is just being closed. Where more than half of all connections are open, the shorter time."""
_LINGER = 2.0
"""Seconds to read on after an early answer, so that a client that is still sending gets to see it."""
_PROBE_INTERVAL = 1.0
"""Seconds between messages to a client that sends nothing more, to learn whether it still reads."""


class Connection(H11Protocol):
    """One client's connection. `make_connection_class` sets `service` and `overload`: uvicorn creates the objects."""

    service: Service
    overload: OverloadResponder

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begins to wait for the first request, or refuses it where there are too many connections."""
        super().connection_made(transport)
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._unread = 0
        """Bytes still to come of a request that was answered by `overload`."""
        self._half_closed = False
        """Whether the client has sent its last request and still waits for answers."""
        if len(self.connections) > self.service.max_connections:
            self._respond_and_close(busy_error("there are too many connections"))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers; what the client has asked for is dropped."""
        for timer in (self._head_timer, self._body_timer, self._send_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Gives the data to the parser, unless the queue is full: then the request is answered without it."""
        if self.transport.is_closing():
            return
        if self._unread:
            data = self._skip(data)
        if not data or self._answered_by_overload(data):
            return
        if self.conn.their_state is h11.IDLE and self._head_timer is None:
            self._expect_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self.conn.their_state is not h11.SEND_BODY and self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keeps the connection open where requests that have arrived whole are not answered yet.

        A client that has only ended its sending (`shutdown(SHUT_WR)`) waits for its answers. One that has left looks
        the same, until something is sent to it: see `_probe`.
        """
        self._half_closed = self._is_answering() and self.conn.their_state is not h11.SEND_BODY
        if self._half_closed:
            self._probe_timer = self.loop.call_later(_PROBE_INTERVAL, self._probe)
        return self._half_closed

    def on_response_complete(self) -> None:
        """Goes on with the next request, or waits for it, or closes after the last one."""
        self._choose_keep_alive()
        super().on_response_complete()
        if self._half_closed and not self._is_answering():
            self.transport.close()
        elif self.conn.their_state is h11.SEND_BODY and self._body_timer is None and not self.transport.is_closing():
            self._body_timer = self.loop.call_later(_LINGER, self.transport.close)

    def pause_writing(self) -> None:
        """Gives the client a limited time to take what has been sent to it."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self.service.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that time: the client reads."""
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP with an error like all others, and closes the connection."""
        self._respond_and_close(ApiError(400, "bad_http", "this is not a valid HTTP/1.1 request"))

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _probe(self) -> None:
        """Sends 102 Processing once a second: it means nothing to a client that waits, and fails if there is none."""
        if self._is_answering() and self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] == "1.1":
            message = h11.InformationalResponse(status_code=102, headers=[], reason=b"Processing")
            self.transport.write(self.conn.send(message))
        self._probe_timer = self.loop.call_later(_PROBE_INTERVAL, self._probe)

    def _answered_by_overload(self, data: bytes) -> bool:
        """Tells whether `data` began a new request that has been answered here: then the parser never hears of it."""
        if self.conn.states != _IDLE or self.conn.trailing_data[0]:
            return False
        rejected = self.overload.reject(data)
        if rejected is None:
            return False
        answer, self._unread = rejected
        self.transport.write(answer)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self._unread:
            self._body_timer = self.loop.call_later(_LINGER, self.transport.close)
        self._unset_keepalive_if_required()
        self._choose_keep_alive()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

    def _skip(self, data: bytes) -> bytes:
        """Removes from `data` what belongs to the body of a request that has been answered already."""
        skipped = min(len(data), self._unread)
        self._unread -= skipped
        if not self._unread and self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        return data[skipped:]

    def _choose_keep_alive(self) -> None:
        crowded = len(self.connections) > self.service.max_connections // 2
        self.timeout_keep_alive = _KEEP_ALIVE_CROWDED if crowded else _KEEP_ALIVE

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.service.limits.receive_seconds, self._head_too_slow)

    def _head_too_slow(self) -> None:
        seconds = self.service.limits.receive_seconds
        self._respond_and_close(
            ApiError(408, "too_slow", f"the request's headers did not arrive within {seconds:g} seconds")
        )

    def _respond_and_close(self, error: ApiError) -> None:
        """Answers without the application, where no answer has begun, and closes the connection."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if not self._is_answering() or not self.cycle.response_started:
            body = json.dumps(error_document(error)).encode()
            lines = [f"HTTP/1.1 {error.status} Refused", "Content-Type: application/json"]
            lines += [f"{name}: {value}" for name, value in {**error.headers, "Connection": "close"}.items()]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
            self.transport.write(head.encode() + body)
        if self._is_answering():  # the application learns that nobody is there
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def make_connection_class(service: Service, overload: OverloadResponder) -> type[Connection]:
    """Returns the class of connections that uvicorn creates for this server."""
    return type("ServiceConnection", (Connection,), {"service": service, "overload": overload})
