"""Records what the program gives: losses, weights, answers, to be compared after its parts have been moved.

    OMP_NUM_THREADS=1 python -m tests.recorded.recording          makes the fixtures anew, and recording.json
    OMP_NUM_THREADS=1 python -m tests.recorded.recording OUT      records into another file, from the fixtures there are

Floats are kept to their last bit (`float.hex`), weights by a digest. Both depend on the machine's arithmetic, so a
recording names the machine it was made on: there everything must be equal, elsewhere losses must be near.
recording.json was made on an AMD EPYC by the version before the parts were moved; recording-xeon.json later, on a Xeon
on which the version that moved them gave the very same, and the weights of the version before were the same too.
"""

import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.serving.conftest import running
from tests.warm import run
from vitrail.config import DataConfig, ModelConfig, Preprocessing, TrainConfig
from vitrail.train import fit
from vitrail.training import snapshots
from vitrail.training.loop import Interrupted

HERE = Path(__file__).parent
RECORDING = HERE / "recording.json"
BUNDLE, RUN, ONNX = HERE / "bundle", HERE / "run", HERE / "model.onnx"
SMALL = ModelConfig(
    image_size=8, patch_size=4, channels=1, width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=10, drop_path=0.1
)
COMMANDS = {
    "evaluate": ("evaluate", str(BUNDLE), "--data", "digits", "--device", "cpu"),
    "fewshot": ("fewshot", str(BUNDLE), "--data", "digits", "--shots", "1", "5", "--seeds", "2", "--device", "cpu"),
    "predict": ("predict", str(BUNDLE), "pictures", "--engine", "torch"),
}
"""Commands whose documents are recorded."""
TIMES = ("seconds", "images_per_second", "waiting", "milliseconds")


def machine() -> str:
    """Name what the last bits of a float may depend on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = {line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")}
    return (
        f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {' '.join(sorted(names)) or platform.machine()}"
    )


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Compute one SHA-256 over names, types, shapes and bytes of tensors."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def exact(value: Any) -> Any:
    """Write floats as hexadecimal, through lists and dictionaries, without what is measured in seconds."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): exact(each) for key, each in value.items() if key not in TIMES}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


def configurations() -> dict[str, TrainConfig]:
    """Give every small recipe, cut to a few steps, and some of what recipes do not use."""
    few = {"steps": 6, "epochs": None, "evaluate_every": 3, "log_every": 2, "batch_size": 16, "device": "cpu"}
    data = {"train_size": 96, "val_size": 40}
    found = {}
    for name in ("digits", "mnist5k", "mnist5k-masked-patch", "mnist5k-mae", "mnist5k-dino"):
        config = vitrail.recipe(name)
        found[name] = config.with_(data=replace(config.data, **data), **few)
    digits = found["digits"]
    mixed = replace(digits.transform, mixup=0.4, cutmix=1.0, label_smoothing=0.1, randaugment_layers=2, erase=0.25)
    found["mixed"] = digits.with_(transform=mixed, ema=0.9, accumulate=2)
    found["sigmoid"] = digits.with_(objective="sigmoid", class_weights="balanced")
    sgd = replace(digits.optimizer, name="sgd", layer_decay=0.8)
    found["fine-tuned"] = digits.with_(init_from=str(BUNDLE), model=SMALL, head="closed_form", optimizer=sgd)
    found["from-zero"] = digits.with_(init_from=str(BUNDLE), model=SMALL, optimizer=sgd, precision="bf16")
    return found


def trained(config: TrainConfig, run: Path, resume: bool = False) -> dict[str, Any]:
    """Train, and give every record, the weights kept and the state to go on from."""
    result = fit(config, run, resume=resume, report=False)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parts = [part for part in ("bundle", "best", "probe") if (run / part).is_dir()]
    kept = snapshots.read_snapshot(run / "snapshots")
    return {
        "records": exact([each for each in records if not resume or each["kind"] != "train"]),
        "metrics": exact(result.metrics),
        "weights": {part: digest(load_file(run / part / "model.safetensors")) for part in parts},
        "snapshot": digest(kept[1]) if kept else None,
    }


def pictures(folder: Path) -> list[Path]:
    """Draw five pictures of several sizes and kinds."""
    draw = np.random.default_rng(0)
    shapes = ((8, 8), (30, 41), (64, 20, 3), (17, 17, 3), (120, 90))
    paths = [folder / f"{place}.png" for place in range(len(shapes))]
    for path, shape in zip(paths, shapes, strict=True):
        Image.fromarray(draw.integers(0, 256, shape, np.uint8)).save(path)
    return paths


def answers(model: Path, folder: Path) -> dict[str, Any]:
    """Give what a model says of five pictures, as logits, rows and features."""
    paths = pictures(folder)
    loaded = vitrail.load(model)
    pixels = torch.linspace(-1, 1, 3 * 64).reshape(3, 1, 8, 8)
    with torch.inference_mode():
        logits = loaded(pixels)
    rows = [row.to_json() for row in vitrail.predict(loaded, paths, top=3)]
    for row in rows:
        row["path"] = Path(row["path"]).name
    return {
        "logits": exact(logits.tolist()),
        "predict": exact(rows),
        "embed": exact(vitrail.embed(loaded, paths).astype(float).tolist()),
    }


def spoken(*command: str, cwd: Path) -> str:
    """Give what a command prints."""
    done = run(*command, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def served(folder: Path) -> dict[str, Any]:
    """Give what the server answers about a picture, over HTTP."""
    with running(folder, str(BUNDLE), "--engine", "torch") as server, httpx.Client(base_url=server.url) as client:
        found = {}
        for path in ("/predict", "/embed"):
            reply = client.post(path, files={"image": (folder / "1.png").read_bytes()})
            found[path] = {"status": reply.status_code, "body": exact(reply.json())}
        return found


def interrupted(config: TrainConfig, run: Path) -> None:
    """Train until a few steps are done, as a person who presses Ctrl-C."""

    def interrupt() -> None:
        while not (run / "metrics.jsonl").exists() or '"step": 4' not in (run / "metrics.jsonl").read_text():
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        fit(config, run, report=False)
    except Interrupted:
        return
    raise AssertionError("the run ended before it was interrupted")


def unfinished() -> TrainConfig:
    """Give the configuration of the run folder that is kept."""
    digits = vitrail.recipe("digits")
    data = DataConfig("digits", train_size=96, val_size=40)
    return digits.with_(
        model=SMALL,
        data=data,
        steps=60,
        epochs=None,
        evaluate_every=20,
        log_every=2,
        batch_size=16,
        ema=0.9,
        device="cpu",
    )


def record(folder: Path) -> dict[str, Any]:
    """Give everything that is compared, from the fixtures that are there."""
    resumed = folder / "resumed"
    shutil.copytree(RUN, resumed)
    (folder / "pictures").mkdir()
    return {
        "machine": machine(),
        "answers": answers(BUNDLE, folder / "pictures"),
        "resumed": trained(unfinished(), resumed, resume=True),
        "commands": {name: exact(json.loads(spoken(*command, cwd=folder))) for name, command in COMMANDS.items()},
        "served": served(folder / "pictures"),
        "trained": {name: trained(config, folder / name) for name, config in configurations().items()},
    }


def make_fixtures() -> None:
    """Write the bundle, the exported file and the run folder that later versions have to open."""
    for path in (BUNDLE, RUN):
        shutil.rmtree(path, ignore_errors=True)
    ONNX.unlink(missing_ok=True)
    torch.manual_seed(0)
    model = vitrail.create(SMALL)
    torch.nn.init.normal_(model.head.weight)
    model.card.preprocessing = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,))
    model.card.label_names = tuple(map(str, range(10)))
    vitrail.save(model, BUNDLE)
    vitrail.export(vitrail.load(BUNDLE), ONNX)
    interrupted(unfinished(), RUN)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        make_fixtures()
    with tempfile.TemporaryDirectory() as made:
        Path(sys.argv[1] if sys.argv[1:] else RECORDING).write_text(json.dumps(record(Path(made)), indent=1) + "\n")
