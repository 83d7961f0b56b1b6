"""Dynamic batching, on real HTTP: what shares a batch, what is refused, and what costs nothing."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serving.conftest import PlayedEngine, error_of, picture, played, wait_for
from vitrail.errors import UserError
from vitrail.serving import images
from vitrail.serving.limits import Limits


def ask(url: str, content: bytes, **options) -> httpx.Response:
    return httpx.post(f"{url}/predict", content=content, headers={"Content-Type": "image/png"}, timeout=60, **options)


def test_requests_that_arrive_together_run_as_one_batch():
    with played(PlayedEngine(), Limits(max_batch=8, max_wait_ms=0)) as found, ThreadPoolExecutor(8) as pool:
        found.service.batcher.max_wait = 60  # a full batch does not wait
        answers = list(pool.map(lambda seed: ask(found.url, picture(seed)), range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert found.engine.batches == [8]
        scores = [answer.json()["predictions"][0]["top"][0]["score"] for answer in answers]
        assert len(set(scores)) == 8, "everyone got the answer to another image"
        found.service.batcher.max_wait = 0
        again = [ask(found.url, picture(seed)) for seed in range(3)]
        assert [each.json()["predictions"][0]["top"][0]["score"] for each in again] == pytest.approx(scores[:3])


def test_a_batch_waits_no_longer_than_it_may():
    with played(PlayedEngine(), Limits(max_batch=8, max_wait_ms=300)) as found:
        start = time.monotonic()
        assert ask(found.url, picture()).status_code == 200
        assert time.monotonic() - start >= 0.3
    with played(PlayedEngine(), Limits(max_batch=1, max_wait_ms=60_000)) as found:
        start = time.monotonic()
        assert ask(found.url, picture()).status_code == 200, "a full batch does not wait"
        assert time.monotonic() - start < 30


def test_a_bad_image_in_a_batch_fails_alone():
    with played(PlayedEngine(), Limits(max_batch=4, max_wait_ms=500)) as found, ThreadPoolExecutor(4) as pool:
        sent = [picture(1), picture(2)[:80], picture(3), b"nothing"]
        answers = list(pool.map(lambda content: ask(found.url, content), sent))
        assert [answer.status_code for answer in answers] == [200, 400, 200, 415]
        assert sum(found.engine.batches) == 2


def test_what_the_queue_cannot_hold_is_refused_with_a_time_to_come_back():
    engine = PlayedEngine(held=threading.Event())
    limits = Limits(max_batch=2, max_queue=4, max_wait_ms=0)
    assert engine.held is not None
    engine.held.set()
    with played(engine, limits) as found, ThreadPoolExecutor(12) as pool:
        engine.held.clear()
        asked = [pool.submit(ask, found.url, picture(seed)) for seed in range(4)]
        wait_for(lambda: found.service.batcher.pending == 4)
        refused = ask(found.url, picture())
        assert refused.status_code == 503
        assert error_of(refused) == "busy"
        assert int(refused.headers["Retry-After"]) >= 1
        many = httpx.post(f"{found.url}/predict", files=[("file", picture())] * 5)
        assert many.status_code == 503
        engine.held.set()
        assert [each.result().status_code for each in asked] == [200] * 4
        assert ask(found.url, picture()).status_code == 200
        assert 'vitrail_rejected_total{code="busy"} 2.0' in httpx.get(f"{found.url}/metrics").text


def test_a_request_that_takes_too_long_is_a_504_and_its_place_is_free():
    engine = PlayedEngine(held=threading.Event())
    assert engine.held is not None
    engine.held.set()
    with played(engine, Limits(deadline_seconds=0.4, max_queue=16)) as found:
        engine.held.clear()
        start = time.monotonic()
        answer = ask(found.url, picture())
        assert answer.status_code == 504
        assert error_of(answer) == "deadline"
        assert 0.4 <= time.monotonic() - start < 10
        assert found.service.batcher.pending == 0
        engine.held.set()
        found.service.limits = Limits()  # time enough, on any machine
        assert ask(found.url, picture()).status_code == 200


def test_a_client_that_went_away_costs_nothing(monkeypatch):
    decoded = []
    monkeypatch.setattr(images, "check_header", lambda content, most: decoded.append(len(content)))
    engine = PlayedEngine(held=threading.Event())
    assert engine.held is not None
    engine.held.set()
    with played(engine, Limits(max_batch=1, max_wait_ms=0)) as found, ThreadPoolExecutor(1) as pool:
        engine.held.clear()
        first = pool.submit(ask, found.url, picture())  # keeps the engine busy
        wait_for(lambda: found.service.batcher.pending == 1 and len(decoded) == 1)
        release = threading.Event()
        for _ in found.service.batcher._decoders:  # and the decoders
            found.service.batcher._incoming.put(_Stopper(release))  # pyright: ignore[reportArgumentType]
        content = picture(1)
        head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", found.port)) as connection:
            connection.sendall(head.encode() + content)
            wait_for(lambda: found.service.batcher.pending == 2)
        wait_for(lambda: found.service.batcher.pending == 1)
        release.set()
        engine.held.set()
        assert first.result().status_code == 200
        assert ask(found.url, picture(2)).status_code == 200
        assert engine.batches == [1, 1], "the image of the client that left was run"
        assert len(decoded) == 2, "the image of the client that left was decoded"
        assert 'status="499"' in httpx.get(f"{found.url}/metrics").text


class _Stopper:
    """An item whose preparation waits."""

    def __init__(self, release: threading.Event):
        self.request, self.operation, self.content = self, self, None
        self.release, self.waited = release, False

    @property
    def dropped(self) -> bool:
        self.release.wait(60)
        return True


def test_an_engine_that_fails_on_a_batch_is_tried_on_each_image():
    class Fragile(PlayedEngine):
        def run(self, output, images):
            if len(images) > 1 and self.batches is not None and self.fragile:
                raise MemoryError("too large together")
            return super().run(output, images)

        fragile = False

    engine = Fragile()
    with played(engine, Limits(max_batch=4, max_wait_ms=500)) as found:
        engine.fragile = True
        answer = httpx.post(f"{found.url}/predict", files=[("file", picture(seed)) for seed in range(4)])
        assert [row["error"] for row in answer.json()["predictions"]] == [None] * 4
        assert engine.batches == [1, 1, 1, 1]


def test_two_kinds_of_work_do_not_share_a_batch_but_both_are_done():
    with played(PlayedEngine(delay=0.02), Limits(max_batch=4, max_wait_ms=20)) as found, ThreadPoolExecutor(16) as pool:
        paths = ["/predict", "/embed"] * 8
        answers = pool.map(lambda path: httpx.post(f"{found.url}{path}", files={"file": picture()}, timeout=60), paths)
        assert [answer.status_code for answer in answers] == [200] * 16
        assert sum(found.engine.batches) == 8
        assert max(found.engine.batches) <= 4


@pytest.mark.parametrize(
    ("name", "value"), [("max_batch", 0), ("max_wait_ms", -1), ("max_queue", 3), ("deadline_seconds", float("nan"))]
)
def test_limits_that_make_no_sense_name_their_flag(name, value):
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')}"):
        Limits(**{name: value})


def test_limits_are_in_the_units_they_name():
    """A megapixel is a million pixels; a body is counted as memory is, by 1024."""
    found = Limits(max_megapixels=2.5, max_body_mb=3, max_memory_mb=8)
    assert (found.max_pixels, found.max_body_bytes, found.max_memory_bytes) == (2_500_000, 3 * 2**20, 8 * 2**20)
    assert found.to_json()["max_pixels"] == 2_500_000
