"""Several processes train as one does: the same losses, the same samples, the same end, whoever dies."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

import vitrail
from tests.training.several_processes import EXACT
from vitrail.checkpoints.bundle import is_bundle
from vitrail.training import snapshots
from vitrail.training.progress import read_metrics

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, dict]:
    """All scenarios, trained once whatever the number of processes that test."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "together"
    with FileLock(f"{out}.lock"):
        if not (out / "found.json").exists():
            command = [sys.executable, "-m", "tests.training.several_processes", str(out)]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
            assert result.returncode == 0, result.stderr
            (out / "found.json").write_text(result.stdout)
    return out, json.loads((out / "found.json").read_text())


def losses(run: Path) -> np.ndarray:
    return np.array([record["loss"] for record in read_metrics(run) if record["kind"] == "train"])


def ended(runs, name: str) -> list[list[int]]:
    return [each["ended"] for each in runs[1][name]]


def said(runs, name: str) -> str:
    return "\n".join(runs[1][name][-1]["said"])


@pytest.mark.parametrize(
    ("name", "alone"),
    [("ddp", "one"), ("four", "one"), ("fsdp", "one"), ("parts-ddp", "parts-one"), ("parts-fsdp", "parts-one")],
)
def test_the_losses_are_those_of_one_process(runs, name, alone):
    processes = 4 if name == "four" else 2
    assert ended(runs, name) == [[0] * processes], said(runs, name)
    ours, expected = losses(runs[0] / name), losses(runs[0] / alone)
    assert len(ours) == 20
    assert np.abs(ours - expected).max() < 1e-5
    assert expected[-1] < expected[0], "it has learned something that could have differed"


def test_half_precision_and_checkpointing_under_fsdp(runs):
    assert ended(runs, "half-fsdp") == [[0, 0]], said(runs, "half-fsdp")
    ours, expected = losses(runs[0] / "half-fsdp"), losses(runs[0] / "half-one")
    assert np.abs(ours - expected).max() < 0.02, "the weights are rounded in other places"
    assert not np.array_equal(ours, losses(runs[0] / "fsdp")), "it was half precision indeed"
    stored = vitrail.load(runs[0] / "half-fsdp" / "bundle").state_dict().values()
    assert {tensor.dtype for tensor in stored} == {torch.float32}


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_evaluation_counts_every_sample_once(runs, name):
    def validations(run: Path) -> list:
        return [record for record in read_metrics(run) if record["kind"] == "val"]

    ours, expected = validations(runs[0] / name), validations(runs[0] / "one")
    assert [each["n"] for each in ours] == [each["n"] for each in expected]
    for one, other in zip(ours, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert one["top1"] == other["top1"]


def test_a_sharded_run_leaves_an_ordinary_bundle(runs):
    run = runs[0] / "fsdp"
    assert is_bundle(run / "bundle")
    ours, expected = vitrail.load(run / "bundle"), vitrail.load(runs[0] / "one" / "bundle")
    # What it says, not the weights: the bias of the keys changes nothing, so AdamW only multiplies its rounding.
    images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours(images), expected(images), atol=1e-4)
    found = snapshots.read_snapshot(run / "snapshots")
    assert found is not None
    assert len(list((run / "snapshots").glob("step-000000020/*.safetensors"))) == 2, "each process wrote its part"


def test_killed_and_resumed_is_bit_identical(runs):
    assert ended(runs, "whole") == [[0, 0]]
    first, second, third = ended(runs, "killed")
    assert first[1] == -9
    assert first[0] == 2, "the survivor is told, and says how to go on"
    assert "--max-restarts" in runs[1]["killed"][0]["said"][0]
    assert second[0] == -9
    assert third == [0, 0]
    whole, killed = (snapshots.read_snapshot(runs[0] / name / "snapshots") for name in ("whole", "killed"))
    assert whole is not None
    assert killed is not None
    assert whole[0] == killed[0]
    assert whole[1].keys() == killed[1].keys()
    assert all(torch.equal(tensor, killed[1][name]) for name, tensor in whole[1].items())
    assert losses(runs[0] / "whole").tolist() == losses(runs[0] / "killed").tolist()


def seen(out: Path, name: str) -> dict[int, list[str]]:
    """Position -> the sample ids of the step that ended there, over all processes in order."""
    parts: dict[int, dict[int, list[str]]] = {}
    for file in sorted(out.glob(f"{name}.ids-*")):
        for line in file.read_text().splitlines():
            position, ids = json.loads(line)
            parts.setdefault(position, {})[int(file.name[-1])] = ids
    return {position: [each for rank in sorted(found) for each in found[rank]] for position, found in parts.items()}


def test_two_one_and_two_processes_see_the_same_samples_in_the_same_order(runs):
    assert ended(runs, "changing") == [[143, 143], [143], [0, 0]]
    ours, expected = seen(runs[0], "changing"), seen(runs[0], "one")
    steps = [(step + 1) * EXACT.batch_size for step in range(20)]
    # One process sees a whole batch, two see half of it each; the step that came last before a change is not repeated.
    assert [ours[position] for position in steps] == [expected[position] for position in steps]
    assert np.abs(losses(runs[0] / "changing") - losses(runs[0] / "one")).max() < 1e-5


def test_a_nan_in_one_process_stops_both_at_the_same_step(runs):
    assert ended(runs, "blind") == [[2, 2]]
    first, second = runs[1]["blind"][0]["said"]
    assert "the loss of step 11 is nan" in first
    assert not re.search("nan", second), "it is said once"
    found = snapshots.read_snapshot(runs[0] / "blind" / "snapshots")
    assert found is not None
    assert found[0].step == 8
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found[1].values())
    assert len(losses(runs[0] / "blind")) == 10
    assert math.isfinite(losses(runs[0] / "blind").sum())


def test_sigterm_to_one_saves_both_and_ends_with_143(runs):
    assert ended(runs, "terminated") == [[143, 143]]
    found = snapshots.read_snapshot(runs[0] / "terminated" / "snapshots")
    assert found is not None
    assert found[0].step == 10


def test_too_many_bad_samples_of_one_process_stop_both(runs):
    assert ended(runs, "bad") == [[2, 2]]
    assert "cannot be used" in runs[1]["bad"][0]["said"][0]
    assert "--data.max-bad" in runs[1]["bad"][0]["said"][0]
    assert "is gone" in runs[1]["bad"][0]["said"][0]


def test_a_batch_that_cannot_be_shared_is_refused(runs):
    assert ended(runs, "uneven") == [[2, 2]]
    assert "choose a multiple of 2" in said(runs, "uneven")
    assert said(runs, "uneven").count("49") == 1


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("objective", ["masked_patch", "mae", "dino"])
def test_objectives_without_labels(runs, objective, parallel):
    name = f"{objective}-{parallel}"
    assert ended(runs, name) == [[0, 0]], said(runs, name)
    assert np.isfinite(losses(runs[0] / name)).all()
    assert is_bundle(runs[0] / name / "bundle")


SUICIDE = """
import os, signal, sys
from pathlib import Path
from vitrail.cli import main
from vitrail.training.loop import Trainer
step = Trainer.step
mark = Path(sys.argv[1])
def dies_once(self, *values):
    if self.progress.step == 13 and os.environ["RANK"] == "1" and not mark.exists():
        mark.write_text("dead")
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *values)
Trainer.step = dies_once
main(sys.argv[2:])
"""


@pytest.mark.parametrize("beside_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_torchrun_starts_a_killed_job_again_and_it_ends_right(tmp_path, beside_whole):
    (tmp_path / "program.py").write_text(SUICIDE)
    small = ["--model.depth", "1", "--steps", "20", "--snapshot-every", "4", "--log-every", "1", "--data.workers", "0"]
    train = ["train", "digits", *small]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "1", "program.py", "mark", *train, "--out", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "mark").exists()
    # The snapshot of step 12 may not have been whole yet: it is written while the steps go on.
    assert re.search("resuming after step (8|12) of 20", result.stderr)
    assert result.stdout.count("accuracy") == 1, "one process speaks"
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert steps == list(range(1, 21)), "each step is told once"
    if not beside_whole:
        return
    shortcut = [sys.executable, "-m", "vitrail", *train, "--processes", "2", "--out", "whole"]
    whole = subprocess.run(shortcut, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert whole.returncode == 0, whole.stderr
    assert losses(tmp_path / "run").tolist() == losses(tmp_path / "whole").tolist()
