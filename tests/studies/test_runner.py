"""A study goes on where it was killed, repeats nothing, and outlives a row that fails."""

import csv
import json
import signal
import subprocess
import sys
import time

import pytest

from vitrail.config import DataConfig, ModelConfig, OptimizerConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.drawing.plots import LIGHT
from vitrail.errors import UserError
from vitrail.studies.figures import dots, lines
from vitrail.studies.runner import run
from vitrail.studies.study import ERROR, RESULT, ROWS, Outcome, Point, Result, Row, Study, compare


def config(seed: int, lr: float = 1e-3, steps: int = 2, **more) -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(
            image_size=8, channels=1, patch_size=4, width=8, depth=1, num_heads=2, mlp_dim=16, num_classes=10
        ),
        data=DataConfig("digits", val_fraction=0.0, workers=0, train_size=100),
        transform=TransformConfig(crop="evaluation", flip=0.0),
        preprocessing=Preprocessing(mean=(0.5,), std=(0.5,), crop="squash", crop_fraction=1.0),
        optimizer=OptimizerConfig(lr=lr),
        steps=steps,
        batch_size=8,
        seed=seed,
        **more,
    )


def study(rows: list[Row]) -> Study:
    return Study(
        "small",
        "A small study",
        "Does it run?",
        tuple(rows),
        lambda outcome, theme: dots({"all": [(str(p.factors["lr"]), p) for p in outcome.points()]}, theme),
        lambda outcome: [f"{len(outcome.results)} rows."],
    )


def test_finished_rows_are_not_run_again_and_a_failing_one_does_not_stop_the_others(tmp_path):
    good = [Row({"lr": lr}, config(seed, lr)) for lr, seed in ((1e-3, 0), (1e-3, 1))]
    bad = Row({"lr": "broken"}, config(0).with_(data=DataConfig(str(tmp_path / "nowhere"))))
    heir = Row({"lr": "heir"}, config(0), start=bad)
    told: list[str] = []
    outcome = run(study([bad, heir, *good]), tmp_path / "out", 2, told.append)
    assert len(outcome.results) == 2
    assert set(outcome.failed) == {bad.name, heir.name}
    assert "nowhere" in outcome.failed[bad.name]
    assert bad.name in outcome.failed[heir.name]
    assert any("failed" in line and bad.name in line for line in told)
    with (tmp_path / "out" / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(float(each["lr"]), int(each["seed"])) for each in table] == [(1e-3, 0), (1e-3, 1)]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "2 rows." in page
    assert bad.name in page
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / ROWS).rglob(RESULT)}
    assert len(before) == 2
    told.clear()
    again = run(study(good), tmp_path / "out", 2, told.append)
    assert again.results == outcome.results
    assert told == ["2 of 2 rows were done before"]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / ROWS).rglob(RESULT)}


def test_a_row_can_start_from_anothers_model(tmp_path):
    first = Row({"lr": "first"}, config(0), measured=False)
    second = Row({"lr": "second"}, config(0, steps=1), start=first)
    outcome = run(study([second, first]), tmp_path / "out", 2, lambda line: None)
    assert not outcome.failed
    assert [each.factors["lr"] for each in outcome.results] == ["second"]
    used = json.loads((tmp_path / "out" / ROWS / second.name / RESULT).read_text())["config"]["init_from"]
    assert used == str(tmp_path / "out" / ROWS / first.name / "run")


def test_another_study_in_the_folder_is_refused(tmp_path):
    run(study([Row({"lr": 1}, config(0))]), tmp_path / "out", 1, lambda line: None)
    with pytest.raises(UserError, match="another --out"):
        run(study([Row({"lr": 1}, config(0, steps=3))]), tmp_path / "out", 1, lambda line: None)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file.txt").write_text("mine")
    with pytest.raises(UserError, match="in use already"):
        run(study([Row({"lr": 1}, config(0))]), tmp_path / "used", 1, lambda line: None)


SCRIPT = """
import sys
from pathlib import Path
from tests.studies.test_runner import Row, config, run, study

rows = [Row({"lr": lr}, config(0, lr, steps=steps)) for lr, steps in ((1e-3, 20), (2e-3, 150))]
run(study(rows), Path(sys.argv[1]), 1, lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGTERM])
def test_killed_and_started_again_it_ends_without_repeating(tmp_path, number):
    """After SIGKILL the row under way goes on, as nobody told it anything; the study started again waits for it."""
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("[1/2]"), line
    while len(list((out / ROWS).glob("*/row.json"))) < 2:  # the second is under way
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(300)
    process.stdout.close()
    done = {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}
    assert len(done) == 1
    again = subprocess.run([sys.executable, "-c", SCRIPT, str(out)], capture_output=True, text=True, check=True)
    assert "1 of 2 rows were done before" in again.stdout
    results = {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}
    assert len(results) == 2
    assert all(results[path] == when for path, when in done.items())
    assert not list((out / ROWS).rglob(ERROR))
    for row in (out / ROWS).iterdir():
        steps = [json.loads(line)["step"] for line in (row / "run" / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(set(steps)), "a row was trained by two processes, or twice"


def result(seed: int, top1: float, **factors) -> Result:
    return Result(factors, seed, top1, 0.0, 10, 1, 1.0, 1, 0.1)


def test_points_gather_seeds_and_compare_by_spread():
    outcome = Outcome((result(0, 0.5, a=1), result(1, 0.6, a=1), result(0, 0.9, a=2), result(1, 0.9, a=2)))
    low, high = outcome.points()
    assert low.mean == pytest.approx(0.55)
    assert low.spread == pytest.approx(0.0707, abs=1e-4)
    assert compare(high, low) == "above"
    assert compare(low, high) == "below"
    assert compare(low, Point({}, (0.6, 0.6))) == "level with"
    assert outcome.point(a=2) == high
    assert outcome.point(a=3) is None
    assert outcome.choices("a") == [1, 2]


def test_pictures_are_drawn():
    points = [(10.0, Point({"a": 1}, (0.5, 0.6))), (100.0, Point({"a": 2}, (0.7, 0.7)))]
    for drawn in (lines({"one": points, "two": points}, "images", LIGHT), dots({"g": [("name", points[0][1])]})):
        assert drawn.startswith(b"\x89PNG")
