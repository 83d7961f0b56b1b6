"""The range of deep pictures from --data.range to every command that takes the model."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.serving.conftest import running
from tests.warm import run
from vitrail.config import DataConfig, ModelConfig, OptimizerConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.data.transforms import EvaluationTransform
from vitrail.inference.export import export
from vitrail.insight.images import Images
from vitrail.train import fit
from vitrail.training.run_folder import read_config
from vitrail.transfer import finetuned_config


def config(folder: Path, values: str | None) -> TrainConfig:
    return TrainConfig(
        model=ModelConfig(image_size=16, channels=1, patch_size=4, width=32, depth=2, num_heads=2, mlp_dim=64),
        data=DataConfig(str(folder / "data"), workers=1, range=values),
        transform=TransformConfig(crop="evaluation"),
        preprocessing=Preprocessing(16, (0.5,), (0.5,), crop="squash"),
        optimizer=OptimizerConfig(lr=4e-3),
        steps=60,
        batch_size=32,
        evaluate_every=60,
    )


def scores(top: list[dict]) -> list[float]:
    return [guess["score"] for guess in sorted(top, key=lambda each: each["label"])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Stripes across or down, of which nothing is left in 8 bits: all values round to 8 of 255."""
    folder = tmp_path_factory.mktemp("range")
    generator = np.random.default_rng(0)
    for name in ("across", "down"):
        (folder / "data" / name).mkdir(parents=True)
        for index in range(120):
            phase = generator.uniform(0, 2 * np.pi)
            stripes = 70 * np.sin(np.arange(16) * np.pi / 2 + phase)[:, None] + generator.normal(0, 10, (16, 16))
            values = np.rint(2056 + (stripes if name == "across" else stripes.T)).astype(np.uint16)
            assert set(np.rint(values / 257).ravel()) == {8}
            Image.fromarray(values).save(folder / "data" / name / f"{index:03d}.png")
    return folder


@pytest.fixture(scope="module")
def trained(folder) -> Path:
    fit(config(folder, "auto"), folder / "run", report=False)
    return folder


def test_what_differs_in_the_low_bits_is_learned_with_the_range_and_not_without(trained, capsys):
    result = fit(config(trained, None), trained / "without", report=False)
    assert "train with --data.range auto" in capsys.readouterr().err
    assert result.metrics["top1"] <= 0.6
    # Nothing of it is left in the model's input.
    pixels = EvaluationTransform(vitrail.load(trained / "without").card.preprocessing)
    assert {len(np.unique(pixels(each.read_bytes()))) for each in (trained / "data").rglob("*.png")} == {1}
    with_range = run("evaluate", "run", "--data", "data", "--json", cwd=trained)
    assert with_range.returncode == 0, with_range.stderr
    assert json.loads(with_range.stdout)["top1"] >= 0.95
    assert "--data.range" not in with_range.stderr


def test_the_numbers_that_were_found_are_in_the_run_and_in_the_bundle(trained):
    kept = read_config(trained / "run")
    assert kept.data.range == "auto"
    assert kept.preprocessing.range is not None
    low, high = kept.preprocessing.range
    assert 1930 < low < 2000
    assert 2110 < high < 2180
    document = json.loads((trained / "run" / "bundle" / "config.json").read_text())
    assert document["vitrail"]["preprocessing"]["range"] == [low, high]
    assert "range" not in json.loads((trained / "run" / "config.json").read_text())["train"]["transform"]


def test_a_resumed_run_keeps_the_range(trained, capsys):
    for same in (config(trained, "auto"), read_config(trained / "run")):
        fit(same, trained / "run", resume=True, report=False)
        told = capsys.readouterr().err
        assert "range: stored values from" in told
        assert "train with --data.range" not in told
    for other in (None, "dtype", "0,4095"):
        with pytest.raises(vitrail.UserError, match="range; a resumed run keeps it"):
            fit(config(trained, other), trained / "run", resume=True, report=False)


def test_predict_embed_inspect_exports_and_server_apply_it(trained, tmp_path):
    files = [trained / "data" / "across" / "000.png", trained / "data" / "down" / "001.png"]
    names = [str(each) for each in files]

    def rows(model: Path) -> list[list[float]]:
        return [
            [guess.score for guess in sorted(each.top, key=lambda guess: guess.label)]
            for each in vitrail.predict(model, names)
        ]

    plain = rows(trained / "run")
    assert plain[0][0] > 0.8
    assert plain[1][1] > 0.8
    exported = export(vitrail.load(trained / "run"), tmp_path / "model.onnx").files[0]
    assert np.allclose(rows(exported), plain, atol=1e-4)
    model = vitrail.load(trained / "run")
    assert np.allclose(model.predict(Image.open(files[0]))[0].top[0].score, max(plain[0]), atol=1e-5)
    assert np.ptp(vitrail.embed(model, names), axis=0).max() > 0.1
    with running(tmp_path, str(trained / "run")) as server:
        sent = [("file", (each.name, each.read_bytes())) for each in files]
        answers = httpx.post(f"{server.url}/predict", files=sent, timeout=30).json()["predictions"]
        assert np.allclose([scores(each["top"]) for each in answers], plain, atol=1e-6)
        # The attention's picture is drawn from the same pixels.
        kind = {"Content-Type": "image/png"}
        drawn = httpx.post(f"{server.url}/attention/map", content=files[0].read_bytes(), headers=kind, timeout=30)
        assert drawn.status_code == 200, drawn.text
    # What inspect and its figures are given.
    images = Images(model, names)
    assert np.allclose(model(images.tensor(0)[None]).softmax(1).detach(), plain[0], atol=1e-5)
    assert images.pixels(0).dtype == np.uint8
    assert np.ptp(images.pixels(0)) > 100


def test_the_preprocessing_flag_sets_it_and_takes_it_away(trained):
    data = ["evaluate", "run", "--data", "data", "--json"]
    without = run(*data, "--preprocessing", "range=dtype", cwd=trained)
    assert json.loads(without.stdout)["top1"] <= 0.6
    assert "--data.range auto" in without.stderr
    again = run("evaluate", "run", "--data", "data", "--json", "--preprocessing", "range=1950:2160", cwd=trained)
    assert json.loads(again.stdout)["top1"] >= 0.9
    for value in ("5:5", "1", "1:2:3", "a:b", "9:1"):
        result = run(*data, "--preprocessing", f"range={value}", cwd=trained)
        assert result.returncode == 2
        assert "range" in result.stderr


def test_fine_tuning_keeps_the_models_range_unless_told_otherwise(trained):
    own = vitrail.load(trained / "run").card.preprocessing.range
    for number, (given, wanted) in enumerate(((None, own), ("0,4095", (0, 4095)), ("dtype", None))):
        start = config(trained, given).with_(steps=2, evaluate_every=2)
        out = trained / f"tuned{number}"
        fit(finetuned_config(start, str(trained / "run")), out, report=False)
        assert vitrail.load(out).card.preprocessing.range == wanted


def test_a_bundle_from_before_opens_as_it_was():
    """Its preprocessing has no range; nothing of that is added when it is written again."""
    assert Preprocessing.from_json({"image_size": 8, "mean": [0.5], "std": [0.5]}).range is None
    values = Preprocessing(8, (0.5,), (0.5,)).to_json()
    assert list(values) == ["image_size", "mean", "std", "resample", "crop", "crop_fraction"]


@pytest.mark.parametrize("value", ["9,1", "x", "nan,1"])
def test_a_wrong_range_ends_in_a_sentence(folder, value):
    train = ["train", "digits", "--data", "data", "--data.range", value]
    for command in (train, ["data", "check", "data", "--range", value]):
        result = run(*command, cwd=folder)
        assert result.returncode == 2
        assert f"--data.range {value}" in result.stderr
        assert "Traceback" not in result.stderr
