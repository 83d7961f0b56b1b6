"""Snapshots: every flipped bit and every cut is noticed, a full disk leaves the last one whole."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import toy
from vitrail.config import OptimizerConfig
from vitrail.errors import UserError
from vitrail.io.checksums import sum_line
from vitrail.training import snapshots
from vitrail.training.optimizer import Average, build_optimizer
from vitrail.training.snapshots import RunProgress


def state(step: int):
    """A model, optimizer and average after a step, so that every kind of tensor is there."""
    model = toy(depth=1)
    optimizer, average = build_optimizer(model, model.config, OptimizerConfig()), Average(model, 0.9)
    torch.manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    average.update(model, step)
    return RunProgress(step=step, position=step * 10), model, optimizer, average


def equal(found, written) -> bool:
    tensors, expected = found[1], snapshots.pack(*written[1:])
    same = tensors.keys() == expected.keys() and all(torch.equal(tensors[name], expected[name]) for name in tensors)
    return found[0] == written[0] and same


def test_what_is_written_is_read(tmp_path):
    written = state(3)
    snapshots.write_snapshot(tmp_path, *written)
    found = snapshots.read_snapshot(tmp_path)
    assert found is not None
    assert equal(found, written)
    _, model, optimizer, average = state(5)
    snapshots.unpack(found[1], model, optimizer, average)
    packed, expected = snapshots.pack(model, optimizer, average), snapshots.pack(*written[1:])
    assert packed.keys() == expected.keys()
    assert all(torch.equal(packed[name], expected[name]) for name in packed)


def test_only_the_newest_are_kept(tmp_path):
    for step in range(1, 6):
        snapshots.write_snapshot(tmp_path, *state(step))
    assert [path.name for path in snapshots.snapshots(tmp_path)] == ["step-000000005", "step-000000004"]


def test_300_flips_and_50_cuts_are_noticed_and_the_one_before_is_used(tmp_path):
    first, second = state(1), state(2)
    snapshots.write_snapshot(tmp_path, *first)
    newest = snapshots.write_snapshot(tmp_path, *second)
    contents = {path.name: path.read_bytes() for path in newest.iterdir()}
    generator = random.Random(0)
    for trial in range(350):
        name = generator.choice(sorted(contents))
        damaged = bytearray(contents[name])
        if trial < 300:
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        else:
            damaged = damaged[: generator.randrange(len(damaged))]
        (newest / name).write_bytes(damaged)
        found = snapshots.read_snapshot(tmp_path)
        assert found is not None
        assert equal(found, first), (trial, name)
        assert "step-000000002" in found[2][0]
        (newest / name).write_bytes(contents[name])
    found = snapshots.read_snapshot(tmp_path)
    assert found is not None
    assert equal(found, second)


def test_that_all_are_damaged_is_a_stop_that_names_them(tmp_path):
    """A run that took them for none would begin anew, and remove what could still be repaired."""
    for step in (1, 2):
        damaged = snapshots.write_snapshot(tmp_path, *state(step))
        (damaged / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"step-000000002 \(.*\), step-000000001 \(.*\)\. Put back a copy") as caught:
        snapshots.read_snapshot(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: every snapshot is damaged")


def test_no_snapshot_yet_is_none(tmp_path):
    (tmp_path / "step-first").mkdir()  # nothing that a run has written
    assert snapshots.read_snapshot(tmp_path) is None
    assert snapshots.read_snapshot(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({"step": "two"}, "step is 'two'"),
        ({"step": -1}, "step is -1"),
        ({"positon": 1}, "positon"),
        ({"window": {"measures": {"accuracy": "much"}}}, "accuracy is 'much'"),
        ([], "must hold a JSON object"),
    ],
    ids=str,
)
def test_counters_that_no_run_has_written_are_refused(tmp_path, counters, words):
    """With checksums that are right."""
    written = snapshots.write_snapshot(tmp_path, *state(1))
    (written / "state.json").write_text(json.dumps(counters))
    sums = (sum_line(written / name) for name in ("state.json", "state.safetensors"))
    (written / "SHA256SUMS").write_text("".join(sums))
    with pytest.raises(UserError, match=words):
        snapshots.read_snapshot(tmp_path)


FULL_DISK = """
import os, resource, signal, sys
from pathlib import Path
from tests.training.test_snapshots import state
from vitrail.errors import UserError
from vitrail.training import snapshots

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = state(2)
for limit in sys.argv[2:]:
    child = os.fork()  # a limit cannot be raised again, so each is a process's own
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
        try:
            snapshots.write_snapshot(Path(sys.argv[1]), *written)
        except UserError as error:
            print(error, flush=True)
            os._exit(2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = sorted(path.name for path in Path(sys.argv[1]).iterdir())
    print("ended", status, left, flush=True)
"""


def test_a_full_disk_at_ten_points_of_the_write(tmp_path):
    """The message names the place, the snapshot before still loads, nothing partial is visible."""
    first = state(1)
    size = sum(path.stat().st_size for path in snapshots.write_snapshot(tmp_path, *first).iterdir())
    limits = [str(round(size * 0.95 * point / 9)) for point in range(10)]
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), *limits]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": "."})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("ended 2 ['step-000000001']") == 10, "nothing half-written is left"
    assert result.stdout.count(f"{tmp_path}/step-000000002: the snapshot cannot be written") == 10
    found = snapshots.read_snapshot(tmp_path)
    assert found is not None
    assert equal(found, first)


def test_a_snapshot_of_another_model_is_refused(tmp_path):
    snapshots.write_snapshot(tmp_path, *state(1))
    found = snapshots.read_snapshot(tmp_path)
    assert found is not None
    other = toy(depth=2)
    with pytest.raises(UserError, match="another configuration"):
        snapshots.unpack(found[1], other, build_optimizer(other, other.config, OptimizerConfig()), None)


def test_leftovers_of_a_killed_write_are_invisible_and_go(tmp_path):
    snapshots.write_snapshot(tmp_path, *state(1))
    (tmp_path / ".step-000000002.99").mkdir()
    (tmp_path / ".step-000000002.99" / "state.safetensors").write_bytes(b"half")
    assert len(snapshots.snapshots(tmp_path)) == 1
    snapshots.write_snapshot(tmp_path, *state(3))
    assert not list(tmp_path.glob(".*"))
