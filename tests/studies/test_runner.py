"""A study goes on where it was killed, repeats nothing, and outlives a row that fails."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from vitrail.config import DataConfig, ModelConfig, OptimizerConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.drawing.plots import LIGHT
from vitrail.errors import UserError
from vitrail.io.checksums import digest
from vitrail.studies import runner
from vitrail.studies.comparison import Point
from vitrail.studies.figures import dots, lines
from vitrail.studies.runner import LOG, run_study
from vitrail.studies.study import ERROR, RESULT, ROW, ROWS, RowResult, Study, StudyOutcome, StudyRow, folder_of


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


def study(rows: list[StudyRow]) -> Study:
    return Study(
        "small",
        "A small study",
        "Does it run?",
        tuple(rows),
        lambda outcome, theme: dots({"all": [(str(p.factors["lr"]), p) for p in outcome.points()]}, theme),
        lambda outcome: {},
        lambda outcome, compared: [f"{len(outcome.results)} rows."],
    )


GOOD = [StudyRow({"lr": lr}, config(seed, lr)) for lr, seed in ((1e-3, 0), (1e-3, 1))]
CHILD = StudyRow({"lr": "child"}, config(0, steps=1), start=GOOD[0])
BAD = StudyRow({"lr": "broken"}, config(0).with_(data=DataConfig("nowhere")))
HEIR = StudyRow({"lr": "heir"}, config(0), start=BAD)


@dataclass
class Watched:
    """What a study tells on its way: lines, how full the table is at each of them, and how far it is."""

    out: Path
    lines: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    advances: list[float] = field(default_factory=list)

    def tell(self, line: str) -> None:
        self.lines.append(line)
        table = self.out / "results.csv"
        self.rows.append(len(table.read_text().splitlines()) - 1 if table.exists() else 0)

    @contextmanager
    def progress(self, what: str, total: int):
        yield self.advances.append


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> tuple[Path, StudyOutcome, Watched]:
    """A study of which some rows fail: its folder, its outcome, what it said."""
    out = tmp_path_factory.mktemp("study") / "out"
    watched = Watched(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "progress", watched.progress)
        return out, run_study(study([BAD, HEIR, CHILD, *GOOD]), out, 2, watched.tell), watched


def test_a_failing_row_is_reported_and_does_not_stop_the_others(ended):
    out, outcome, watched = ended
    assert set(outcome.failed) == {BAD.name, HEIR.name}
    assert "nowhere" in outcome.failed[BAD.name]
    assert BAD.name in outcome.failed[HEIR.name]
    assert any("failed" in line and BAD.name in line for line in watched.lines)
    with (out / "results.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(each["lr"], int(each["seed"])) for each in table] == [("child", 0), ("0.001", 0), ("0.001", 1)]
    page = (out / "report.html").read_text()
    assert "3 rows." in page
    assert "Top-1 on 180 test images of digits." in page
    assert "2 of 5 results are missing" in page
    assert BAD.name in page


def test_the_table_grows_and_the_bar_moves_as_trainings_end(ended):
    _, _, watched = ended
    good = [rows for line, rows in zip(watched.lines, watched.rows, strict=True) if "%" in line]
    assert good == [1, 2, 3]
    assert sum(watched.advances) == pytest.approx(5), "the failed ones are over too"


@pytest.mark.parametrize(("length", "share"), [({"steps": 40}, 0.5), ({"steps": None, "epochs": 8}, 0.2)])
def test_how_far_a_training_is_is_seen_from_outside(tmp_path, length, share):
    row = StudyRow({"lr": 1}, replace(config(0), **length))
    assert runner._share(row, tmp_path) == 0
    metrics = folder_of(row, tmp_path) / "run" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    records = [
        {"step": 20, "kind": "train", "epoch": 1.6, "loss": 2.0, "images_per_second": 9.0},
        {"step": 20, "kind": "val", "top1": 0.5},
    ]
    metrics.write_text("".join(f"{json.dumps(each)}\n" for each in records) + '{"step": 30, "ki')
    assert runner._share(row, tmp_path) == pytest.approx(share)


def test_finished_rows_are_not_run_again(ended):
    out, outcome, _ = ended
    before = {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}
    assert len(before) == 3
    told: list[str] = []
    again = run_study(study(GOOD), out, 2, told.append)
    assert again.results == outcome.results[1:]
    assert told == [
        "2 of 2 rows were done before",
        "1 row of another command is in the folder; the results are those of this one alone",
    ]
    assert before == {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}


def test_a_row_can_start_from_anothers_model(ended):
    used = json.loads((folder_of(CHILD, ended[0]) / RESULT).read_text())["config"]["init_from"]
    assert used == str(folder_of(GOOD[0], ended[0]) / "run")


def test_another_study_in_the_folder_is_refused(ended, tmp_path):
    other = replace(study(GOOD), name="large")
    with pytest.raises(UserError, match="holds the study small; choose another --out"):
        run_study(other, ended[0], 1, lambda line: None)
    with pytest.raises(UserError, match="a row of other flags, or of another version; choose another --out"):
        run_study(study([StudyRow({"lr": 1e-3}, config(0, steps=3))]), ended[0], 1, lambda line: None)
    with pytest.raises(UserError, match="begun with other data, or another model"):
        run_study(replace(study(GOOD), fingerprint="other"), ended[0], 1, lambda line: None)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file.txt").write_text("mine")
    with pytest.raises(UserError, match="in use already"):
        run_study(study(GOOD), tmp_path / "used", 1, lambda line: None)


def test_a_row_that_is_killed_from_outside_is_reported_and_goes_on_when_started_again(tmp_path):
    out = tmp_path / "out"
    rows = [StudyRow({"lr": lr}, config(0, lr, steps=steps)) for lr, steps in ((1e-3, 300), (2e-3, 2))]
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_study, study(rows), out, 1, told.append)
        os.kill(worker_of(rows[0], out), signal.SIGTERM)
        outcome = running.result()
    assert [each.factors["lr"] for each in outcome.results] == [2e-3]
    assert list(outcome.failed) == [rows[0].name]
    assert "ended from outside by SIGTERM" in told[0]
    assert (
        (out / "conclusion.txt").read_text().startswith("1 of 2 results are missing: what follows rests on the others.")
    )
    (stopped,) = (folder_of(rows[0], out) / "run" / "snapshots").glob("step-*/state.json")
    earlier = json.loads(stopped.read_text())
    # As if it had gone on for an hour before.
    stopped.write_text(json.dumps({**earlier, "seconds": earlier["seconds"] + 3600}))
    sums = stopped.with_name("SHA256SUMS")
    lines = [line.split("  ")[1] for line in sums.read_text().splitlines()]
    sums.write_text("".join(f"{digest(stopped.with_name(name))}  {name}\n" for name in lines))
    again = run_study(study(rows), out, 1, told.append)
    assert not again.failed
    assert 3600 < again.results[0].seconds < 3700, "what was spent before counts too"
    assert len(again.results) == 2
    assert "resuming after step" in (folder_of(rows[0], out) / LOG).read_text()


def test_a_row_that_other_flags_began_is_refused_before_anything_starts(tmp_path):
    begun = StudyRow({"lr": 1e-3}, config(0, steps=3))
    folder = folder_of(begun, tmp_path)
    folder.mkdir(parents=True)
    (folder / ROW).write_text(json.dumps({"digest": begun.digest}))
    (tmp_path / "study.json").write_text(json.dumps({"study": "small", "fingerprint": ""}))
    with pytest.raises(UserError, match="a row of other flags, or of another version; choose another --out"):
        run_study(study(GOOD), tmp_path, 1, lambda line: None)
    assert [path.name for path in (tmp_path / ROWS).iterdir()] == [folder.name]


def test_when_something_fails_the_trainings_under_way_are_stopped(tmp_path):
    rows = [StudyRow({"lr": lr}, config(0, lr, steps=steps)) for lr, steps in ((1e-3, 2), (2e-3, 100_000))]

    def tell(line: str) -> None:
        worker_of(rows[1], tmp_path / "out")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        run_study(study(rows), tmp_path / "out", 2, tell)
    assert not (folder_of(rows[1], tmp_path / "out") / RESULT).exists()


def worker_of(row: StudyRow, out: Path) -> int:
    """The process that trains a row, once it has taken steps."""
    metrics = folder_of(row, out) / "run" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.02)
    folder = str(folder_of(row, out)).encode()
    lines = {path: path.read_bytes().split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()}
    return next(int(path.parent.name) for path, line in lines.items() if folder in line)


def test_what_goes_wrong_without_a_word_is_reported_with_the_log(tmp_path, monkeypatch):
    row = StudyRow({"lr": 1e-3}, config(0))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.exit('nothing works here')")
    told: list[str] = []
    outcome = run_study(study([row]), tmp_path / "out", 1, told.append)
    assert set(outcome.failed) == {row.name}
    assert "nothing works here" in told[0]
    assert not (tmp_path / "out" / "report.html").exists()


SCRIPT = """
import sys
from pathlib import Path
from tests.studies.test_runner import StudyRow, config, run_study, study

rows = [StudyRow({"lr": lr}, config(0, lr, steps=steps)) for lr, steps in ((1e-3, 2), (2e-3, 400))]
run_study(study(rows), Path(sys.argv[1]), 1, lambda line: print(line, flush=True))
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how", ["power cut", *(pytest.param(how, marks=SLOW) for how in ("Ctrl-C", "SIGKILL", "SIGTERM"))]
)
def test_killed_and_started_again_it_ends_without_repeating(tmp_path, how):
    """After SIGKILL the row under way goes on, as nobody told it anything; the study started again waits for it."""
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("[1/2]"), line
    if how == "Ctrl-C":  # at once, while the second row's process only starts
        while len(list((out / ROWS).glob("*/row.json"))) < 2:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    else:
        worker = worker_of(StudyRow({"lr": 2e-3}, config(0)), out)
        process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        if how == "power cut":
            os.kill(worker, signal.SIGKILL)
    process.wait(300)
    process.stdout.close()
    done = {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}
    assert len(done) == 1
    assert not list((out / ROWS).rglob(ERROR)), "to be stopped is no failure"
    again = subprocess.run([sys.executable, "-c", SCRIPT, str(out)], capture_output=True, text=True, check=True)
    # The row that went on alone may have ended before.
    assert re.match(f"{'[12]' if how == 'SIGKILL' else '1'} of 2 rows were done before", again.stdout)
    results = {path: path.stat().st_mtime_ns for path in (out / ROWS).rglob(RESULT)}
    assert len(results) == 2
    assert all(results[path] == when for path, when in done.items())
    assert not list((out / ROWS).rglob(ERROR))
    for row in (out / ROWS).iterdir():
        steps = [json.loads(line)["step"] for line in (row / "run" / "metrics.jsonl").read_text().splitlines()]
        assert steps == sorted(set(steps)), "a row was trained by two processes, or twice"


def result(seed: int, top1: float, **factors) -> RowResult:
    return RowResult(factors, seed, top1, 0.0, 10, 1, 1.0, 1, 0.1)


def test_points_gather_seeds():
    outcome = StudyOutcome((result(0, 0.5, a=1), result(1, 0.6, a=1), result(0, 0.9, a=2), result(1, 0.9, a=2)))
    low, high = outcome.points()
    assert low.mean == pytest.approx(0.55)
    assert low.spread == pytest.approx(0.0707, abs=1e-4)
    assert (low.seeds, low.n, high.spread) == (2, 10, 0)
    assert outcome.point(a=2) == high
    assert outcome.point(a=3) is None
    assert Point.of({}, [0.1], 10).spread is None, "one seed says nothing of chance"


def test_pictures_are_drawn():
    points = [(10.0, Point.of({"a": 1}, (0.5, 0.6), 10)), (100.0, Point.of({"a": 2}, (0.7, 0.7), 10))]
    for drawn in (lines({"one": points, "two": points}, "images", LIGHT), dots({"g": [("name", points[0][1])]})):
        assert drawn.startswith(b"\x89PNG")
