"""Evaluation, prediction and features by several processes: each sample once, what one process would have written."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.cli.several_processes import BROKEN, MOST, ending
from vitrail.cli.processes import without

ROOT = Path(__file__).parents[2]
COUNTS = range(1, MOST + 1)
COMMANDS = 3  # of each count


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("together")
    command = [sys.executable, "-m", "tests.cli.several_processes", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return out, json.loads(result.stdout)


def outcomes(jobs, count: int, which: int) -> tuple[dict, dict]:
    """The JSON that one process printed, and the first of two."""
    found = []
    for processes in (1, 2):
        told = jobs[1][f"every-{processes}"][COMMANDS * (count - 1) + which]
        assert [status for status, _, _ in told] == [0] * processes, told
        assert [bool(out) for _, out, _ in told] == [True, False][:processes], "the first process speaks, alone"
        found.append(json.loads(told[0][1]))
    return found[0], found[1]


def broken(count: int) -> int:
    return count // BROKEN


def test_evaluation_counts_each_sample_once(jobs):
    for count in COUNTS:
        one, two = outcomes(jobs, count, 0)
        assert two["n"] == count - broken(count)
        assert two["skipped"] == broken(count)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert two["ece"] == pytest.approx(one["ece"], abs=1e-6)
        for key in ("n", "skipped", "split", "top1", "top5", "per_class"):
            assert two[key] == one[key], (count, key)


def test_predictions_are_those_of_one_process_byte_for_byte(jobs):
    for count in COUNTS:
        one, two = outcomes(jobs, count, 1)
        assert (two["n"], two["errors"], two["resumed"]) == (one["n"], one["errors"], 0) == (count, broken(count), 0)
        ours, theirs = (jobs[0] / f"{count}-by-{processes}.{ending(count)}" for processes in (2, 1))
        assert ours.read_bytes() == theirs.read_bytes(), count


def test_features_are_those_of_one_process(jobs):
    for count in COUNTS:
        outcomes(jobs, count, 2)
        ours, theirs = (pyarrow.parquet.read_table(jobs[0] / f"{count}-by-{each}.parquet") for each in (2, 1))
        assert ours.equals(theirs), count
        assert ours["id"].to_pylist() == list(range(count))
        assert [path[-7:-4] for path in ours["path"].to_pylist()] == [f"{place:03d}" for place in range(count)]


def test_nothing_is_left_beside_the_outputs(jobs):
    endings = {count: (ending(count), "parquet") for count in COUNTS}
    expected = {f"{count}-by-{each}.{end}" for count in COUNTS for each in (1, 2) for end in endings[count]}
    assert {path.name for path in jobs[0].glob("*-by-*")} == expected
    assert not [path for path in jobs[0].iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["same.csv", "other.csv", "same.parquet", "other.parquet"])
def test_killed_processes_and_resumed(jobs, name):
    first, second, last = (runs[0] for runs in jobs[1][name])
    assert first[1] is None, "it was killed"
    assert first[0][0] == 2
    assert "another process of this job has ended" in first[0][2]
    assert "--resume" in first[0][2]
    assert any(each is None for each in second)
    assert {each[0] for each in second if each} <= {2}
    assert all(status == 0 for status, _, _ in last), last
    summary = json.loads(last[0][1])
    assert summary["n"] + summary["resumed"] == MOST
    assert summary["resumed"] >= 10, "what was written before is kept"
    ours, theirs = jobs[0] / name, jobs[0] / f"{MOST}-by-1{Path(name).suffix}"
    if ours.suffix == ".csv":
        assert ours.read_bytes() == theirs.read_bytes()
    else:
        assert pyarrow.parquet.read_table(ours).equals(pyarrow.parquet.read_table(theirs))
    assert not Path(f"{ours}.processes").exists()


def test_a_process_that_fails_stops_the_others_and_what_is_written_stays(jobs):
    (told,) = jobs[1]["full"]
    assert [status for status, _, _ in told] == [2, 2]
    assert "there is no room left" in told[1][2]
    assert not (jobs[0] / "full.csv").exists()
    assert len((jobs[0] / "full.csv.processes" / "0-of-2.csv").read_text().splitlines()) == 1 + (MOST + 1) // 2


def test_an_evaluation_that_fails_in_one_process_fails_in_all_and_is_said_once(jobs):
    (told,) = jobs[1]["fails"]
    assert [status for status, _, _ in told] == [2, 2]
    assert "is on fire" in told[0][2]
    assert told[1][2] == ""
    assert not any(out for _, out, _ in told)


def test_the_report_has_the_samples_of_all_processes_in_order(jobs):
    (told,) = jobs[1]["report"]
    assert [status for status, _, _ in told] == [0, 0], told
    document = json.loads((jobs[0] / "whole" / "evaluation.json").read_text())
    assert document["n"] == MOST - broken(MOST)
    ids = [line.split(",")[0] for line in (jobs[0] / "whole" / "predictions.csv").read_text().splitlines()[1:]]
    assert len(set(ids)) == document["n"]
    assert ids == sorted(ids)


def test_what_cannot_be_done_is_said_once(jobs):
    messages = [
        "several processes need --out FILE",
        "- reads a list from stdin, which processes cannot share",
        "there is no such file or folder",
        "exists already; give --resume to go on with it, or --overwrite",
        "must end in .csv or .jsonl or .parquet",
        "'dev'",
        "gone",
        "--processes starts processes itself",
    ]
    for message, told in zip(messages, jobs[1]["refused"], strict=True):
        assert [status for status, _, _ in told] == [2, 2], (message, told)
        assert message in told[0][2]
        if "--processes" not in message:
            assert told[1][2] == "", told


def test_a_flag_goes_with_its_value():
    arguments = ["train", "digits", "--processes", "2", "--out", "run", "--seed", "1"]
    assert without(arguments, "--processes") == ["train", "digits", "--out", "run", "--seed", "1"]
    assert without(["train", "--processes=2", "--seed=1"], "--processes") == ["train", "--seed=1"]
