"""A full server turns images away on their first bytes, with the answer of the usual way; the connection lives on."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import h11
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.conftest import Played, PlayedEngine, picture, played, wait_for
from vitrail.serving import connection
from vitrail.serving.keys import ApiKeys
from vitrail.serving.limits import Limits
from vitrail.serving.metrics import Metrics
from vitrail.serving.middleware import HEADERS
from vitrail.serving.overload import OverloadResponder, parse_request_head

KEY = "a key of sixteen letters".replace(" ", "-")


def request(body: bytes, *lines: str, path: str = "/predict") -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: a", "Content-Type: image/png", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


@contextlib.contextmanager
def full(keys: ApiKeys | None = None) -> Iterator[tuple[Played, threading.Event]]:
    """A server with one image that it works on until it is released, and room for no other."""
    engine = PlayedEngine(held=threading.Event())
    assert engine.held is not None
    engine.held.set()
    with played(engine, Limits(max_batch=1, max_wait_ms=0, max_queue=1), keys) as found:
        engine.held.clear()
        with socket.create_connection(("127.0.0.1", found.port)) as first:
            first.sendall(request(picture(), f"X-API-Key: {KEY}"))
            wait_for(lambda: found.service.batcher.pending == 1)
            yield found, engine.held
            engine.held.set()
            assert answer_of(first)[0] == 200


def received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    assert data, "the connection was closed"
    return data


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], dict]:
    connection.settimeout(60)
    data = b""
    while b"\r\n\r\n" not in data:
        data += received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += received(connection)
    return int(first.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize("pause", [False, True])
def test_turned_away_with_all_that_an_answer_has_and_the_connection_lives_on(pause, caplog):
    body = picture() + b"\0" * 300_000  # more than arrives at once
    with full() as (found, held), socket.create_connection(("127.0.0.1", found.port)) as client:
        for _ in range(3):
            sent = request(body, "X-Request-Id: mine", "Connection: keep-alive")
            if pause:
                client.sendall(sent[:400])
                status, headers, document = answer_of(client)  # before the body is there
                client.sendall(sent[400:])
            else:
                client.sendall(sent)
                status, headers, document = answer_of(client)
            assert status == 503
            assert document["error"]["code"] == "busy"
            assert headers["retry-after"] == "1"
            assert headers["content-type"] == "application/json"
            assert headers["x-request-id"] == "mine"
            assert all(headers[name.decode()] == value.decode() for name, value in HEADERS.items())
        assert 'vitrail_rejected_total{code="busy"} 3.0' in httpx.get(f"{found.url}/metrics").text
        wait_for(lambda: found.service.rejected_early == 0)  # the log has said so
        assert any(record.getMessage() == "overloaded" for record in caplog.records)
        held.set()
        wait_for(lambda: found.service.batcher.pending == 0)
        client.sendall(request(picture()))
        assert answer_of(client)[0] == 200


def test_the_usual_way_says_the_same():
    with full() as (found, _):
        with socket.create_connection(("127.0.0.1", found.port)) as client:
            client.sendall(request(picture()))
            quick = answer_of(client)
            client.sendall(request(picture(), "Expect: nothing"))
            usual = answer_of(client)
        assert quick[0] == usual[0]
        assert quick[2] == usual[2]
        assert set(quick[1]) == set(usual[1]) - {"date"}


def test_without_the_key_it_is_a_401_even_when_full():
    with full(ApiKeys([KEY])) as (found, _):
        for lines, status in (((), 401), (("X-API-Key: wrong",), 401), ((f"Authorization: Bearer {KEY}",), 503)):
            with socket.create_connection(("127.0.0.1", found.port)) as client:
                client.sendall(request(picture(), *lines))
                assert answer_of(client)[0] == status


def test_a_body_that_does_not_come_ends_the_connection(monkeypatch):
    monkeypatch.setattr(connection, "_LINGER", 0.2)
    with full() as (found, _), socket.create_connection(("127.0.0.1", found.port)) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        assert answer_of(client)[0] == 503
        assert client.recv(1) == b""


HEADER_NAMES = st.sampled_from(
    ["Host", "Content-Length", "Connection", "Expect", "Transfer-Encoding", "X-A", "x_b", " ", ""]
)
HEADER_VALUES = st.one_of(
    st.sampled_from(["a", "5", "05", "+5", "5, 5", "5 ", "chunked", "keep-alive", "close", "100-continue", "", "\x00"]),
    st.text(st.characters(max_codepoint=255), max_size=8),
)
FIRST_LINES = st.sampled_from(
    [
        "POST /predict HTTP/1.1",
        "POST /a?b HTTP/1.1",
        "POST  /predict HTTP/1.1",
        "POST /predict HTTP/1.0",
        "POST /predict",
        "GET / HTTP/1.1",
        "POST /\x00 HTTP/1.1",
    ]
)


@given(FIRST_LINES, st.lists(st.tuples(HEADER_NAMES, HEADER_VALUES), max_size=5), st.booleans(), st.binary(max_size=30))
def test_what_it_understands_the_parser_understands_alike(first, pairs, sane, rest):
    """Of anything that may come: either it is left to the parser, or both read the same request."""
    pairs = [("Host", "a"), ("Content-Length", "5"), *pairs] if sane else pairs
    head = "\r\n".join([first, *(f"{name}:{value}" for name, value in pairs), "", ""]).encode("latin-1")
    found = parse_request_head(head + rest)
    if found is None:
        return
    path, headers, start, length = found
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(head)
    event = parser.next_event()
    assert isinstance(event, h11.Request)
    assert event.method == b"POST"
    assert event.target.partition(b"?")[0].decode() == path
    assert dict(event.headers) == headers
    assert start == len(head)
    if length:
        parser.receive_data(b"x" * length)
        assert len(parser.next_event().data) == length  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(parser.next_event(), h11.EndOfMessage)


@given(st.binary(max_size=200))
def test_any_bytes_may_come_and_none_are_answered_while_there_is_room(data):
    parse_request_head(b"POST /" + data)
    service = SimpleNamespace(draining=False, overload_error=lambda: None, limits=Limits(), metrics=Metrics())
    assert OverloadResponder(service, ApiKeys(())).reject(b"POST /" + data) is None  # pyright: ignore[reportArgumentType]
