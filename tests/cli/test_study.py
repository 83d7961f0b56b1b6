"""`vitrail study` as it is typed: a study from start to end, what it prints, what it refuses."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.conftest import toy
from tests.warm import run
from vitrail.cli.study import command
from vitrail.config import Preprocessing
from vitrail.studies import runner
from vitrail.studies.study import RowResult, StudyOutcome


def test_vtab_from_the_tasks_to_the_means(tmp_path):
    model = toy(image_size=16, channels=1, num_classes=3)
    model.card.preprocessing = Preprocessing(image_size=16, mean=(0.5,), std=(0.5,))
    vitrail.save(model, tmp_path / "model")
    short = ["--seeds", "1", "--steps", "2", "--batch-size", "8", "--image-size", "16"]
    words = ["study", "vtab", "--model", "model", "--tasks", "digits", "mnist5k", *short, "--out", "out"]
    done = run(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(each["task"], each["group"], each["seeds"]) for each in document["points"]] == [
        ("digits", "other", 1),
        ("mnist5k", "other", 1),
    ]
    mean = sum(each["mean"] for each in document["points"]) / 2
    assert document["conclusion"] == [f"other: {mean:.1%} over 2 tasks.", f"Mean of the 2 tasks: {mean:.1%}."]
    assert document["failed"] == {}
    found = [json.loads(path.read_text())["result"] for path in sorted((tmp_path / "out").glob("rows/*/result.json"))]
    assert [each["n"] for each in found] == [180, 500], "every test sample"
    again = run(*words, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "2 of 2 rows were done before" in again.stderr
    assert "report: out/report.html" in again.stdout
    assert f"{document['points'][1]['mean']:.2%}" in again.stdout


@pytest.mark.parametrize(("flags", "words"), [
    (["position"], "did you mean 'positions'"),
    (["pooling", "--seeds", "0"], "--seeds must be at least 1"),
    (["pooling", "--jobs", "-3"], "--jobs must be at least 1"),
    (["pooling", "--tasks", "digits"], "belong to vtab"),
    (["pooling", "--steps", "5"], "belong to vtab"),
    (["vtab", "--model", "model", "--tasks", "digits", "--steps", "0"], "--steps must be at least 1"),
    (["pooling", "--data", "nowhere"], "nowhere"),
    (["vtab", "--model", "model"], "--tasks"),
    (["vtab", "--tasks", "digits"], "--model"),
    (["vtab", "--model", "model", "--tasks", "digits", "--quick"], "--data and --quick are not vtab's"),
], ids=str)  # fmt: skip
def test_wrong_flags_are_named_and_nothing_is_left(tmp_path, flags, words):
    done = run("study", *flags, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost", ["some", "all"])
def test_failed_rows_are_an_exit_status_and_in_the_json(tmp_path, monkeypatch, capsys, lost):
    def outcome(study, out, jobs, tell):
        best = [RowResult(row.factors, row.config.seed, 0.5, 1.0, 10, 1, 1.0, 1, 0.1) for row in study.rows]
        return StudyOutcome(tuple(best[1:] if lost == "some" else ()), {study.rows[0].name: "the disk is full"})

    monkeypatch.setattr(runner, "run_study", outcome)
    for as_json in (True, False):
        with pytest.raises(SystemExit) as stopped:
            command("pooling", quick=True, out=Path(tmp_path / "out"), json=as_json)
        assert stopped.value.code == 2
        printed = capsys.readouterr()
        assert "trainings failed; the same command tries them again" in printed.err
        if as_json:
            document = json.loads(printed.out)
            assert list(document["failed"].values()) == ["the disk is full"]
        else:
            assert ("report:" in printed.out) == (lost == "some")
        if lost == "some":
            assert "1 of 12 results are missing: what follows rests on the others." in printed.out
