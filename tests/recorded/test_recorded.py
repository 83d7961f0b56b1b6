"""What was given before parts of the program were moved is given still: losses, weights, answers, old folders."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vitrail
from tests.recorded.recording import BUNDLE, HERE, ONNX, RECORDING, machine, pictures

ROOT = Path(__file__).parents[2]
NEAR = 2e-2
"""How far a float may be from the recorded one on another machine, relative to it or to 1."""
SHARES = {"accuracy", "top1", "top5", "balanced_accuracy", "knn_top1"}
"""Shares of 32 to 180 samples: where rounding turns one sample's answer, they move by more than `NEAR`."""
NEAR_SHARE = 0.1


def recordings() -> list[dict[str, Any]]:
    """Those of all machines; the first was made before the parts were moved."""
    others = sorted(set(HERE.glob("recording*.json")) - {RECORDING})
    return [json.loads(path.read_text()) for path in (RECORDING, *others)]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The recording of this machine, or else the first."""
    found = recordings()
    return next((each for each in found if each["machine"] == machine()), found[0])


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
        limit = NEAR_SHARE if where.rpartition("/")[2] in SHARES else NEAR
        assert math.isclose(float.fromhex(first), float.fromhex(second), rel_tol=limit, abs_tol=limit), where


@pytest.mark.parametrize("part", ["answers", "resumed", "commands", "served", "trained"])
def test_nothing_has_changed_by_a_bit(recorded, now, part):
    if recorded["machine"] == machine():
        assert now[part] == recorded[part]
    else:  # another processor rounds otherwise
        near(recorded[part], now[part])


def test_the_machines_agree_but_for_rounding():
    """So a recording that was made later, on another machine, is of the same program as the first."""
    first, *others = recordings()
    assert len({each["machine"] for each in (first, *others)}) == 1 + len(others) > 1
    for other in others:
        near(first, other)


def test_what_is_no_rounding_is_not_near():
    first = recordings()[0]
    changed = json.loads(json.dumps(first))
    record = changed["trained"]["digits"]["records"][0]
    record["loss"] = (1.05 * float.fromhex(record["loss"])).hex()
    with pytest.raises(AssertionError, match="/trained/digits/records/0/loss"):
        near(first, changed)


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


def test_what_is_written_now_is_what_was_written_then(tmp_path):
    """A bundle and an exported file of classes, so that the version of then reads them: one format, the same keys."""
    model = vitrail.load(BUNDLE)
    vitrail.save(model, tmp_path / "bundle")
    vitrail.export(model, tmp_path / "model.onnx")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (BUNDLE, tmp_path / "bundle"))
    facts = [json.loads(onnx.load(path).metadata_props[0].value) for path in (ONNX, tmp_path / "model.onnx")]
    for old, new in ((before, after), facts):
        for section in (old.get("vitrail", old), new.get("vitrail", new)):
            assert section["format"] == 1
            del section["version"]
        assert new == old
    weights = [(folder / "model.safetensors").read_bytes() for folder in (BUNDLE, tmp_path / "bundle")]
    assert weights[0] == weights[1]


def test_the_fixtures_hold_no_path_of_the_machine_they_were_made_on():
    for path in Path(RECORDING.parent).rglob("*.json*"):
        assert "/work" not in path.read_text(), path
        assert "/tmp" not in path.read_text(), path
        assert "/home" not in path.read_text(), path
