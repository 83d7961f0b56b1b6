"""A connection with deadlines: uvicorn's HTTP/1.1, which by itself waits for ever.

Timed are the headers (408), the rest of a body whose request was answered already, and a client that does not take its
answer. The body's own deadline is the gate's. While the server is full, the door answers before the parser.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrail.serving.door import Door
from vitrail.serving.limits import Limits
from vitrail.serving.refusals import Refusal, document

_IDLE = {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}
_KEEP, _KEEP_CROWDED = 75, 5
"""Seconds a connection may be idle: longer than the minute of usual load balancers, so that none sends into one that
is just being closed; where more than half of the places are taken, not so long."""
_LINGER = 2.0
"""Seconds to read on after an early answer, so that a client that is still sending gets to see it."""


class Connection(H11Protocol):
    """`limits` and `door` are set by `connection_class`: uvicorn makes these and hands over nothing of ours."""

    limits: Limits
    door: Door

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._headers: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._unread = 0
        """Bytes still to come of a request that was turned away at the door."""
        if len(self.connections) > self.limits.max_connections:
            self._refuse(Refusal(503, "busy", "there are too many connections; try again in a second", retry_after=1))
        else:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._headers, self._rest, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._unread:
            data = self._skip(data)
        if not data or self._turned_away(data):
            return
        if self.conn.their_state is h11.IDLE and self._headers is None:
            self._expect_headers()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and self._headers is not None:
            self._headers.cancel()
            self._headers = None
        if self.conn.their_state is not h11.SEND_BODY and self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _turned_away(self, data: bytes) -> bool:
        """Whether a new request was answered at the door: then the parser never hears of it."""
        if self.conn.states != _IDLE or self.conn.trailing_data[0]:
            return False
        refused = self.door.turn_away(data)
        if refused is None:
            return False
        answer, self._unread = refused
        self.transport.write(answer)
        if self._headers is not None:
            self._headers.cancel()
            self._headers = None
        if self._unread:
            self._rest = self.loop.call_later(_LINGER, self.transport.close)
        self._unset_keepalive_if_required()
        self._choose_patience()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

    def _skip(self, data: bytes) -> bytes:
        skipped = min(len(data), self._unread)
        self._unread -= skipped
        if not self._unread and self._rest is not None:
            self._rest.cancel()
            self._rest = None
        return data[skipped:]

    def on_response_complete(self) -> None:
        self._choose_patience()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and self._rest is None and not self.transport.is_closing():
            self._rest = self.loop.call_later(_LINGER, self.transport.close)

    def _choose_patience(self) -> None:
        crowded = len(self.connections) > self.limits.max_connections // 2
        self.timeout_keep_alive = _KEEP_CROWDED if crowded else _KEEP

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self.limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(Refusal(400, "bad_http", "this is not a valid HTTP/1.1 request"))

    def _expect_headers(self) -> None:
        self._headers = self.loop.call_later(self.limits.receive_seconds, self._too_slow)

    def _too_slow(self) -> None:
        seconds = self.limits.receive_seconds
        self._refuse(Refusal(408, "too_slow", f"the request's headers did not arrive within {seconds:g} seconds"))

    def _refuse(self, refusal: Refusal) -> None:
        """Said without the application, and the end of the connection."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering or not self.cycle.response_started:
            body = json.dumps(document(refusal)).encode()
            lines = [f"HTTP/1.1 {refusal.status} Refused", "Content-Type: application/json"]
            lines += [f"{name}: {value}" for name, value in {**refusal.headers, "Connection": "close"}.items()]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
            self.transport.write(head.encode() + body)
        if answering:  # the application learns that nobody is there
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def connection_class(limits: Limits, door: Door) -> type[Connection]:
    return type("LimitedConnection", (Connection,), {"limits": limits, "door": door})
