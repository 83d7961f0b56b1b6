"""Connections refuse requests whose end is unclear, and answer clients that stop sending."""

import json
import socket
import threading

import pytest

from tests.serving.conftest import PlayedEngine, picture, played, raw, wait_for
from vitrail.serving.limits import Limits

SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("path", [b"/predict", b"/model", b"/v2/health/live"])
def test_content_length_with_transfer_encoding_is_refused_and_the_connection_closed(server, order, path):
    """A proxy that believes the other one would take what follows for another client's request."""
    lines = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\n" % path
    answer = raw(server.port, head + lines[order[0]] + lines[order[1]] + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_http"
    assert answer.count(b"HTTP/1.1") == 1


def post(body: bytes) -> bytes:
    return (
        b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


def until_closed(connection: socket.socket) -> bytes:
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    return answer


@pytest.mark.parametrize("count", [1, 3])
def test_a_client_that_has_ended_its_sending_gets_all_its_answers(server, count):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(post(picture()) * count)
        connection.shutdown(socket.SHUT_WR)
        answers = until_closed(connection)
    assert answers.startswith(b"HTTP/1.1 200")
    assert answers.count(b"HTTP/1.1 200") == count
    assert answers.count(b'"predictions"') == count


def test_one_that_ends_its_sending_within_a_request_is_let_go(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(post(picture())[:-10])
        connection.shutdown(socket.SHUT_WR)
        assert until_closed(connection) == b""


def test_one_that_waits_longer_is_told_so_and_one_that_has_left_is_noticed():
    engine = PlayedEngine(held=threading.Event())
    assert engine.held is not None
    engine.held.set()
    with played(engine, Limits(max_batch=1, max_wait_ms=0)) as found:
        engine.held.clear()
        begun = engine.begun
        with socket.create_connection(("127.0.0.1", found.port), timeout=60) as waiting:
            waiting.sendall(post(picture()))
            waiting.shutdown(socket.SHUT_WR)
            wait_for(lambda: engine.begun == begun + 1)  # or the other image may be decoded, and begun, before it
            leaving = socket.create_connection(("127.0.0.1", found.port), timeout=60)
            leaving.sendall(post(picture(1)))
            wait_for(lambda: found.service.batcher.pending == 2)
            leaving.close()
            wait_for(lambda: found.service.batcher.pending == 1)
            engine.held.set()
            answers = until_closed(waiting)
        before, _, last = answers.rpartition(b"HTTP/1.1 200")
        assert before.startswith(b"HTTP/1.1 102 Processing\r\n\r\n")
        assert b'"predictions"' in last
        assert engine.batches == [1], "the image of the client that left was run"
