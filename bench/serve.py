"""`vitrail serve` under load: throughput against the predictor's own, latency, overload, and LitServe beside it.

    python bench/serve.py [--seconds 30] [--clients 32] [--model MODEL] [--photos FOLDER] [--json bench/serve.json]
    python bench/serve.py --litserve /path/to/python      # a Python that has litserve and vitrail[serve]:
        python -m venv /tmp/peer && /tmp/peer/bin/pip install -c constraints.txt -e ".[serve]" && \
            /tmp/peer/bin/pip install litserve
    python bench/serve.py --http usual          # without vitrail/serving/overload.py: every head goes through h11
    python bench/serve.py --http httptools      # by httptools and uvloop (pip install them), without our limits

Clients are closed loops: each sends its next image when it has the answer to the last. They share the processors with
the server, as everything here does. The overload is open: images come at four times the rate that was measured,
whatever the answers are.
"""

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


@dataclass
class Outcome:
    """What the clients saw."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    """Of the answers with status 200."""
    broken: list[str] = field(default_factory=list)
    """Connections that ended without an answer."""

    @property
    def throughput(self) -> float:
        return self.statuses[200] / self.seconds

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.latencies, share)) if self.latencies else float("nan")

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 2),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "broken": len(self.broken),
            "images_per_second": round(self.throughput, 1),
            "p50_ms": round(1000 * self.quantile(0.5), 1),
            "p99_ms": round(1000 * self.quantile(0.99), 1),
        }


class Client(asyncio.Protocol):
    """One connection that is kept. Bare HTTP/1.1: a client library would take more of the processors, which it shares
    with the server."""

    def __init__(self, port: int):
        self.port = port
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.data = b""

    async def send(self, request: bytes) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        if self.transport is None:
            self.transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self.port)
        self.answer = loop.create_future()
        self.transport.write(request)
        return await self.answer

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        if not end or self.answer is None:
            return
        head = head.lower()
        if len(body) < int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]):
            return
        self.data = b""
        if b"connection: close" in head:
            self.close()
        self.answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("closed without an answer"))

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self.transport = None


def post(path: str, body: bytes, kind: str = "image/jpeg") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def timed(client: Client, request: bytes, outcome: Outcome) -> None:
    start = time.perf_counter()
    try:
        status, _ = await client.send(request)
    except (OSError, ValueError) as error:
        outcome.broken.append(repr(error))
        client.close()
        return
    outcome.statuses[status] += 1
    if status == 200:
        outcome.latencies.append(time.perf_counter() - start)


async def closed_loop(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Outcome:
    outcome, end = Outcome(), time.perf_counter() + seconds

    async def loop(number: int) -> None:
        client, count = Client(port), number
        while time.perf_counter() < end:
            await timed(client, requests[count % len(requests)], outcome)
            count += clients
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*(loop(number) for number in range(clients)))
    outcome.seconds = time.perf_counter() - start
    return outcome


async def open_loop(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> Outcome:
    """So many a second, whatever becomes of them; connections are kept and made as needed."""
    outcome, idle, tasks = Outcome(), [], set()

    async def one(request: bytes) -> None:
        client = idle.pop() if idle else Client(port)
        await timed(client, request, outcome)
        idle.append(client)

    start, count = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < seconds:
        while count < now * rate:
            task = asyncio.ensure_future(one(requests[count % len(requests)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            count += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    outcome.seconds = time.perf_counter() - start
    for client in idle:
        client.close()
    return outcome


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as stream:
        started = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        with contextlib.suppress(ProcessLookupError):  # what it has left running would slow down the next
            os.killpg(started.pid, signal.SIGKILL)
        assert started.stdout is not None
        started.stdout.close()


def wait_ready(url: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{url} did not answer 200 within {seconds} seconds")


OTHER_HTTP = """
import sys
import uvicorn
from vitrail.cli import main
from vitrail.serving.overload import OverloadResponder

if sys.argv.pop(1) == "usual":
    OverloadResponder.reject = lambda self, data: None
else:
    config = uvicorn.Config
    uvicorn.Config = lambda *given, **named: config(*given, **{**named, "http": "httptools", "loop": "uvloop"})
main()
"""


@contextlib.contextmanager
def served(models: Sequence[str], log: Path, *options: str, http: str = "own") -> Iterator[int]:
    """`vitrail serve` as its own process, ready; yields the port. http: how it reads requests, see above."""
    program = ["-m", "vitrail"] if http == "own" else ["-c", OTHER_HTTP, http]
    command = [sys.executable, *program, "serve", *models, "--port", "0", "--json", *options]
    with process(command, log) as started:
        assert started.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = started.stdout.readline()
            if not line:
                raise RuntimeError(f"vitrail serve ended: {log.read_text()[-2000:]}")
            text += line
        port = int(json.loads(text)["url"].rpartition(":")[2])
        wait_ready(f"http://127.0.0.1:{port}/v2/health/ready")
        yield port


def photos(folder: Path | None, count: int = 64) -> list[bytes]:
    """JPEG files of a folder; else drawn ones of about the size and the bytes of ImageNet's."""
    if folder is not None:
        return [path.read_bytes() for path in sorted(folder.rglob("*.jp*g"))[:count]]
    random, drawn = np.random.default_rng(0), []
    for _ in range(count):
        coarse = Image.fromarray(random.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)).astype(int)
        stream = io.BytesIO()
        noisy = np.clip(pixels + random.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(stream, "JPEG", quality=90)
        drawn.append(stream.getvalue())
    return drawn


def predictor_throughput(model: str, images: Sequence[bytes], seconds: float, batch: int) -> tuple[float, float]:
    """Images a second of the predictor on bytes in memory, and of its engine on arrays that are prepared already."""
    from concurrent.futures import ThreadPoolExecutor

    from vitrail.inference.engine_selection import open_engine
    from vitrail.inference.predictor import Predictor, prediction_workers

    engine = open_engine(model, "torch", workers=prediction_workers(single=False))
    predictor = Predictor(engine, batch)
    predictor.predict(images[:batch])
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        done += len(predictor.predict(list(images) * 2))
    whole = done / took
    prepared = np.zeros((batch, *engine.facts.input_shape), np.float32)
    start = time.perf_counter()

    def work(_: int) -> int:
        count = 0
        while time.perf_counter() - start < seconds:
            engine.outputs(prepared)
            count += batch
        return count

    with engine.running(), ThreadPoolExecutor(engine.workers) as pool:
        total = sum(pool.map(work, range(engine.workers)))
    return whole, total / (time.perf_counter() - start)


PEER = """
import base64
import sys
import litserve
from vitrail.inference.engine_selection import open_engine
from vitrail.tasks.answers import PLAIN
from vitrail.tasks.classification.answer import PART
from vitrail.data.preparation import ArrayNormaliser
from vitrail.data.transforms import EvaluationTransform
import numpy as np

class API(litserve.LitAPI):
    def setup(self, device):
        self.engine = open_engine(sys.argv[1], "torch", workers=1)
        self.transform = EvaluationTransform(self.engine.facts.preprocessing)
        self.normalise = ArrayNormaliser(self.engine.facts.preprocessing)
    def decode_request(self, request):
        return base64.b64decode(request["image"])
    def batch(self, inputs):
        return self.normalise(np.stack([self.transform(each) for each in inputs]))
    def predict(self, images):
        return self.engine.outputs(images)
    def unbatch(self, output):
        return list(output)
    def encode_response(self, output):
        return PART.prediction(None, output, None, self.engine.facts.meaning, PLAIN).to_json()

if __name__ == "__main__":
    api = API(max_batch_size=int(sys.argv[3]), batch_timeout=0.002)
    litserve.LitServer(api, accelerator="cpu", workers_per_device=int(sys.argv[4])).run(
        port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, log_level="error"
    )
"""


def run_peer(
    python: str, folder: Path, model: str, images: Sequence[bytes], arguments: argparse.Namespace
) -> dict[str, Any]:
    """LitServe with one worker for all processors and with one worker a processor, whichever is better, between two
    measurements of ours. Images are sent as base64 in JSON, the form that both know."""
    (folder / "peer.py").write_text(PEER)
    bodies = [json.dumps({"image": base64.b64encode(image).decode()}).encode() for image in images]
    requests = [post("/predict", body, "application/json") for body in bodies]

    def load(port: int) -> Outcome:
        asyncio.run(closed_loop(port, requests, arguments.clients, 3))
        return asyncio.run(closed_loop(port, requests, arguments.clients, arguments.seconds))

    def own() -> Outcome:
        with served([model], folder / "serve.log", "--max-batch", str(arguments.batch)) as port:
            return load(port)

    ours, theirs = [own()], []
    for workers in (1, os.cpu_count() or 1):
        port = 18_923 + workers
        command = [python, str(folder / "peer.py"), model, str(port), str(arguments.batch), str(workers)]
        with process(command, folder / "peer.log"):
            wait_ready(f"http://127.0.0.1:{port}/health", 120)
            theirs.append(load(port))
    ours.append(own())
    best = max(theirs, key=lambda outcome: outcome.throughput)
    throughput = sum(each.throughput for each in ours) / 2
    return {
        "ours": [each.to_json() for each in ours],
        "litserve": [each.to_json() for each in theirs],
        "throughput_ratio": round(throughput / best.throughput, 3),
        "p99_ratio": round(sum(each.quantile(0.99) for each in ours) / 2 / best.quantile(0.99), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a bundle or run; a Ti/16 with random weights where none is given")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--litserve", help="a Python that has litserve and vitrail")
    parser.add_argument("--http", choices=["own", "usual", "httptools"], default="own", help="how requests are read")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    images = photos(arguments.photos)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = arguments.model or str(folder / "model")
        if not arguments.model:
            import vitrail

            vitrail.save(vitrail.create("Ti/16"), model)
        result = measure(model, images, folder, arguments)
        if arguments.litserve:
            result["beside_litserve"] = run_peer(arguments.litserve, folder, model, images, arguments)
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def measure(model: str, images: Sequence[bytes], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    requests = [post("/predict", image) for image in images]
    whole, bare = predictor_throughput(model, images, min(10.0, arguments.seconds), arguments.batch)
    with served([model], folder / "serve.log", "--max-batch", str(arguments.batch), http=arguments.http) as port:
        asyncio.run(closed_loop(port, requests, arguments.clients, 3))
        load = asyncio.run(closed_loop(port, requests, arguments.clients, arguments.seconds))
        overload = asyncio.run(open_loop(port, requests, 4 * load.throughput, arguments.seconds))
        recovered = asyncio.run(closed_loop(port, requests, arguments.clients, 2))
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors",
        "clients": arguments.clients,
        "http": arguments.http,
        "predictor_images_per_second": round(whole, 1),
        "engine_images_per_second": round(bare, 1),
        "load": load.to_json(),
        "ratio_to_predictor": round(load.throughput / whole, 3),
        "ratio_to_engine": round(load.throughput / bare, 3),
        "p99_over_clients_by_throughput": round(load.quantile(0.99) * load.throughput / arguments.clients, 3),
        "overload": overload.to_json(),
        "goodput_over_peak": round(overload.throughput / load.throughput, 3),
        "after_overload": recovered.to_json(),
    }


if __name__ == "__main__":
    main()
