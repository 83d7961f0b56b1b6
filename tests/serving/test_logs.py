"""The log never stops the server: not when nobody reads it, not when it cannot be written, not when errors pour in."""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.serving.conftest import picture, wait_for
from vitrail.serving.logs import OTHER_LINES_PER_SECOND, LogHandler, LogWriter


@contextlib.contextmanager
def served_with(bundle: Path, stderr: int, *before: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`vitrail serve` with this stderr, ready; killed at the end if it still runs."""
    command = [*before, sys.executable, "-m", "vitrail", "serve", str(bundle), "--port", "0", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}") and (line := process.stdout.readline()):
            text += line
        url = json.loads(text)["url"]
        wait_for(lambda: httpx.get(f"{url}/v2/health/ready", timeout=60).status_code == 200)
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ask(url: str, count: int) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        for number in range(count):
            answer = client.get("/nothing", headers={"X-Request-Id": f"{number}-" + "x" * 50})
            assert answer.status_code == 404
        assert client.post("/predict", files={"file": picture()}).status_code == 200


def test_with_stderr_a_full_pipe_it_answers_and_ends(bundle):
    reading, writing = os.pipe()
    with served_with(bundle, writing) as (process, url):
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 512)
        ask(url, 500)
        process.terminate()
        assert process.wait(20) == 0
    os.close(writing)
    os.close(reading)


def test_with_stderr_a_full_disk_it_answers_and_ends_with_0(bundle):
    with Path("/dev/full").open("w") as full, served_with(bundle, full.fileno()) as (process, url):
        ask(url, 20)
        process.terminate()
        assert process.wait(20) == 0


def test_with_few_file_descriptors_it_answers_and_its_log_stays_small(bundle, tmp_path):
    log, limited = tmp_path / "log", ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with log.open("w") as stream, served_with(bundle, stream.fileno(), *limited) as (process, url):
        port = int(url.rpartition(":")[2])
        with contextlib.ExitStack() as held:
            for _ in range(200):
                held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            time.sleep(3)
        wait_for(lambda: _answers(url))
        ask(url, 3)
        process.terminate()
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) + sum(line["lines"] for line in lines if line["event"] == "lines dropped") < 300
    few = [line["max_connections"] for line in lines if line["event"] == "few file descriptors"]
    assert few
    assert 1 <= few[0] < 64


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/v2/health/live", timeout=10).status_code == 200
    return False


def record(event: str) -> logging.LogRecord:
    return logging.LogRecord("vitrail.serving", logging.INFO, __file__, 1, event, None, None)


def test_lines_that_find_no_room_are_counted_and_said_as_soon_as_there_is_some():
    reading, writing = os.pipe()
    writer = LogWriter(writing, capacity=10)
    handler = LogHandler(writer)
    start = time.monotonic()
    for _ in range(900):
        handler.emit(record("request" + " " * 1000))
    for number in range(900):
        handler.emit(record(f"{number}" + " " * 1000))
    assert time.monotonic() - start < 5
    with os.fdopen(reading) as pipe:
        closing = threading.Thread(target=lambda: writer.close(30))
        closing.start()
        lines = [json.loads(line) for line in pipe]  # until the writer has closed its end
        closing.join()
    dropped = sum(line["lines"] for line in lines if line["event"] == "lines dropped")
    assert dropped
    assert dropped + len([line for line in lines if line["event"] != "lines dropped"]) == 1800


def test_of_one_event_only_so_many_lines_a_second_are_kept(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(os.dup(file.fileno()))
        handler = LogHandler(writer)
        for _ in range(5_000):
            handler.emit(record("the same"))
        writer.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    kept = [line for line in lines if line["event"] == "the same"]
    assert OTHER_LINES_PER_SECOND <= len(kept) <= 4 * OTHER_LINES_PER_SECOND  # it may take a few seconds
    assert len(kept) + sum(line["lines"] for line in lines if line["event"] == "lines dropped") == 5_000


def test_what_cannot_be_formatted_is_dropped_and_never_raised(tmp_path):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(os.dup(file.fileno()))
        handler = LogHandler(writer)
        broken = record("event")
        broken.msg = "%d"
        broken.args = ("no number",)
        handler.emit(broken)
        strange = record("event")
        strange.facts = {"what": Broken()}
        handler.emit(strange)
        writer.close()
    (line,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert (line["event"], line["lines"]) == ("lines dropped", 2)
