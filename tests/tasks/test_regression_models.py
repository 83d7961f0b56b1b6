"""A model that learns numbers, the whole way: trained, resumed, measured, exported, asked and served."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from playwright.sync_api import expect, sync_playwright
from sklearn.metrics import r2_score

import vitrail
from tests.serving.conftest import running
from tests.tasks import bars
from vitrail import run as opened
from vitrail import train
from vitrail.cli import main
from vitrail.config import MaeConfig
from vitrail.data import Source
from vitrail.inference.export import export
from vitrail.tasks import task
from vitrail.training.loop import Trainer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def source() -> Source:
    return bars.source()


@pytest.fixture(scope="module")
def run(source, tmp_path_factory) -> Path:
    """A run that has learned angle and length from scratch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened, "open_data", lambda data: source)
        return train.fit(bars.config(), tmp_path_factory.mktemp("learned") / "run").run


def test_angle_and_length_are_learned_and_the_report_says_so(run, source):
    final = json.loads((run / "best" / "config.json").read_text())["vitrail"]
    assert final["format"] == 2
    assert final["constants"] == {**task("regression").target.constants(source.split("train").targets), "loss": "huber"}
    model = vitrail.load(run)
    said = vitrail.predict(model, [source.split("test").read(row) for row in range(200)])
    values = np.array([list(each.values.values()) for each in said])
    assert [list(each.values) for each in said[:2]] == [list(bars.NAMES)] * 2
    assert r2_score(source.split("test").targets, values) > 0.95
    assert (run / "scatter.png").is_file()
    assert "True against predicted" in (run / "report.html").read_text()
    assert json.loads((run / "config.json").read_text())["train"]["objective"] == "huber"
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert {"mae", "rmse", "r2", "loss"} <= set(last)


def test_a_head_in_closed_form_on_learned_features_does_as_well(run, source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(opened, "open_data", lambda data: source)
    config = bars.config(head="closed_form", freeze="backbone", init_from=str(run), objective="l1")
    result = train.fit(config, tmp_path / "run", report=False)
    assert result.steps == 0
    assert result.metrics["r2"] > 0.95
    assert "(the probe)" in result.summary()
    told = capsys.readouterr().err
    assert "2 numbers a picture (angle, length)" in told
    assert "val images, by ridge in closed form" in told
    assert "classes" not in told


def test_resumed_is_bit_identical(tmp_path, monkeypatch):
    small = bars.source(200, 40)
    monkeypatch.setattr(opened, "open_data", lambda data: small)
    transform = replace(bars.config().transform, mixup=0.4, translate=0.05)
    config = bars.config(steps=12, evaluate_every=4, snapshot_every=3, transform=transform, objective="l2", ema=0.9)
    train.fit(config, tmp_path / "whole", report=False)
    step = Trainer.step

    def interrupted(self, batches):
        if self.progress.step == 7:
            raise KeyboardInterrupt
        return step(self, batches)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "step", interrupted)
        train.fit(config, tmp_path / "stopped", report=False)
    train.fit(config, tmp_path / "stopped", resume=True, report=False)
    for name in ("best", "bundle"):
        whole, stopped = ((tmp_path / each / name / "model.safetensors").read_bytes() for each in ("whole", "stopped"))
        assert whole == stopped


def test_a_bundle_and_an_export_answer_with_the_same_numbers(run, source, tmp_path):
    model = vitrail.load(run)
    images = [source.split("test").read(row) for row in range(8)]
    plain = vitrail.predict(model, images)
    vitrail.save(model, tmp_path / "copy")
    assert vitrail.predict(tmp_path / "copy", images) == plain
    exported = export(model, tmp_path / "model.onnx")
    assert exported.facts.output == "values"
    again = vitrail.predict(tmp_path / "model.onnx", images)
    for one, other in zip(plain, again, strict=True):
        assert other.values == pytest.approx(one.values, rel=1e-4, abs=1e-3)


def table(source, folder: Path) -> Path:
    """The test pictures as files, and a table of their numbers."""
    test, lines = source.split("test"), [",".join(["file", "split", *source.classes])]
    for row, numbers in enumerate(test.targets):
        Image.fromarray(test.read(row)[..., 0]).save(folder / f"{row:03d}.png")
        lines.append(",".join([f"{row:03d}.png", "test", *map(repr, numbers.tolist())]))
    (folder / "bars.csv").write_text("\n".join(lines) + "\n")
    return folder / "bars.csv"


def test_the_commands_answer_in_numbers(run, source, tmp_path, capsys):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    test, listed = source.split("test"), table(source, pictures)
    main(["predict", str(run), str(pictures), "--out", str(tmp_path / "said.parquet")])
    rows = pyarrow.parquet.read_table(tmp_path / "said.parquet").to_pylist()
    for row, numbers in zip(rows, test.targets, strict=False):
        assert abs(row["values"]["angle"] - numbers[0]) < 10
    capsys.readouterr()
    main(["evaluate", str(run), "--data", str(listed), "--out", str(tmp_path / "report")])
    told = capsys.readouterr().out
    assert told.startswith(f"{listed}, test: 200 images, 0 skipped\nR2 0.9")
    assert {"scatter.png", "residuals.png", "predictions.csv"} <= {
        each.name for each in (tmp_path / "report").iterdir()
    }
    assert json.loads((tmp_path / "report" / "evaluation.json").read_text())["per_class"]["length"]["r2"] > 0.95
    with pytest.raises(SystemExit):
        main(["inspect", str(run), str(pictures / "000.png"), "--class", "angle", "--out", str(tmp_path / "inspected")])
    assert "--class: the model gives numbers" in capsys.readouterr().err


def test_data_that_asks_another_question_is_refused(run, capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", str(run), "--data", "digits"])
    assert "for classification, and" in capsys.readouterr().err


def test_learning_without_targets_goes_on_without_neighbours(tmp_path, monkeypatch):
    small = bars.source(64, 16)
    monkeypatch.setattr(opened, "open_data", lambda data: small)
    result = train.fit(
        bars.config(objective="mae", mae=MaeConfig(decoder_width=32, decoder_depth=1), steps=2),
        tmp_path / "run",
        report=False,
    )
    assert "knn_top1" not in result.metrics
    assert result.metrics["n"] == 16


def test_the_server_answers_in_numbers_and_its_page_shows_them(run, source, tmp_path):
    test = source.split("test")
    stream = io.BytesIO()
    Image.fromarray(test.read(0)[..., 0]).save(stream, "PNG")
    (wanted,) = vitrail.predict(run, stream.getvalue())
    with running(tmp_path, f"bars={run}") as server:
        answer = httpx.post(f"{server.url}/predict", content=stream.getvalue(), headers={"content-type": "image/png"})
        (said,) = answer.json()["predictions"]
        assert said["values"] == pytest.approx(wanted.values, rel=1e-5)
        assert said["error"] is None
        schemas = json.dumps(httpx.get(f"{server.url}/openapi.json").json())
        assert '"additionalProperties": {"type": "number"}' in schemas
        if CHROMIUM is None:
            return
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            complaints: list[str] = []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(server.url)
            expect(page.locator(".bars .bar-name").first).to_have_text("angle", timeout=30_000)
            assert re.fullmatch(r"-?[\d.,]+", page.locator(".bars .bar-score").nth(1).inner_text())
            assert page.locator(".bars .bar-track").count() == 0
            browser.close()
        assert not complaints
