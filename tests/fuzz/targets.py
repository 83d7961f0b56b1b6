"""What is fed with changed files and requests: each target makes one mutant from a seed and says what went wrong."""

import base64
import contextlib
import json
import math
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.fuzz import corpus, mutators
from tests.fuzz.limits import Outcome, run_command
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.load import load
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.models.build import create


class Commands:
    """Files that a command reads. A subclass makes mutants; the corpus has cases that were found before."""

    cases: Mapping[str, corpus.Case] = {}

    def __init__(self, good: Path) -> None:
        self.good = good

    def mutant(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        """Makes a changed file in an empty folder; returns what it is, and the command that must bear it."""
        raise NotImplementedError

    def attempt(self, rng: random.Random, folder: Path) -> tuple[str, Outcome]:
        what, arguments = self.mutant(rng, folder)
        return f"{what}: {' '.join(arguments)}", run_command(arguments)

    def close(self) -> None:
        pass


class Checkpoints(Commands):
    """Weights, bundles, folders of other libraries and exported models."""

    cases = corpus.CHECKPOINTS

    def __init__(self, good: Path) -> None:
        super().__init__(good)
        torch.manual_seed(0)
        model = create("Ti/16", depth=2, width=64, mlp_dim=64, num_heads=1, num_classes=3, image_size=32)
        state = model.state_dict()
        save_file(state, good / "a.safetensors")
        torch.save({"model": state, "epoch": 3}, good / "a.pth")
        torch.save(state, good / "old.pth", _use_new_zipfile_serialization=False)
        convert(good / "a.safetensors", good / "a.npz", "google", check=False)
        shutil.copytree(corpus.RECORDED / "bundle", good / "bundle")
        shutil.copy(corpus.RECORDED / "model.onnx", good / "a.onnx")
        for kind in ("huggingface", "timm"):
            convert(good / "a.npz", good / kind, kind, check=False)
        import_peer("onnxruntime")  # once for all children
        self.kinds: tuple[Callable[[random.Random, Path], tuple[str, list[str]]], ...] = (
            *(self._weights,) * 3,
            *(self._folder,) * 2,
            self._exported,
        )

    def mutant(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        return rng.choice(self.kinds)(rng, folder)

    def _weights(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        name = rng.choice(("a.safetensors", "a.pth", "old.pth", "a.npz"))
        content = (self.good / name).read_bytes()
        inner = {"a.safetensors": mutators.mutate_safetensors, "old.pth": mutators.mutate_bytes}
        change = rng.choice((mutators.mutate_bytes, *(inner.get(name, mutators.mutate_archive),) * 2))
        (folder / name).write_bytes(change(content, rng))
        return f"{name} by {change.__name__}", corpus.convert(folder / name)

    def _folder(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        kind = rng.choice(("bundle", "bundle", "huggingface", "timm"))
        path = Path(shutil.copytree(self.good / kind, folder / kind))
        file = rng.choice(sorted(path.iterdir()))
        suffix = {".json": mutators.mutate_json, ".safetensors": mutators.mutate_safetensors}
        change = rng.choice((mutators.mutate_bytes, *(suffix.get(file.suffix, mutators.mutate_bytes),) * 3))
        file.write_bytes(change(file.read_bytes(), rng))
        if kind == "bundle" and file.name != "SHA256SUMS" and rng.random() < 0.9:
            corpus.seal(path)
        return f"{kind}/{file.name} by {change.__name__}", corpus.convert(path)

    def _exported(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        (folder / "a.onnx").write_bytes(mutators.mutate_bytes((self.good / "a.onnx").read_bytes(), rng))
        return "a.onnx by mutate_bytes", corpus.predict(folder / "a.onnx")


class Folders(Commands):
    """Run folders, with which a run goes on."""

    cases = corpus.FOLDERS

    def mutant(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        run = Path(shutil.copytree(corpus.RECORDED / "run", folder / "run"))
        files = sorted(each for each in run.rglob("*") if each.is_file())
        file = rng.choice(files)
        change = mutators.mutate_bytes
        if file.suffix == ".json" and rng.random() < 0.7:
            change = mutators.mutate_json
        if file.suffix == ".safetensors" and rng.random() < 0.7:
            change = mutators.mutate_safetensors
        file.write_bytes(change(file.read_bytes(), rng))
        if file.name == "config.json":  # one that asks for a longer run is no fault
            return f"{file.name} by {change.__name__}", corpus.convert(run)
        if file.parent != run and file.name != "SHA256SUMS" and rng.random() < 0.9:
            corpus.seal(file.parent)
        return f"{file.relative_to(run)} by {change.__name__}", ["train", "--out", str(run), "--resume"]


class Pictures(Commands):
    """Pictures of several formats, which may not be readable but must not end the command."""

    cases = corpus.PICTURES
    FORMATS = ("png", "jpg", "gif", "tif", "bmp", "webp", "ico")

    def __init__(self, good: Path) -> None:
        super().__init__(good)
        pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
        for suffix in self.FORMATS:
            Image.fromarray(pixels).save(good / f"photo.{suffix}")

    def mutant(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        pictures = folder / "pictures"
        pictures.mkdir()
        for suffix in self.FORMATS:
            content = mutators.mutate_bytes((self.good / f"photo.{suffix}").read_bytes(), rng)
            (pictures / f"photo.{suffix}").write_bytes(content)
        return "pictures", ["predict", str(corpus.RECORDED / "bundle"), str(pictures), "--engine", "torch"]


class Http:
    """Requests to a server, which must answer, and go on to be ready."""

    cases: Mapping[str, corpus.Case] = {}

    def __init__(self, good: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (good / "server.log").open("w+b")
        model = f"bundle={corpus.RECORDED / 'bundle'}"
        command = [sys.executable, "-m", "vitrail", "serve", model, "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += ["--engine", "torch"]
        self.server = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        deadline = time.monotonic() + 120
        while self._status("/v2/health/ready") != 200:
            assert time.monotonic() < deadline, "the server did not come up"
            assert self.server.poll() is None, "the server ended"
            time.sleep(0.1)
        picture = good / "photo.png"
        Image.new("L", (8, 8)).save(picture)
        config = load(corpus.RECORDED / "bundle").config
        self.requests = tuple(good_requests(picture.read_bytes(), (config.channels, *config.rows_columns), "bundle"))
        for request in self.requests:  # a change of one that is refused anyway would try nothing
            answer = self._send(request)
            if not answer.startswith(b"HTTP/1.1 200 "):
                self.close()
                raise AssertionError(f"{request[:300]!r}\n{answer[:900]!r}")

    def attempt(self, rng: random.Random, folder: Path) -> tuple[str, Outcome]:
        request = mutators.mutate_bytes(rng.choice(self.requests), rng)
        began = time.monotonic()
        answer = self._send(request)
        ready = self._status("/v2/health/ready")
        self.log.seek(0)
        log = self.log.read().decode("utf-8", "replace")
        wrong = "Traceback" in log or answer.startswith((b"HTTP/1.1 500", b"HTTP/1.0 500")) or ready != 200
        said = f"{request[:300]!r}\n{answer[:300]!r}\nready: {ready}\n{log[-2000:]}"
        return "a request", Outcome(1 if wrong else 0, said, time.monotonic() - began)

    def _send(self, request: bytes) -> bytes:
        """Sends a request, ends the sending, and returns all that comes back."""
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(2**16):
                answer += part
        return answer

    def _status(self, path: str) -> int:
        failures = contextlib.suppress(OSError, ValueError, IndexError)
        with failures, socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
            return int(connection.recv(2**16).split()[1])
        return 0

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(60)
        self.log.close()


IMAGE_ROUTES = ("/predict", "/embed", "/attention", "/attention/map")
INFER_ROUTES = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer")
"""Every route with a body, as the server declares it; a test compares them."""


def good_requests(picture: bytes, shape: Sequence[int], name: str) -> Iterator[bytes]:
    """Yields requests that a server answers with 200: to every route with a body, in every form that it takes.

    Args:
        picture: The file of a picture.
        shape: Channels, rows and columns of the model's input.
        name: The model's name.
    """
    for route in IMAGE_ROUTES:
        for kind, body in _image_bodies(picture):
            yield _post(route, body, f"Content-Type: {kind}")
    for route in INFER_ROUTES:
        path = route.format(name=name, version=1)
        for body, length in _infer_bodies(picture, shape):
            yield _post(path, body, f"Content-Type: application/json{length}")
    chunks = f"{len(picture):x}\r\n".encode() + picture + b"\r\n0\r\n\r\n"
    yield _head("POST /predict", "Content-Type: image/png\r\nTransfer-Encoding: chunked") + chunks
    paths = "/", "/v2", "/metrics", "/model", f"/model/{name}/positions", "/v2/health/ready", f"/v2/models/{name}"
    for path in paths:
        yield _head(f"GET {path}", "Accept: */*")


def _image_bodies(picture: bytes) -> Iterator[tuple[str, bytes]]:
    yield "image/png", picture
    yield "application/json", json.dumps({"image": base64.b64encode(picture).decode()}).encode()
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + picture
    yield "multipart/form-data; boundary=x", part + b"\r\n--x--\r\n"


def _infer_bodies(picture: bytes, shape: Sequence[int]) -> Iterator[tuple[bytes, str]]:
    """Yields bodies with the header that says where their JSON ends, if bytes follow it."""
    numbers = {"name": "images", "shape": [1, *shape], "datatype": "FP32"}
    values = np.full(math.prod(shape), 0.5, "<f4")
    files = {"name": "image", "shape": [1], "datatype": "BYTES"}
    yield json.dumps({"inputs": [{**numbers, "data": values.tolist()}]}).encode(), ""
    yield json.dumps({"inputs": [{**files, "data": [base64.b64encode(picture).decode()]}]}).encode(), ""
    for given, tail in ((numbers, values.tobytes()), (files, struct.pack("<I", len(picture)) + picture)):
        parameters = {"binary_data_size": len(tail)}
        text = json.dumps({"inputs": [{**given, "parameters": parameters}]}).encode()
        yield text + tail, f"\r\nInference-Header-Content-Length: {len(text)}"


def _head(line: str, headers: str) -> bytes:
    return f"{line} HTTP/1.1\r\nHost: here\r\n{headers}\r\n\r\n".encode()


def _post(path: str, body: bytes, headers: str) -> bytes:
    return _head(f"POST {path}", f"{headers}\r\nContent-Length: {len(body)}") + body


class Data(Commands):
    """Data sets: only the cases of the corpus."""

    cases = corpus.DATA

    def mutant(self, rng: random.Random, folder: Path) -> tuple[str, list[str]]:
        document = {
            "images": [{"id": 1, "file_name": "photo.png"}],
            "categories": [{"id": 7, "name": "sun"}, {"id": 9, "name": "rain"}],
            "annotations": [{"image_id": 1, "category_id": 7}],
        }
        Image.new("L", (8, 8)).save(folder / "photo.png")
        (folder / "instances_a.json").write_bytes(mutators.mutate_json(mutators.dump(document), rng))
        return "instances_a.json by mutate_json", ["data", "check", str(folder / "instances_a.json")]


TARGETS = {"checkpoints": Checkpoints, "folders": Folders, "data": Data, "pictures": Pictures, "http": Http}


def warm_up() -> None:
    """Imports what children need, once."""
    torch.set_num_threads(1)
    load(corpus.RECORDED / "bundle")
    for arguments in (["--help"], ["models"]):
        run_command(arguments)
    for name in ("convert", "predict", "train", "data"):
        __import__(f"vitrail.cli.{name}")
    for name in ("sklearn.datasets", "tyro", "vitrail.train", "vitrail.inference.api", "vitrail.data.check"):
        __import__(name)
