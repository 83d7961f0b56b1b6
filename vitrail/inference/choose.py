"""From a MODEL and the name of an engine to an engine; `auto` measures, and remembers beside the model.

Beside `MODEL` lies, hidden, the folder `.MODEL.engines`: the export that other engines run, and choices.json, which
says what was fastest here. It is a cache: it can be deleted at any time, and is not missed where it cannot be written.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.engines import NAMES, Engine, Name, package, processors
from vitrail.inference.engines.facts import read_onnx_facts
from vitrail.io.checksums import digest, fingerprint
from vitrail.io.files import write_bytes
from vitrail.version import __version__

CHOICES = "choices.json"
MEASURED_SECONDS = 1.0
"""For all engines together."""
ABANDONED_SECONDS = 3600
"""An export that has not ended by then was killed."""
MANY = 2000
"""Pictures from which on measuring, and exporting for it, pays without being asked for."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Loading:
    """What `vitrail.load` is told besides the path."""

    model: str | None = None
    image_size: int | tuple[int, int] | None = None
    preprocessing: str | None = None
    labels: str | Path | None = None
    weights_from: Literal["average", "raw"] | None = None
    device: str = "auto"

    def options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "device"}


def open_engine(
    source: str | Path,
    engine: Name | str | None = None,
    *,
    workers: int = 1,
    loading: Loading | None = None,
    many: bool = False,
    say: Say = lambda _: None,
) -> Engine:
    """An engine for any MODEL that `vitrail.load` takes, or for an exported .onnx or .xml file.

    Without a name it is what `auto` found before, else torch; with `many` pictures to come, `auto` is asked.
    """
    if engine not in (None, "auto", *NAMES):
        raise UserError(f"--engine {engine}: there are auto, {', '.join(NAMES)}")
    suffix = Path(source).suffix.lower()
    if suffix == ".pt2":
        raise UserError(
            f"{source}: a torch.export program is for programs of yours; reading one can run code in it, so it is "
            "not opened here. Use the model it was made from, or export it to .onnx"
        )
    if suffix in (".onnx", ".xml"):
        return _open_exported(Path(source), engine, workers, loading or Loading(), say)
    return _open_model(source, engine, workers, loading or Loading(), many, say)


def _open_exported(path: Path, engine: str | None, workers: int, loading: Loading, say: Say) -> Engine:
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if any(value is not None for value in loading.options().values()):
        raise UserError(f"{path}: an exported model is fixed; give image size, labels and the like to vitrail export")
    if loading.device not in ("auto", "cpu"):
        raise UserError(f"--device {loading.device}: an exported model runs on the CPU; use the model it was made from")
    able: list[Name] = ["openvino"] if path.suffix.lower() == ".xml" else ["onnxruntime", "openvino"]
    if engine in NAMES and engine not in able:
        raise UserError(f"--engine {engine} cannot run {path}; {' or '.join(able)} can")
    if engine != "auto":
        return _exported_engine(engine or able[0], path, workers)
    facts = None if path.suffix.lower() == ".xml" else read_onnx_facts(path)
    openers = {name: lambda name=name: _exported_engine(name, path, workers, facts) for name in able}
    return _fastest(Memory.beside(path, loading), openers, workers, say)


def _open_model(source: str | Path, engine: str | None, workers: int, loading: Loading, many: bool, say: Say) -> Engine:
    from vitrail.checkpoints.load import load, locate
    from vitrail.inference.engines.torch import TorchEngine
    from vitrail.models.device import choose_device

    path = locate(source)
    model = load(source, **loading.options())
    for line in model.card.notes:
        say(line)
    device = choose_device(loading.device)
    if engine == "torch" or device.type != "cpu":
        if engine not in (None, "torch", "auto"):
            raise UserError(f"--engine {engine} runs on the CPU; leave --device {device} away, or use --engine torch")
        return TorchEngine(model.to(device), workers)
    memory = Memory.beside(path, loading)
    if engine is None and not many and memory.recall(workers) is None:
        return TorchEngine(model, workers)

    export_once = functools.cache(lambda: memory.exported(model, say))

    def exported(name: Name) -> Engine:
        package(name)  # exporting takes a while, and would be for nothing
        return _exported_engine(name, export_once(), workers)

    openers: dict[Name, Callable[[], Engine]] = {
        "torch": lambda: TorchEngine(model, workers),
        "onnxruntime": lambda: exported("onnxruntime"),
        "openvino": lambda: exported("openvino"),
    }
    if engine in openers:
        return openers[engine]()
    return _fastest(memory, openers, workers, say)


def _exported_engine(name: str, path: Path, workers: int, facts: Any = None) -> Engine:
    if name == "onnxruntime":
        from vitrail.inference.engines.onnxruntime import OnnxEngine

        return OnnxEngine(path, workers, facts)
    from vitrail.inference.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(path, workers, facts)


def _fastest(memory: "Memory", openers: dict[Any, Callable[[], Engine]], workers: int, say: Say) -> Engine:
    remembered = memory.recall(workers)
    if remembered in openers:
        return openers[remembered]()
    opened: dict[str, Engine] = {}
    for name, opener in openers.items():
        try:
            opened[name] = opener()
        except UserError as error:  # not installed, or it cannot run this model: the others can
            say(f"engine {name} is left out: {error}")
    if not opened:
        raise UserError(f"no engine here can run it; there are {', '.join(openers)}")
    speeds = measure(opened)
    best = max(speeds, key=speeds.__getitem__)
    listed = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
    say(f"engine {best} is the fastest here (images/s: {listed})")
    memory.remember(workers, best, speeds)
    return opened[best]


def measure(engines: dict[str, Engine], seconds: float = MEASURED_SECONDS) -> dict[str, float]:
    """Images a second of each, taking turns so that what else the machine does meanwhile falls on all of them."""
    rounds = 2
    counts, spent = dict.fromkeys(engines, 0), dict.fromkeys(engines, 0.0)
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            done, took = _run_for(engine, seconds / rounds / len(engines) if turn else 0.0)
            if turn:  # the first is to warm up
                counts[name] += done
                spent[name] += took
    return {name: counts[name] / spent[name] for name in engines}


def _run_for(engine: Engine, seconds: float) -> tuple[int, float]:
    images = np.zeros((engine.batch_size, *engine.facts.input_shape), np.float32)
    run = engine.outputs if engine.facts.config.num_classes else engine.features
    done, lock = 0, threading.Lock()
    start = time.perf_counter()

    def work(_: int) -> None:
        nonlocal done
        while True:
            run(images)
            with lock:
                done += len(images)
            if time.perf_counter() - start >= seconds:
                return

    with engine.running(), ThreadPoolExecutor(engine.workers) as pool:
        list(pool.map(work, range(engine.workers)))
    return done, time.perf_counter() - start


@dataclass(frozen=True)
class Memory:
    """What is kept beside a model."""

    folder: Path
    weights: str
    """SHA-256 of the model's files."""
    way: str
    """SHA-256 of how they are loaded."""

    @classmethod
    def beside(cls, path: Path, loading: Loading) -> "Memory":
        path = path.resolve()
        way = hashlib.sha256(json.dumps({**loading.options(), "version": __version__}, default=str).encode())
        if loading.labels is not None:  # an export carries the names themselves
            way.update(digest(Path(loading.labels)).encode())
        return cls(path.with_name(f".{path.name}.engines"), fingerprint(path)[:16], way.hexdigest()[:16])

    def recall(self, workers: int) -> str | None:
        entry = self._entries().get(self._key(workers))
        return entry.get("engine") if isinstance(entry, dict) else None

    def remember(self, workers: int, engine: str, speeds: dict[str, float]) -> None:
        entries = self._entries()
        rounded = {name: round(speed, 2) for name, speed in speeds.items()}
        entries[self._key(workers)] = {"engine": engine, "images_per_second": rounded}
        with contextlib.suppress(OSError):  # a folder that cannot be written to: measured again next time
            self.folder.mkdir(exist_ok=True)
            write_bytes(self.folder / CHOICES, (json.dumps(entries, indent=2) + "\n").encode())

    def exported(self, model: Any, say: Say) -> Path:
        """The model as ONNX: from before, or made now; in a temporary folder where it cannot be kept."""
        from vitrail.inference.export import export

        path = self.folder / f"{self.weights}-{self.way}.onnx"
        if path.is_file():
            return path
        say("exporting to ONNX for other engines, once ...")
        try:
            self.folder.mkdir(exist_ok=True)
            self._tidy()
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError:
            folder = tempfile.mkdtemp(prefix="vitrail-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder) / path.name
        return export(model, path, overwrite=True).files[0]

    def _tidy(self) -> None:
        """Away with exports of weights that are no more, and with what an export that was killed has left."""
        for old in self.folder.glob("*.onnx*"):
            if old.is_dir() and time.time() - old.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
            elif old.is_file() and not old.name.startswith(self.weights):
                old.unlink()

    def _entries(self) -> dict[str, Any]:
        try:
            entries = json.loads((self.folder / CHOICES).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _key(self, workers: int) -> str:
        """The machine and what would run on it: a choice made elsewhere, or before an upgrade, does not count."""
        versions = " ".join(f"{name} {_version(name)}" for name in NAMES)
        return f"{_processor()}; {processors()} processors; {workers} workers; {versions}; {self.weights} {self.way}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
