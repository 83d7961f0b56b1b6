"""Killed anywhere and resumed, a run ends in the same bits; interrupted politely, it loses no step."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitrail.training import snapshots

ROOT = Path(__file__).parents[2]


def killed_run(folder: Path, kills: int, seed: int) -> str:
    command = [sys.executable, "-m", "tests.training.killing", str(folder), str(kills), str(seed)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_same_run(whole: Path, killed: Path) -> None:
    assert_same_tensors_and_records(whole, killed)
    found = snapshots.read_snapshot(whole / "snapshots")
    assert found is not None
    assert {name.split(".")[0] for name in found[1]} == {"model", "optimizer", "average"}


def assert_same_tensors_and_records(whole: Path, killed: Path) -> None:
    """Weights, optimizer, average, counters, both bundles, and every record but the speeds."""
    first, second = snapshots.read_snapshot(whole / "snapshots"), snapshots.read_snapshot(killed / "snapshots")
    assert first is not None
    assert second is not None
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    for name, tensor in first[1].items():
        assert torch.equal(tensor, second[1][name]), name
    for part in ("bundle", "best"):
        ours, theirs = (load_file(run / part / "model.safetensors") for run in (whole, killed))
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert records(whole) == records(killed)


def records(run: Path) -> list[dict]:
    """Reads all that the metrics say but how fast it went."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: each[key] for key in each if key not in ("images_per_second", "waiting")} for each in found]


def test_killed_and_resumed_is_bit_identical(tmp_path):
    said = killed_run(tmp_path, kills=6, seed=0)
    assert "6 kills, 3 inside a snapshot write" in said
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_30_kills(tmp_path):
    said = killed_run(tmp_path, kills=30, seed=1)
    assert "30 kills, 15 inside a snapshot write" in said
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def start(out: Path, *more: str, ignored: str = "") -> subprocess.Popen[str]:
    """Starts a training, as a shell would with the signals named in `ignored` ignored: SIGHUP under nohup, SIGINT for
    whatever goes on in the background."""
    flags = ["--steps", "2000", "--epochs", "None", "--snapshot-every", "1000", "--evaluate-every", "1000"]
    command = [sys.executable, "-m", "vitrail", "train", "digits", "--out", str(out), *flags, *more]
    if ignored:
        command = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def wait_for_steps(out: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        path = out / "metrics.jsonl"
        if path.exists() and path.stat().st_size:
            return
        time.sleep(0.02)
    raise AssertionError("the run did not begin")


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_interrupted_it_saves_and_says_how_to_go_on(tmp_path, number, status):
    """An interrupt is heard though the shell has it ignored; Ctrl-C in a terminal: tests/cli/test_terminal.py."""
    process = start(tmp_path / "run", ignored="INT" if number == signal.SIGINT else "")
    wait_for_steps(tmp_path / "run")
    process.send_signal(number)
    assert_saved(process, tmp_path / "run", number, status)


def test_under_nohup_a_hangup_stays_ignored(tmp_path):
    process = start(tmp_path / "run", ignored="HUP")
    wait_for_steps(tmp_path / "run")
    process.send_signal(signal.SIGHUP)
    before = steps_done(tmp_path / "run")
    while process.poll() is None and steps_done(tmp_path / "run") == before:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said = assert_saved(process, tmp_path / "run", signal.SIGTERM, 143)
    assert "SIGHUP" not in said


def steps_done(out: Path) -> int:
    """Counts the steps of which the run has written a whole line."""
    lines = (out / "metrics.jsonl").read_text().rsplit("\n", 1)[0].splitlines()
    return json.loads(lines[-1])["step"]


def assert_saved(process: subprocess.Popen[str], run: Path, number: signal.Signals, status: int) -> str:
    """Asserts that a run that got a signal saved all its steps and said how to go on; gives what it said."""
    _, said = process.communicate(timeout=300)
    assert process.returncode == status
    assert "Traceback" not in said
    assert f"{number.name}: finishing the step, then saving" in said
    assert re.search(r"vitrail train --out \S+run --resume", said)
    found = snapshots.read_snapshot(run / "snapshots")
    assert found is not None
    assert found[0].step >= steps_done(run) > 0, "no finished step is lost"
    return said


@pytest.mark.slow
def test_sigterm_ten_times_loses_no_step(tmp_path):
    steps = 0
    for trial in range(10):
        process = start(tmp_path / "run", *(["--resume"] if trial else []))
        time.sleep(0.2 * trial)
        wait_for_steps(tmp_path / "run")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
        if process.returncode == -signal.SIGTERM:  # before the loop began: nothing was done, so nothing is lost
            continue
        assert process.returncode in (143, 0), said
        found = snapshots.read_snapshot(tmp_path / "run/snapshots")
        assert found is not None
        assert found[0].step >= steps
        steps = found[0].step
    assert steps > 0
