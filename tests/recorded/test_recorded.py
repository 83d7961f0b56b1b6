"""What was given before parts of the program were moved is given still: losses, weights, answers, old folders."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from tests.recorded.recording import BUNDLE, ONNX, RECORDING, machine, pictures

ROOT = Path(__file__).parents[2]
NEAR = 2e-2
"""How far a float may be from the recorded one on another machine, relative to it or to 1."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORDING.read_text())


@pytest.fixture(scope="module")
def now(tmp_path_factory) -> dict[str, Any]:
    """Recorded by a process of its own: threads and kernels are chosen once a process."""
    out = tmp_path_factory.mktemp("now") / "recording.json"
    command = [sys.executable, "-m", "tests.recorded.recording", str(out)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def near(first: Any, second: Any, where: str = "") -> None:
    """Compare structure, words and counts exactly, floats roughly, and digests not at all."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            if key not in ("weights", "snapshot", "machine"):
                near(first[key], second[key], f"{where}/{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), where
        for place, pair in enumerate(zip(first, second, strict=True)):
            near(*pair, f"{where}/{place}")
    elif isinstance(first, str) and "0x" in first:
        assert math.isclose(float.fromhex(first), float.fromhex(second), rel_tol=NEAR, abs_tol=NEAR), where


@pytest.mark.parametrize("part", ["answers", "resumed", "commands", "served", "trained"])
def test_nothing_has_changed_by_a_bit(recorded, now, part):
    if recorded["machine"] == machine():
        assert now[part] == recorded[part]
    else:  # another processor rounds otherwise
        near(recorded[part], now[part])


def test_an_exported_file_from_before_answers_as_it_did(recorded, tmp_path):
    paths = pictures(tmp_path)
    before = recorded["answers"]["predict"]
    for model in (ONNX, BUNDLE):
        found = vitrail.predict(str(model), paths, top=3, engine="onnxruntime" if model == ONNX else "torch")
        for row, old in zip(found, before, strict=True):
            top = row.to_json()["top"]
            assert [each["label"] for each in top] == [each["label"] for each in old["top"]]
            scores = [float.fromhex(each["score"]) for each in old["top"]]
            np.testing.assert_allclose([each["score"] for each in top], scores, atol=1e-5)


def test_the_fixtures_hold_no_path_of_the_machine_they_were_made_on():
    for path in Path(RECORDING.parent).rglob("*.json*"):
        assert "/work" not in path.read_text(), path
        assert "/tmp" not in path.read_text(), path
        assert "/home" not in path.read_text(), path
