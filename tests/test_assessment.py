"""The functions that measure a model give what the commands print and write, and leave the model as it was."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.cli import main
from vitrail.config import Preprocessing
from vitrail.data import open_source

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`bundle` and `model.onnx` tell digits apart; `bare.safetensors` does not say how its images, in `photos`, are
    prepared; `photos` has a file that is no picture."""
    path = tmp_path_factory.mktemp("assessment")
    shutil.copytree(RECORDED / "bundle", path / "bundle")
    shutil.copy(RECORDED / "model.onnx", path)
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (path / "photos" / name).mkdir(parents=True)
        for number in range(50):
            pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path / "photos" / name / f"{number:02d}.png")
    (path / "photos" / "a" / "07.png").write_bytes(b"no picture")
    model = toy(image_size=8, patch_size=4, num_classes=2)
    model.card.label_names = ("a", "b")
    model.card.preprocessing = Preprocessing(8)
    vitrail.save(model, path / "two")
    vitrail.convert(path / "two", path / "bare.safetensors", "timm", check=False)
    (path / "names.txt").write_text("a\nb")
    return path


@pytest.fixture
def command(folder, capsys, monkeypatch):
    """Runs a command with --json in the folder: its document, and what it said."""
    monkeypatch.chdir(folder)

    def run(*arguments: str):
        main([*arguments, "--json"])
        said = capsys.readouterr()
        return json.loads(said.out), said.err.splitlines()

    return run


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("model", ["bundle", "model.onnx"])
def test_evaluate_gives_and_writes_what_the_command_does(command, tmp_path, model):
    ours, theirs = tmp_path / "function", tmp_path / "command"
    result = vitrail.evaluate(model, "digits", "test", out=ours)
    document, said = command("evaluate", model, "--data", "digits", "--split", "test", "--out", str(theirs))
    assert result.to_json() == document
    assert [*result.notes, f"wrote {theirs / 'report.html'}"] == said
    assert result.page == ours / "report.html"
    assert files(ours) == files(theirs)
    assert len(result.meter.kept) == document["n"] == 180
    right = sum(label == predicted for _, label, predicted, _ in result.meter.kept)
    assert right / 180 == document["top1"]


def test_a_model_in_memory_and_an_open_source_are_measured_alike(command):
    model, source = vitrail.load("bundle"), open_source("digits")
    model.train()
    result = vitrail.evaluate(model, source)
    document, said = command("evaluate", "bundle", "--data", "digits")
    assert result.to_json() == document
    assert list(result.notes) == said
    assert model.training, "it is left in the mode it was in"


def test_notes_are_said_in_order_as_they_are_known_and_skipped_images_counted(command):
    said: list[str] = []
    settings = vitrail.EvaluationSettings(batch_size=7, say=said.append)
    result = vitrail.evaluate("two", "photos", settings=settings)
    assert (result.document["n"], result.document["skipped"]) == (99, 1)
    assert said == list(result.notes)
    document, lines = command("evaluate", "two", "--data", "photos", "--batch-size", "7")
    assert (result.to_json(), said) == (document, lines)


def test_a_preprocessing_that_is_found_out_is_not_kept_with_a_model_in_memory(command):
    model = vitrail.load("bare.safetensors", labels="names.txt")
    before, notes = model.card.preprocessing, list(model.card.notes)
    assert model.card.assumed
    result = vitrail.evaluate(model, "photos")
    assert any("tried both usual ones" in note for note in result.notes)
    assert (model.card.preprocessing, model.card.notes) == (before, notes)
    assert model.card.assumed
    document, said = command("evaluate", "bare.safetensors", "--labels", "names.txt", "--data", "photos")
    assert result.to_json() == document
    assert list(result.notes) == said


@pytest.mark.parametrize("folder_given", [False, True])
def test_few_shot_gives_and_writes_what_the_command_does(command, tmp_path, folder_given):
    ours, theirs = (tmp_path / "function", tmp_path / "command") if folder_given else (None, None)
    result = vitrail.few_shot(
        "bundle", "digits", shots=(1, 200, "all"), methods=("ridge", "knn"), seeds=2, out=ours
    )  # fmt: skip
    flags = ["--data", "digits", "--shots", "1", "200", "all", "--seeds", "2"]
    document, said = command("fewshot", "bundle", *flags, *([] if theirs is None else ["--out", str(theirs)]))
    assert result.to_json() == document
    assert any("fewer training images than shots" in note for note in result.notes)
    assert [*result.notes, *([] if theirs is None else [f"wrote {theirs / 'report.html'}"])] == said
    if ours is not None and theirs is not None:
        assert files(ours) == files(theirs)
    else:
        assert result.page is None


def test_few_shot_takes_a_model_without_a_head_in_memory_and_leaves_it(command):
    model = toy(image_size=8, patch_size=4, num_classes=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = vitrail.few_shot(model, open_source("photos"), shots=(5,), methods=("ridge",), seeds=1)
    assert result.split == "test"
    assert result.rows[0].n + result.rows[0].skipped == len(open_source("photos").split("test"))
    assert model.card.preprocessing is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_cross_validation_gives_what_the_command_does(command):
    result = vitrail.cross_validate("bundle", "digits", "test", folds=3)
    document, said = command("evaluate", "bundle", "--data", "digits", "--split", "test", "--folds", "3")
    assert result.to_json() == document
    assert list(result.notes) == said


def test_an_open_source_with_other_splits_than_training_cut_is_said(tmp_path):
    config = vitrail.recipe("digits")
    config = config.with_(model=config.model.with_(depth=1), epochs=None, steps=1)
    config = config.with_(data=type(config.data)("digits", split_seed=3))
    vitrail.fit(config, tmp_path / "run", report=False)
    result = vitrail.evaluate(tmp_path / "run", open_source("digits"))
    assert any("training cut it by" in note for note in result.notes)
    same = vitrail.evaluate(tmp_path / "run", "digits")
    assert not any("training cut it by" in note for note in same.notes)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: vitrail.evaluate(toy(num_classes=0), "digits"), "has no head"),
    (lambda: vitrail.evaluate(toy(), "digits"), "has no class names"),
    (lambda: vitrail.evaluate("bundle", "digits", "dev"), "digits has no split 'dev'"),
    (lambda: vitrail.evaluate("bundle", "photos"), "do not match"),
    (lambda: vitrail.evaluate("bundle", "digits", out="names.txt"), "is a file"),
    (lambda: vitrail.evaluate("bundle", "digits", real="gone.json"), "cannot be read"),
    (lambda: vitrail.few_shot("bundle", "digits", shots=(0,)), "from 1 up"),
    (lambda: vitrail.few_shot("bundle", "digits", methods=()), "at least one of ridge"),
    (lambda: vitrail.few_shot("bundle", "digits", seeds=0), "at least 1"),
    (lambda: vitrail.few_shot("bundle", "digits", split="train"), "holds the images that are learned from"),
    (lambda: vitrail.cross_validate("bundle", "digits", folds=1), "at least 2"),
], ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "call")  # fmt: skip
def test_what_cannot_be_measured_is_said(folder, monkeypatch, call, words):
    monkeypatch.chdir(folder)
    with pytest.raises(vitrail.UserError, match=words):
        call()
