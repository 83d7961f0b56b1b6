"""The walks of docs/design.md are what the program does: each step is called, in this order, and no step goes back."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.tracing import Trace

ROOT = Path(__file__).parent.parent
MOST = 15
EVENT_LOOP = {"serving/server.py"}
"""What runs asyncio's loop, which calls what a step has only scheduled."""
STEP = re.compile(r"^\d+\. `([\w/.]+)` `([\w.]+)`", re.MULTILINE)


def walks() -> dict[str, list[tuple[str, str]]]:
    """The steps of each walk as (file, function), by the first two words of its command."""
    text = (ROOT / "docs" / "design.md").read_text("utf-8").partition("\n## Walks\n")[2].partition("\n## ")[0]
    found = {}
    for part in text.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        found[title.strip("`").split()[1]] = STEP.findall(body)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    model = vitrail.create("Ti/16", image_size=32, patch_size=8, depth=2, num_classes=3)
    vitrail.save(model, folder / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    return folder


def traced(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.tracing", str(folder / f"{arguments[0]}.json"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder: Path, *arguments: str) -> Trace:
    process = traced(folder, *arguments)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return Trace.read(folder / f"{arguments[0]}.json")


def served(folder: Path) -> Trace:
    """Traces what the server does once it is ready, when a photo comes."""
    process = traced(folder, "serve", "model", "--port", "0")
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(rb"http://[\d.]+:\d+", line):
                break
        else:
            raise AssertionError("the server did not start")
        address = found[0].decode()
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/v2/health/ready", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)  # what was done until now is forgotten
        time.sleep(0.2)
        photo = (folder / "photo.jpg").read_bytes()
        request = urllib.request.Request(f"{address}/predict", photo, {"Content-Type": "image/jpeg"})
        assert urllib.request.urlopen(request, timeout=60).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    return Trace.read(folder / "serve.json")


def test_there_are_four_walks_that_never_go_back():
    found = walks()
    assert sorted(found) == ["inspect", "predict", "serve", "train"]
    for name, steps in found.items():
        assert 8 <= len(steps) <= MOST, name
        files = [file for file, _ in steps]
        assert len(set(files)) == len(files), f"{name} goes back to a file it has left"


@pytest.mark.parametrize("name", ["predict", "train", "serve", "inspect"])
def test_a_walk_is_what_the_program_does(name, folder):
    commands = {
        "predict": ("predict", "model", "photo.jpg"),
        "train": ("train", "digits", "--steps", "2", "--out", "run", "--data.workers", "1"),
        "inspect": ("inspect", "model", "photo.jpg", "--out", "seen"),
    }
    trace = served(folder) if name == "serve" else run(folder, *commands[name])
    steps = walks()[name]
    missing = [step for step in steps if step not in trace.order]
    assert not missing, f"{name} does not call {missing}"
    assert steps == sorted(steps, key=trace.order.index), f"{name} calls them in another order"
    for place, step in enumerate(steps[1:], 1):
        before = {file for file, _ in steps[:place]}
        leading = {file for file, _ in trace.leading_to(step)}
        assert leading & before or leading == EVENT_LOOP, f"{name}: no file of an earlier step leads to {step}"


def test_the_table_of_places_names_files_and_functions_that_are_there():
    text = (ROOT / "docs" / "design.md").read_text("utf-8").partition("\n## Where is ...?\n")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 14
    for row in rows:
        file, found = None, re.findall(r"`([\w/.]+)`", row)
        assert found, row
        for name in found:
            if name.endswith(".py"):
                file = ROOT / "vitrail" / name
                assert file.exists(), row
            else:
                assert file is not None, row
                assert re.search(rf"\b{name.rpartition('.')[2]}\b", file.read_text("utf-8")), row
