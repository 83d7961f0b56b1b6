"""Real servers: `vitrail serve` as a process of its own, or in a thread where a test plays the engine."""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.inference.engines import FEATURES, NamedOutputs
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.serving.address import open_listener
from vitrail.serving.keys import ApiKeys
from vitrail.serving.limits import Limits
from vitrail.serving.server import Server, make_server
from vitrail.serving.service import Service

LABELS = tuple(f"class{number}" for number in range(7))


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) * 1024  # pyright: ignore[reportOptionalMemberAccess]


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Running]:
    """`vitrail serve` on a free port, ready; ended by SIGTERM, which must work."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "vitrail", "serve", *arguments, "--port", "0", "--json"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stream, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    assert process.stdout is not None
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, log.read_text()
            text += line
        found = Running(process, json.loads(text)["url"], log)
        wait_for(lambda: httpx.get(f"{found.url}/v2/health/ready", timeout=60).status_code == 200)
        yield found
        if process.poll() is None:
            process.terminate()
        assert process.wait(20) == 0, log.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """A toy with names for its classes."""
    model = toy()
    model.card.label_names = LABELS
    model.card.label_descriptions = {"class3": "the third, or so"}
    model.card.preprocessing = Preprocessing(image_size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    folder = tmp_path_factory.mktemp("served") / "toy"
    vitrail.save(model, folder)
    return folder


@pytest.fixture(scope="session")
def server(bundle, tmp_path_factory) -> Iterator[Running]:
    """One server for all tests that leave it as it was."""
    limits = ("--max-body-mb", "16", "--max-megapixels", "20", "--formats", "jpeg,png,webp,gif,bmp,tiff")
    arguments = (str(bundle), f"second={bundle}", *limits)
    with running(tmp_path_factory.mktemp("server"), *arguments) as found:
        yield found


@pytest.fixture
def client(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as found:
        yield found


def picture(seed: int = 0, size: tuple[int, int] = (40, 56), form: str = "PNG", **options) -> bytes:
    """A smooth picture as a file."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 255, (5, 7, 3), dtype=np.uint8))
    stream = io.BytesIO()
    small.resize((size[1], size[0]), Image.Resampling.BICUBIC).save(stream, form, **options)
    return stream.getvalue()


@dataclass
class PlayedEngine(NamedOutputs):
    """An engine whose answers, delays and failures a test decides. The first logit is the image's mean."""

    name: str = "played"
    workers: int = 1
    delay: float = 0.0
    failing: bool = False
    held: threading.Event | None = None
    """Where there is one, every run waits for it."""
    batches: list[int] = field(default_factory=list)
    begun: int = 0
    """How many runs have begun, those that wait for `held` among them."""

    def __post_init__(self) -> None:
        model = toy()
        self.facts = replace(ExportMetadata.of(model.config, model.card), label_names=LABELS)

    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        if output == FEATURES:
            return np.zeros((len(images), 32), np.float32)
        if self.failing:
            raise RuntimeError("a secret of the engine")
        self.begun += 1
        if self.held is not None:
            self.held.wait(60)
        time.sleep(self.delay)
        self.batches.append(len(images))
        answers = np.zeros((len(images), 7), np.float32)
        answers[:, 0] = images.mean(axis=(1, 2, 3))
        return answers

    def running(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@dataclass
class Played:
    url: str
    server: Server
    service: Service
    engine: PlayedEngine

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def played(engine: PlayedEngine, limits: Limits | None = None, keys: ApiKeys | None = None, wait: bool = True):
    """A server in a thread of this process."""
    listener = open_listener("127.0.0.1", 0, open_to_all=False)
    server = make_server({"played": engine}, limits or Limits(), keys or ApiKeys(()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_for(lambda: server.started)
        if wait:
            wait_for(lambda: httpx.get(f"{url}/v2/health/ready", timeout=60).status_code == 200)
            engine.batches.clear()
        yield Played(url, server, server.service, engine)
    finally:
        if engine.held is not None:
            engine.held.set()
        server.should_exit = True
        thread.join(20)
        listener.close()
    assert not thread.is_alive()


def error_of(answer: httpx.Response) -> str:
    """The error's code, after its form was checked."""
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"code", "message"}
    assert "Traceback" not in answer.text
    assert ".py" not in answer.text
    return document["error"]["code"]


def raw(port: int, request: bytes, until: bytes | None = None) -> bytes:
    """What comes back until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while until is None or until not in answer:
            try:
                part = connection.recv(65_536)
            except ConnectionResetError:
                break
            if not part:
                break
            answer += part
        return answer
