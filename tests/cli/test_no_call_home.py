"""No command speaks to anybody outside this machine unless it is asked to (`hf:`, URLs)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from tests.conftest import toy

ALONE = ("unshare", "--user", "--map-root-user", "--net", "--")
LEAKS = """
import ctypes, socket
ctypes.CDLL(None).gethostbyname(b"native.invalid")
for address in (("python.invalid", 80), ("192.0.2.1", 443)):
    try:
        socket.create_connection(address, timeout=0.2)
    except OSError:
        pass
"""


def record(folder: Path, commands: list[list[str]]) -> dict[str, list[list[str]]]:
    """Runs commands one after another; what each of them sent, and what went wrong."""
    home = folder / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "OMP_NUM_THREADS": "1", "RES_OPTIONS": "attempts:1 timeout:1"}
    environment |= {"PYTHONPATH": os.getcwd()}  # noqa: PTH109
    for name in ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS"):  # where telemetry is off anyway
        environment.pop(name, None)
    told = "\n".join(json.dumps(command) for command in commands)
    runner = (*ALONE, sys.executable, "-m", "tests.recorded_network", str(folder / "found.json"))
    done = subprocess.run(runner, input=told, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "found.json").read_text())
    assert not found["failures"], (found["failures"], done.stderr[-3000:])
    assert not (home / "intel").exists(), "OpenVINO's telemetry has left its files at home"
    assert not list(home.rglob("*nnx*untime*")), "ONNX Runtime's telemetry has left its files at home"
    return found["found"]


def unable() -> bool:
    """Tells whether this system refuses to make a network namespace."""
    return shutil.which(ALONE[0]) is None or subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0


pytestmark = pytest.mark.skipif(unable(), reason="needs network namespaces (Linux, unshare)")


def test_what_is_looked_up_and_connected_to_is_recorded(tmp_path):
    """Without this the next test would pass whatever the commands did."""
    found = {said for _, said in record(tmp_path, [["python", LEAKS]])}
    assert found == {"look-up of native.invalid", "look-up of python.invalid", "192.0.2.1 port 443"}


PICTURE = "photos/dark/0.png"
EXPORTED = [
    ["export", "toy", "--to", "openvino", "--out", "toy.xml"],
    ["predict", "toy.xml", PICTURE],
    ["predict", "toy", PICTURE, "--engine", "auto"],
]
SMALL = ["--model.width", "32", "--model.depth", "2", "--model.num-heads", "2", "--model.mlp-dim", "64"]
OTHERS = [
    ["models"],
    ["plan", "Ti/16", "--images", "1000", "--epochs", "1"],
    ["train", "mnist5k", "--data", "photos", "--out", "run", "--steps", "2", "--batch-size", "4", *SMALL],
    ["finetune", "toy", "--data", "photos", "--out", "tuned", "--quick"],
    ["evaluate", "run", "--data", "photos"],
    ["fewshot", "toy", "--data", "photos", "--shots", "1"],
    ["data", "check", "photos", "--out", "checked"],
    ["data", "shard", "photos", "sharded"],
    ["export", "toy", "--to", "onnx", "--out", "toy.onnx"],
    ["predict", "toy.onnx", PICTURE],
    ["export", "toy", "--to", "torch", "--out", "toy.pt2"],
    ["predict", "toy.onnx", PICTURE, "--engine", "openvino"],
    ["embed", "toy", "photos", "--out", "embedded.parquet"],
    ["inspect", "toy", PICTURE, "--out", "inside"],
    ["convert", "toy", "timm.safetensors", "--to", "timm"],
    ["bench", "--models", "Ti/16", "--image-size", "32", "--batch", "1", "--rounds", "1", "--peers", "openvino"],
    ["serve", "toy", "xml=toy.xml"],
]
"""Every command but `study`, whose rows are trainings like that of `train`."""


@pytest.mark.parametrize("commands", [EXPORTED, pytest.param(EXPORTED + OTHERS, marks=pytest.mark.slow)])
def test_no_command_speaks_to_another_host(tmp_path, commands):
    for number in range(12):
        path = tmp_path / "photos" / ("light" if number % 2 else "dark") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * number, 9 * number, 250 - 20 * number)).save(path)
    vitrail.save(toy(num_classes=2), tmp_path / "toy")
    assert not record(tmp_path, commands)
