"""A run folder is one job's, and what it was: a second process, a changed file or a folder that went is a sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.killing import CONFIG
from vitrail.errors import UserError
from vitrail.train import fit
from vitrail.training.progress import read_metrics
from vitrail.training.run_folder import read_config

ROOT = Path(__file__).parents[2]
SMALL = CONFIG.with_(steps=6, evaluate_every=3, snapshot_every=2, log_every=1)
HOLDER = """
import sys, time
from pathlib import Path
from vitrail.training.run_folder import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.take()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("begun") / "run"
    fit(SMALL, run, report=False)
    return run


@pytest.fixture
def run(begun, tmp_path) -> Path:
    """A run that has ended, to be damaged."""
    return Path(shutil.copytree(begun, tmp_path / "run"))


def resumed_is_refused(run: Path) -> str:
    """Goes on with a run as `--resume` does, and returns the sentence that it ends in."""
    with pytest.raises(UserError) as caught:
        fit(read_config(run), run, resume=True, report=False)
    assert str(run) in str(caught.value)
    return str(caught.value)


def test_a_second_process_is_refused_until_the_first_has_ended_however_it_ends(run):
    command = [sys.executable, "-c", HOLDER, str(run)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert "another process is training there" in resumed_is_refused(run)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert fit(read_config(run), run, resume=True, report=False).steps == 6


def test_a_run_that_has_ended_lets_go_of_its_folder(tmp_path):
    for resume in (False, True):
        assert fit(SMALL, tmp_path / "run", resume=resume, report=False).steps == 6


def changed(run: Path, **values: object) -> None:
    """Changes config.json as a person would, with an editor."""
    document = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**document, **values}, indent=4))


def test_a_changed_configuration_is_noticed(run):
    document = json.loads((run / "config.json").read_text())
    changed(run)
    read_config(run)  # the same values, laid out in another way
    changed(run, train={**document["train"], "seed": 1})
    assert "was changed after the run began" in resumed_is_refused(run)
    changed(run, train=document["train"], classes=document["classes"][::-1])
    assert "was changed after the run began" in resumed_is_refused(run)


def test_a_configuration_of_an_earlier_version_has_no_digest_and_is_believed(run):
    document = json.loads((run / "config.json").read_text())
    del document["sha256"]
    (run / "config.json").write_text(json.dumps(document))
    assert read_config(run).seed == SMALL.seed


@pytest.mark.parametrize(
    "content",
    [
        b"{}", b"[]", b"\xff", b'{"train": []}', b'{"train": {"seed": "x"}}', b'{"train": {"model": {"width": -1}}}',
        b'{"train": {"data": 1}}', b'{"train": {}, "classes": [1]}', b'{"train": {"epochs": -0.0}}',
        b'{"train": {"epochs": 1, "optimizer": {"lr": Infinity}}}', b'{"train": {"epochs": 1, "preprocessing": null}}',
    ],
    ids=str,
)  # fmt: skip
def test_what_no_run_began_with_is_refused(run, content):
    (run / "config.json").write_bytes(content)
    assert "config.json" in resumed_is_refused(run)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"{", "line 1: not valid JSON"),
        (b"[1]", "line 1: must hold a JSON object"),
        (b'{"step": "two", "kind": "train"}', "line 1: has no step"),
        (b'{"step": 2, "kind": "train", "loss": "low"}', "line 1: has no loss"),
        (b'{"step": 2}', "line 1: has no kind"),
    ],
    ids=str,
)
def test_metrics_that_no_run_has_written_are_refused(run, line, words):
    (run / "metrics.jsonl").write_bytes(line + b"\n" + (run / "metrics.jsonl").read_bytes())
    assert words in resumed_is_refused(run)


@pytest.mark.parametrize("cut", [b"", b'{"step": 6, "ki', b"\0" * 100, b'{"step": 6, "kind": "tr\n'])
def test_a_last_line_that_a_kill_cut_short_is_left_out(run, cut):
    whole = read_metrics(run)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(cut)
    assert read_metrics(run) == whole


def test_a_folder_that_goes_under_a_run_ends_it_in_a_sentence(tmp_path):
    out = tmp_path / "run"
    small = ["--model.depth", "1", "--data.workers", "0"]
    flags = [*small, "--epochs", "None", "--steps", "100000", "--snapshot-every", "20", "--log-every", "1"]
    command = [sys.executable, "-m", "vitrail", "train", "digits", "--out", str(out), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not list(out.glob("snapshots/step-*")):
            time.sleep(0.02)
        out.rename(tmp_path / "elsewhere")
        said = process.communicate(timeout=300)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 2, said
    assert "Traceback" not in said
    words = (f"{out}: was deleted or moved while the run was training there", "the snapshot cannot be written")
    assert any(each in said.splitlines()[-1] for each in words), said


def test_a_process_that_is_killed_is_said_to_be(tmp_path):
    """One of two, by SIGKILL, as the system does where memory runs out."""
    out = tmp_path / "run"
    flags = ["--model.depth", "1", "--epochs", "None", "--steps", "100000", "--log-every", "1", "--data.workers", "0"]
    command = [sys.executable, "-m", "vitrail", "train", "digits", "--processes", "2", "--out", str(out), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not ((out / "metrics.jsonl").exists() and read_metrics(out)):
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = {}
        for each in children:
            variables = Path(f"/proc/{each}/environ").read_bytes().split(b"\0")
            ranks |= {int(value[5:]): int(each) for value in variables if value.startswith(b"RANK=")}
        os.kill(ranks[1], signal.SIGKILL)
        said = process.communicate(timeout=300)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (2, 128 + signal.SIGKILL), said
    assert "process 1 of 2 was ended by SIGKILL" in said or "another process of this job has ended" in said
    assert "--resume" in said
