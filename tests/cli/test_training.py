"""train, finetune and evaluate as a person runs them, and what they say when something is wrong."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.warm import run

SHORT = ["--epochs", "1", "--model.depth", "1", "--batch-size", "128"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    result = run("train", "digits", "--out", "run", "--json", *SHORT, cwd=folder)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"run", "bundle", "steps", "seconds", "images_per_second", "metrics"} == set(document)
    assert document["metrics"]["n"] == 180
    return folder


def test_evaluate_counts_what_training_counted(trained):
    result = run("evaluate", "run", "--data", "digits", "--json", cwd=trained)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"n", "skipped", "top1", "top5", "loss", "per_class"} <= set(document)
    assert document["n"] == 180
    kept = vitrail.load(trained / "run").card.provenance["metrics"]["val"]
    validation = json.loads(run("evaluate", "run", "--data", "digits", "--split", "val", "--json", cwd=trained).stdout)
    assert validation["top1"] == kept["top1"]
    assert validation["n"] == kept["n"]


def test_finetune_says_what_it_chose(trained):
    flags = ["--steps", "5", "--out", "tuned", "--model.image-size", "16"]
    result = run("finetune", "run", "--data", "digits", *flags, cwd=trained)
    assert result.returncode == 0, result.stderr
    assert "sgd lr 0.003, batch 32, 5 steps" in result.stderr
    assert re.search(r"features of [0-9,]+ images in [0-9.]+ s, [0-9]+ images/s", result.stderr)
    assert re.search(r"probe: [0-9.]+% of 180 val images right, by .*; tuned/probe can be used", result.stderr)
    assert "the head is new" not in result.stderr, "it is solved before the first step"
    assert re.search(r"test accuracy [0-9.]+% over 180 images, 0 skipped, (by|fine-tuned;) the probe", result.stdout)
    assert vitrail.load(trained / "tuned").config.rows_columns == (16, 16)
    assert "report.html" in result.stdout


def photo_folder(folder: Path, classes: dict[str, int]) -> None:
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.full((40, 40, 3), 20 * index, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


@pytest.mark.parametrize(("arguments", "words"), [
    (["train", "digitz"], ["digitz", "digits"]),
    (["train", "digits", "--optimizer.lrr", "1"], ["lrr", "--optimizer.lr"]),
    (["train", "digits", "--optimizer.lr", "fast"], ["fast"]),
    (["train", "digits", "--optimizer.lr", "-1"], ["lr", "-1"]),
    (["train", "digits", "--model.size", "Q/16"], ["Q/16"]),
    (["train", "digits", "--model.num-heads", "7"], ["64", "7"]),
    (["train", "digits", "--model.patch-size", "16"], ["8 x 8", "16 x 16"]),
    (["train", "digits", "--data", "nowhere"], ["nowhere"]),
    (["train", "digits", "--data", "one"], ["one"]),
    (["train", "digits", "--data", "hollow"], ["empty"]),
    (["train", "digits", "--out", "used"], ["used", "--resume"]),
    (["train", "--resume"], ["--out"]),
    (["train", "--out", "nowhere", "--resume"], ["nowhere"]),
    (["train", "digits", "--device", "cuda:9"], ["cuda:9"]),
    (["finetune", "model"], ["--data"]),
    (["finetune", "--data", "digits"], ["MODEL"]),
    (["finetune", "nowhere", "--data", "digits"], ["nowhere"]),
    (["evaluate", "model", "--data", "pets"], ["class"]),
    (["evaluate", "nowhere", "--data", "digits"], ["nowhere"]),
])  # fmt: skip
def test_what_the_user_can_fix_exits_2_with_one_message(tmp_path, arguments, words):
    model = toy()
    model.card.label_names = tuple("abcdefg")
    vitrail.save(model, tmp_path / "model")
    (tmp_path / "used").mkdir()
    (tmp_path / "used/notes.txt").write_text("mine")
    photo_folder(tmp_path / "one", {"cats": 3})
    photo_folder(tmp_path / "pets", {"cats": 3, "dogs": 3})
    photo_folder(tmp_path / "hollow", {"cats": 3, "dogs": 3, "empty": 0})
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "nothing left behind"


def test_a_resumed_run_keeps_its_settings(trained):
    result = run("train", "--out", "run", "--resume", "--optimizer.lr", "0.5", cwd=trained)
    assert result.returncode == 2
    assert "optimizer.lr" in result.stderr


def test_steps_take_the_place_of_the_recipes_epochs(tmp_path):
    flags = ["--steps", "3", "--model.depth", "1", "--precision", "bf16", "--tensorboard", "--json"]
    result = run("train", "digits", *flags, "--out", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    (loss,) = board.Scalars("train/loss")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    assert loss.step == 3
    assert loss.value == pytest.approx(logged[-1]["loss"], rel=1e-6)
    both = run("train", "digits", "--steps", "3", "--epochs", "1", "--out", "other", cwd=tmp_path)
    assert both.returncode == 2
    assert "not both" in both.stderr


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path):
    """The first steps agree with the plain run: what is compiled is the same function."""
    flags = ["--steps", "5", "--log-every", "1", "--model.depth", "1", "--evaluate-every", "5"]
    losses = {}
    for name, more in {"plain": [], "compiled": ["--compile"]}.items():
        result = run("train", "digits", *flags, *more, "--out", name, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses[name] = [record["loss"] for record in map(json.loads, lines) if record["kind"] == "train"]
    assert len(losses["plain"]) == 5
    np.testing.assert_allclose(losses["compiled"], losses["plain"], atol=1e-4)


def test_a_run_of_numbered_classes_keeps_the_order_it_began_with(tmp_path):
    """Earlier versions sorted numbers as text; their runs go on with the classes they know."""
    photo_folder(tmp_path / "photos", {"1": 8, "2": 8, "10": 8})
    small = ["--model.image-size", "16", "--model.patch-size", "8", "--model.depth", "1", "--model.channels", "3"]
    small += ["--preprocessing.mean", "0.5", "0.5", "0.5", "--preprocessing.std", "0.5", "0.5", "0.5"]
    short = ["--steps", "2", "--batch-size", "8", "--evaluate-every", "1", "--out", "run"]
    begun = run("train", "digits", "--data", "photos", *small, *short, cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    assert vitrail.load(tmp_path / "run").card.label_names == ("1", "2", "10")
    config = json.loads((tmp_path / "run/config.json").read_text())
    config.pop("sha256")  # which these versions did not write
    (tmp_path / "run/config.json").write_text(json.dumps(config | {"classes": ["1", "10", "2"]}))
    again = run("train", "--out", "run", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert vitrail.load(tmp_path / "run/bundle").card.label_names == ("1", "10", "2")
