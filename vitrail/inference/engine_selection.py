"""Opens an engine for a MODEL; `auto` measures which one is fastest here and remembers it beside the model.

The hidden folder `.MODEL.engines` beside MODEL holds the ONNX export that the other engines run, and choices.json,
which says which engine was the fastest. It is a cache: it can be deleted at any time, and nothing fails where it cannot
be written.
"""

import atexit
import contextlib
import functools
import hashlib
import json
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

from vitrail.environment import processor_name
from vitrail.errors import UserError
from vitrail.inference.engines import ENGINE_NAMES, Engine, Name, package, processors
from vitrail.inference.engines.facts import read_onnx_facts
from vitrail.io.checksums import digest, fingerprint
from vitrail.io.documents import read_json
from vitrail.io.files import write_bytes
from vitrail.version import __version__

CHOICES = "choices.json"
"""The file of remembered choices, in the cache beside a model."""
MEASURED_SECONDS = 1.0
"""The time spent on measuring, all engines together."""
ABANDONED_SECONDS = 3600
"""The age from which on an unfinished export counts as killed."""
MANY = 2000
"""The number of pictures from which on measuring, and exporting for it, pays without being asked for."""

Say = Callable[[str], None]
"""Takes one line that a person should read."""


@dataclass(frozen=True)
class Loading:
    """The options of `vitrail.load` besides the path, and the device."""

    model: str | None = None
    image_size: int | tuple[int, int] | None = None
    preprocessing: str | None = None
    labels: str | Path | None = None
    weights_from: Literal["average", "raw"] | None = None
    device: str = "auto"

    def options(self) -> dict[str, Any]:
        """Returns the arguments for `vitrail.load`."""
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
    """Opens an engine for any MODEL that `vitrail.load` takes, or for an exported .onnx or .xml file.

    Args:
        source: The MODEL.
        engine: The engine's name, or auto. None takes what `auto` found earlier, else torch, but measures if there are
            `many` pictures.
        workers: The number of threads that will call the engine.
        loading: How the model is loaded; not for exported files.
        many: Whether so many pictures will follow that measuring pays.
        say: Is called with each line that a person should read.

    Raises:
        UserError: The engine is unknown, is not installed or cannot run this model, or the model cannot be loaded.
    """
    if engine not in (None, "auto", *ENGINE_NAMES):
        raise UserError(f"--engine {engine}: there are auto, {', '.join(ENGINE_NAMES)}")
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
    """Opens an exported .onnx or .xml file; by default .onnx runs on ONNX Runtime and .xml on OpenVINO."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file")
    if any(value is not None for value in loading.options().values()):
        raise UserError(f"{path}: an exported model is fixed; give image size, labels and the like to vitrail export")
    if loading.device not in ("auto", "cpu"):
        raise UserError(f"--device {loading.device}: an exported model runs on the CPU; use the model it was made from")
    able: list[Name] = ["openvino"] if path.suffix.lower() == ".xml" else ["onnxruntime", "openvino"]
    if engine in ENGINE_NAMES and engine not in able:
        raise UserError(f"--engine {engine} cannot run {path}; {' or '.join(able)} can")
    if engine != "auto":
        return _exported_engine(engine or able[0], path, workers)
    facts = None if path.suffix.lower() == ".xml" else read_onnx_facts(path)
    openers = {name: lambda name=name: _exported_engine(name, path, workers, facts) for name in able}
    return _fastest(Memory.beside(path, loading), openers, workers, say)


def _open_model(source: str | Path, engine: str | None, workers: int, loading: Loading, many: bool, say: Say) -> Engine:
    """Loads a model and opens an engine for it, exporting it where the engine needs that."""
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
        """Opens an engine that runs the model's ONNX export, which is made at most once."""
        package(name)  # first, because exporting takes a while and would be in vain without it
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
    """Opens ONNX Runtime or OpenVINO for an exported file."""
    if name == "onnxruntime":
        from vitrail.inference.engines.onnxruntime import OnnxEngine

        return OnnxEngine(path, workers, facts)
    from vitrail.inference.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(path, workers, facts)


def _fastest(memory: "Memory", openers: dict[Any, Callable[[], Engine]], workers: int, say: Say) -> Engine:
    """Opens the engine that was remembered, or measures all that can be opened and remembers the fastest."""
    remembered = memory.recall(workers)
    if remembered in openers:
        return openers[remembered]()
    opened: dict[str, Engine] = {}
    for name, opener in openers.items():
        try:
            opened[name] = opener()
        except UserError as error:  # not installed, or it cannot run this model; others may
            say(f"engine {name} is left out: {error}")
    if not opened:
        raise UserError(f"no engine here can run it; there are {', '.join(openers)}")
    speeds = measure_engines(opened)
    best = max(speeds, key=speeds.__getitem__)
    listed = ", ".join(f"{name} {speed:.1f}" for name, speed in speeds.items())
    say(f"engine {best} is the fastest here (images/s: {listed})")
    memory.remember(workers, best, speeds)
    return opened[best]


def measure_engines(engines: dict[str, Engine], seconds: float = MEASURED_SECONDS) -> dict[str, float]:
    """Measures the images per second of each engine. They take turns, so other work on the machine slows all alike."""
    rounds = 2
    counts, spent = dict.fromkeys(engines, 0), dict.fromkeys(engines, 0.0)
    for turn in range(rounds + 1):
        for name, engine in engines.items():
            done, took = _run_for(engine, seconds / rounds / len(engines) if turn else 0.0)
            if turn:  # the first turn warms up
                counts[name] += done
                spent[name] += took
    return {name: counts[name] / spent[name] for name in engines}


def _run_for(engine: Engine, seconds: float) -> tuple[int, float]:
    """Runs an engine with all its workers for at least so many seconds; returns the images done and the seconds
    taken."""
    images = np.zeros((engine.batch_size, *engine.facts.input_shape), np.float32)
    run = engine.outputs if engine.facts.config.num_classes else engine.features
    done, lock = 0, threading.Lock()
    start = time.perf_counter()

    def work(_: int) -> None:
        """Runs one batch after the other until the time is over."""
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
    """The cache beside a model: its ONNX export, and which engine was the fastest."""

    folder: Path
    """The hidden folder beside the model."""
    weights: str
    """The start of the SHA-256 of the model's files."""
    way: str
    """The start of the SHA-256 of how they are loaded: options, names of classes, our version."""

    @classmethod
    def beside(cls, path: Path, loading: Loading) -> "Memory":
        """Returns the cache of the model at `path` when it is loaded in this way."""
        path = path.resolve()
        way = hashlib.sha256(json.dumps({**loading.options(), "version": __version__}, default=str).encode())
        if loading.labels is not None:  # an export carries the names themselves
            way.update(digest(Path(loading.labels)).encode())
        return cls(path.with_name(f".{path.name}.engines"), fingerprint(path)[:16], way.hexdigest()[:16])

    def recall(self, workers: int) -> str | None:
        """Returns the engine that was fastest with so many workers; None if none was measured."""
        entry = self._entries().get(self._key(workers))
        return entry.get("engine") if isinstance(entry, dict) else None

    def remember(self, workers: int, engine: str, speeds: dict[str, float]) -> None:
        """Writes down the fastest engine and the images per second of all, if the folder can be written to."""
        entries = self._entries()
        rounded = {name: round(speed, 2) for name, speed in speeds.items()}
        entries[self._key(workers)] = {"engine": engine, "images_per_second": rounded}
        with contextlib.suppress(OSError):  # if the folder cannot be written to, measure again next time
            self.folder.mkdir(exist_ok=True)
            write_bytes(self.folder / CHOICES, (json.dumps(entries, indent=2) + "\n").encode())

    def exported(self, model: Any, say: Say) -> Path:
        """Returns the model's ONNX file: kept from earlier, or made now, in a temporary folder if it cannot be kept."""
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
        """Deletes exports of weights that have changed since, and the remains of exports that were killed."""
        for old in self.folder.glob("*.onnx*"):
            if old.is_dir() and time.time() - old.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
            elif old.is_file() and not old.name.startswith(self.weights):
                old.unlink()

    def _entries(self) -> dict[str, Any]:
        """Reads choices.json; damaged or missing, it counts as empty."""
        try:
            return read_json(self.folder / CHOICES)
        except UserError:
            return {}

    def _key(self, workers: int) -> str:
        """Returns the key of a choice: processor, workers, versions and weights. A choice made elsewhere or before an
        upgrade does not count."""
        versions = " ".join(f"{name} {_version(name)}" for name in ENGINE_NAMES)
        return (
            f"{processor_name()}; {processors()} processors; {workers} workers; {versions}; {self.weights} {self.way}"
        )


def _version(name: str) -> str:
    """Returns the installed version of an engine's package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"
