"""Under load: many clients, more than there is room for, and slow ones.

The short forms, run with every change, show that nothing breaks; how fast it is means something on a quiet machine
only, so the long forms (`slow`) hold the server to numbers. The clients are those of `bench/serve.py`.
"""

import asyncio
import os
import socket
import statistics
import threading
import time

import httpx
import pytest

import vitrail
from bench.serve import closed_loop, open_loop, photos, post, predictor_throughput, served
from tests.serving.conftest import PlayedEngine, picture, played, wait_for
from vitrail.serving.limits import Limits


def test_32_clients_get_answers_and_nothing_else(server):
    def batched() -> tuple[float, float]:
        """Images and batches so far: others have asked this server before."""
        text = httpx.get(f"{server.url}/metrics", timeout=30).text
        wanted = [f'vitrail_batch_size_{what}{{model="toy",what="logits"}} ' for what in ("sum", "count")]
        images, batches = (float(text.partition(each)[2].partition("\n")[0] or 0) for each in wanted)
        return images, batches

    requests = [post("/predict", picture(seed, (200, 300), "JPEG")) for seed in range(16)]
    before = batched()
    outcome = asyncio.run(closed_loop(server.port, requests, 32, 3))
    assert set(outcome.statuses) == {200}
    assert not outcome.broken
    assert outcome.statuses[200] >= 32
    images, batches = (after - earlier for after, earlier in zip(batched(), before, strict=True))
    assert images / batches > 1.5, "nothing was batched"


def test_more_than_there_is_room_for_gets_200_or_503_and_nothing_else():
    engine = PlayedEngine(delay=0.05)
    with played(engine, Limits(max_batch=4, max_queue=8)) as found:
        requests = [post("/predict", picture(), "image/png")]
        peak = asyncio.run(closed_loop(found.port, requests, 8, 2))
        overload = asyncio.run(open_loop(found.port, requests, 4 * peak.throughput, 2))
        assert set(overload.statuses) == {200, 503}
        assert not overload.broken
        after = asyncio.run(closed_loop(found.port, requests, 4, 1))
        assert set(after.statuses) == {200}


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("PYTEST_XDIST_WORKER")), reason="measures: run it alone, without -n")
def test_the_speed_that_is_promised(tmp_path):
    """Of a Ti/16 on photos of 500 x 375, with 32 clients for 30 seconds and then four times as much as it can do."""
    vitrail.save(vitrail.create("Ti/16"), tmp_path / "model")
    images = photos(None)
    whole, _ = predictor_throughput(str(tmp_path / "model"), images, 10, 16)
    requests = [post("/predict", image) for image in images]
    with served([str(tmp_path / "model")], tmp_path / "log") as port:
        asyncio.run(closed_loop(port, requests, 32, 3))
        load = asyncio.run(closed_loop(port, requests, 32, 30))
        assert set(load.statuses) == {200}
        assert not load.broken
        assert load.throughput >= 0.8 * whole
        assert load.quantile(0.99) <= 2 * 32 / load.throughput
        overload = asyncio.run(open_loop(port, requests, 4 * load.throughput, 30))
        assert set(overload.statuses) <= {200, 503}
        assert not overload.broken
        print(f"predictor {whole:.1f}, load {load.to_json()}, overload {overload.to_json()}")
        assert overload.throughput >= 0.9 * load.throughput
        start = time.monotonic()
        after = asyncio.run(closed_loop(port, requests, 1, 1))
        assert set(after.statuses) == {200}
        assert start + 2 >= time.monotonic() - after.latencies[-1]
        again = asyncio.run(closed_loop(port, requests, 32, 10))
        assert again.throughput >= 0.9 * load.throughput


class SlowClients:
    """They send a byte a while: of the headers, or of the body."""

    def __init__(self, port: int, count: int):
        self.ended: dict[int, float] = {}
        self.answers: dict[int, bytes] = {}
        self.stop = threading.Event()
        self.began = time.monotonic()
        self.connections = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(count)]
        self.thread = threading.Thread(target=self.trickle, daemon=True)
        self.thread.start()

    def trickle(self) -> None:
        body = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 100000\r\n\r\n"
        for number, connection in enumerate(self.connections):
            connection.setblocking(False)
            if number % 2:
                connection.sendall(body)
        while not self.stop.is_set() and len(self.ended) < len(self.connections):
            for number, connection in enumerate(self.connections):
                if number in self.ended:
                    continue
                try:
                    self.answers[number] = self.answers.get(number, b"") + (part := connection.recv(4096))
                    if not part:
                        raise ConnectionResetError
                except BlockingIOError:
                    pass
                except OSError:
                    self.ended[number] = time.monotonic() - self.began
                    continue
                try:
                    connection.send(b"G" if number % 2 == 0 else b"\0")
                except BlockingIOError:
                    pass
                except OSError:
                    self.ended.setdefault(number, time.monotonic() - self.began)
            time.sleep(0.05)

    def close(self) -> None:
        self.stop.set()
        self.thread.join(10)
        for connection in self.connections:
            connection.close()


def slow_clients(port: int, count: int, deadline: float, seconds: float, slack: float = 1) -> float:
    """By how much p99 of eight normal clients rises with so many slow ones, all of whom are cut off in time."""
    requests = [post("/predict", picture(seed), "image/png") for seed in range(8)]
    before = asyncio.run(closed_loop(port, requests, 8, seconds))
    slow = SlowClients(port, count)
    try:
        meanwhile = asyncio.run(closed_loop(port, requests, 8, seconds))
        assert set(meanwhile.statuses) == {200}
        assert not meanwhile.broken
        wait_for(lambda: len(slow.ended) == count, deadline + slack + 10)
        assert max(slow.ended.values()) <= deadline + slack
        assert min(slow.ended.values()) >= deadline - 0.5
        told = [answer for answer in slow.answers.values() if answer.startswith(b"HTTP/1.1 408")]
        assert len(told) >= count // 2
    finally:
        slow.close()
    return meanwhile.quantile(0.99) / before.quantile(0.99)


@pytest.mark.slow
def test_slow_clients_are_cut_off_and_hurt_nobody():
    with played(PlayedEngine(delay=0.01), Limits(receive_seconds=3)) as found:
        slow_clients(found.port, 20, 3, 2, slack=10)  # all of them, and the server, are one process here


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("PYTEST_XDIST_WORKER")), reason="measures: run it alone, without -n")
def test_a_hundred_slow_clients_raise_p99_by_less_than_a_fifth(tmp_path, bundle):
    with served([str(bundle)], tmp_path / "log", "--receive-seconds", "12") as port:
        rises = [slow_clients(port, 100, 12, 10) for _ in range(3)]
        print(f"p99 with 100 slow clients over p99 without: {rises}")
        assert statistics.median(rises) < 1.2
