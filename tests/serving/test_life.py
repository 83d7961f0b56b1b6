"""The life of a server: ready when it can answer, not ready when it cannot, and an end that answers everyone."""

import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.serving.conftest import PlayedEngine, error_of, picture, played, running, wait_for
from vitrail.inference.engine_selection import open_engine
from vitrail.serving.limits import Limits
from vitrail.serving.metrics import Metrics
from vitrail.serving.service import Service


def ready(url: str) -> int:
    return httpx.get(f"{url}/v2/health/ready", timeout=30).status_code


def test_ready_only_after_a_real_warm_up_pass():
    engine = PlayedEngine(held=threading.Event())
    with played(engine, wait=False) as found:
        assert httpx.get(f"{found.url}/v2/health/live").status_code == 200
        assert ready(found.url) == 503
        assert httpx.get(f"{found.url}/v2/models/played/ready").status_code == 503
        early = httpx.post(f"{found.url}/predict", content=picture(), headers={"Content-Type": "image/png"})
        assert early.status_code == 503
        assert error_of(early) == "not_ready"
        assert "Retry-After" in early.headers
        assert engine.held is not None
        engine.held.set()
        wait_for(lambda: ready(found.url) == 200)
        assert engine.batches[:2] == [1, 16], "one image, then a full batch"


def test_not_ready_while_the_model_does_not_answer():
    engine = PlayedEngine(held=threading.Event())
    assert engine.held is not None
    engine.held.set()
    with played(engine, Limits(stall_seconds=0.5, deadline_seconds=1)) as found:
        engine.held.clear()
        answer = httpx.post(f"{found.url}/predict", files={"file": picture()}, timeout=30)
        assert answer.status_code == 504
        wait_for(lambda: ready(found.url) == 503)
        assert httpx.get(f"{found.url}/v2/health/live").status_code == 200
        assert 'vitrail_model_ready{model="played"} 0.0' in httpx.get(f"{found.url}/metrics").text
        refused = httpx.post(f"{found.url}/predict", files={"file": picture()})
        assert (refused.status_code, error_of(refused)) == (503, "not_ready")
        engine.held.set()
        found.service.limits = Limits()  # time enough, on any machine
        wait_for(lambda: ready(found.url) == 200)
        assert httpx.post(f"{found.url}/predict", files={"file": picture()}).status_code == 200


def test_an_answer_does_not_wait_for_the_clients_acknowledgement(server):
    """Nagle's algorithm would keep its end back for 40 ms."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            assert client.get("/v2/health/live").status_code == 200
            times.append(time.perf_counter() - start)
    assert min(times) < 0.035


def test_not_ready_while_the_model_fails_and_ready_again_when_it_does_not():
    engine = PlayedEngine()
    with played(engine) as found:
        engine.failing = True
        answer = httpx.post(f"{found.url}/predict", files={"file": picture()})
        assert (answer.status_code, error_of(answer)) == (500, "model_failed")
        assert "secret" not in answer.text
        assert ready(found.url) == 503
        engine.failing = False
        wait_for(lambda: ready(found.url) == 200)


def end_with_requests_in_flight(bundle, folder, requests: int) -> None:
    """SIGTERM while so many are being answered: all of them are, and the server ends with 0 within 15 seconds."""
    content = picture(0, (70, 90), "JPEG")
    head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"
    answers: list[bytes] = [b""] * requests
    # They are accepted, and wait for a batch that will not be full for a while.
    arguments = ("--max-wait-ms", "3000", "--max-batch", str(requests + 1))
    with (
        running(folder, str(bundle), *arguments) as found,
        ThreadPoolExecutor(requests) as pool,
        httpx.Client(base_url=found.url, timeout=30) as client,
    ):

        def ask(number: int) -> None:
            with socket.create_connection(("127.0.0.1", found.port), timeout=30) as connection:
                connection.sendall(head.encode() + content)
                while part := connection.recv(65_536):
                    answers[number] += part

        asked = [pool.submit(ask, number) for number in range(requests)]
        wait_for(lambda: f"vitrail_queue_depth {requests}.0" in client.get("/metrics").text)
        start = time.monotonic()
        found.process.send_signal(signal.SIGTERM)
        for each in asked:
            each.result(30)
        assert found.process.wait(15) == 0
        assert time.monotonic() - start < 15
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", found.port), timeout=2)
        assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * requests
        bodies = {answer.partition(b'"predictions"')[2].partition(b'"milliseconds"')[0] for answer in answers}
        assert len(bodies) == 1
        events = [line["event"] for line in found.lines()]
        assert events[-1] == "ended"
        assert "draining" in events


def test_sigterm_answers_everyone_and_ends_with_0(bundle, tmp_path):
    end_with_requests_in_flight(bundle, tmp_path, 32)


@pytest.mark.slow
def test_sigterm_ten_times_answers_everyone_and_ends_with_0(bundle, tmp_path):
    for _ in range(10):
        end_with_requests_in_flight(bundle, tmp_path, 32)


def test_a_model_that_hangs_does_not_keep_the_server_from_ending():
    code = """
import sys, threading
sys.path.insert(0, ".")
from tests.serving.conftest import PlayedEngine
from vitrail.serving.limits import Limits
from vitrail.serving.server import serve
engine = PlayedEngine(held=threading.Event())
serve({"played": engine}, port=0, limits=Limits(drain_seconds=1), started=lambda url: print(url, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        url = process.stdout.readline().strip()
        assert ready(url) == 503
        process.terminate()
        assert process.wait(15) == 0


@pytest.fixture(scope="module")
def fresh(bundle, tmp_path_factory):
    with running(tmp_path_factory.mktemp("fresh"), str(bundle), f"other={bundle}", f"third={bundle}") as found:
        yield found


def test_every_request_has_an_id_and_a_line_in_the_log(fresh):
    given = httpx.get(f"{fresh.url}/model", headers={"X-Request-Id": "my-request.7"})
    assert given.headers["X-Request-Id"] == "my-request.7"
    for hostile in ("a b", "x" * 65, "é", '"},{', ""):
        answer = httpx.get(f"{fresh.url}/model", headers=[(b"X-Request-Id", hostile.encode())])
        made = answer.headers["X-Request-Id"]
        assert made != hostile
        assert made.isalnum()
    missing = httpx.get(f"{fresh.url}/%0a%22not-there").headers["X-Request-Id"]
    wait_for(lambda: missing in fresh.log.read_text())  # the line is written after the answer
    lines = {line.get("request_id"): line for line in fresh.lines() if line["event"] == "request"}
    line = lines["my-request.7"]
    assert (line["method"], line["path"], line["status"]) == ("GET", "/model", 200)
    assert line["milliseconds"] > 0
    assert lines[missing]["status"] == 404
    assert [line["model"] for line in fresh.lines() if line["event"] == "ready"] == ["toy", "other", "third"]


def test_metrics_count_what_happened(fresh):
    for _ in range(3):
        httpx.post(f"{fresh.url}/predict", files={"file": picture()})
    httpx.post(f"{fresh.url}/predict", files={"file": b"x"})
    answer = httpx.get(f"{fresh.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    assert 'vitrail_requests_total{method="POST",route="/predict",status="200"} 3.0' in text
    assert 'vitrail_requests_total{method="POST",route="/predict",status="415"} 1.0' in text
    assert 'vitrail_rejected_total{code="unsupported_format"} 1.0' in text
    assert 'vitrail_request_seconds_count{route="/predict"} 4.0' in text
    assert 'vitrail_batch_size_count{model="toy",what="logits"}' in text
    assert "vitrail_queue_depth 0.0" in text


def test_several_models_by_name(fresh):
    names = [each["name"] for each in httpx.get(f"{fresh.url}/model").json()["models"]]
    assert names == ["toy", "other", "third"]
    for name in names:
        answer = httpx.post(f"{fresh.url}/predict?model={name}", files={"file": picture()})
        assert answer.json()["model"] == name


def test_without_json_it_says_where_it_listens_and_ctrl_c_ends_it(bundle, tmp_path):
    log = tmp_path / "log"
    with log.open("w") as stream:
        command = [sys.executable, "-m", "vitrail", "serve", str(bundle), "--port", "0"]
        process = subprocess.Popen(command, stderr=stream, text=True)
    try:
        wait_for(lambda: "vitrail serves toy at http://127.0.0.1:" in log.read_text())
        wait_for(lambda: '"event": "ready"' in log.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    lines = [line for line in log.read_text().splitlines() if not line.startswith("vitrail serves")]
    assert all(json.loads(line)["event"] for line in lines)


def test_how_long_a_request_took_is_told_in_seconds():
    metrics = Metrics()
    metrics.count_request("GET", "/predict", 200, 0.3)
    metrics.count_request("BREW", "/predict", 405, 0.1)
    text = metrics.text().decode()
    assert 'vitrail_request_seconds_sum{route="/predict"} 0.4' in text
    assert 'vitrail_request_seconds_bucket{le="0.2",route="/predict"} 1.0' in text
    assert 'vitrail_requests_total{method="other",route="/predict",status="405"} 1.0' in text


def test_the_switch_interval_is_as_before_once_the_server_has_ended():
    program = """
import os, signal, sys
from tests.serving.conftest import PlayedEngine
from vitrail.serving.server import serve

def started(address):
    print(sys.getswitchinterval())
    os.kill(os.getpid(), signal.SIGTERM)

print(sys.getswitchinterval())
serve({"played": PlayedEngine()}, port=0, started=started)
print(sys.getswitchinterval())
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, during, after = map(float, done.stdout.split())
    assert during != before
    assert after == before


def test_a_model_is_freed_with_its_service_after_its_positions_were_asked_for(bundle):
    engine = open_engine(bundle, "torch")
    served = Service({"toy": engine}, Limits()).models.get("toy")
    assert served.position_similarity is served.position_similarity
    network = weakref.ref(served.network)
    del engine, served
    gc.collect()
    assert network() is None
