"""Which samples `vitrail evaluate` measures: none that the model was trained on, all where it was trained on none."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.cli import main
from vitrail.config import DataConfig, Preprocessing, TrainConfig
from vitrail.data import open_data
from vitrail.recipes import recipe


def pictures(folder: Path, *classes: str, count: int = 20) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.random.default_rng(sum(map(ord, name)) + 999 * index).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index:02d}.png")


def trained(run: Path, data: Path, **changes) -> TrainConfig:
    """A run of one step."""
    config = recipe("digits")
    config = config.with_(
        data=DataConfig(str(data), **changes), model=config.model.with_(depth=1), epochs=None, steps=1
    )
    vitrail.fit(config, run, report=False)
    return config


@pytest.fixture
def measured(tmp_path, capsys):
    """The split, the ids of what was measured, and what was said."""

    def run(model: Path, data: Path, *flags: str) -> tuple[str, set[str], str]:
        out = tmp_path / "evaluation"
        main(["evaluate", str(model), "--data", str(data), "--out", str(out), "--json", *flags])
        said = capsys.readouterr()
        rows = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
        result = json.loads(said.out)
        assert result["n"] == len(rows)
        return result["split"], {row["id"] for row in rows}, said.err

    return run


def test_all_of_a_folder_that_the_model_was_not_trained_on(tmp_path, measured):
    pictures(tmp_path / "mine", "a", "b")
    pictures(tmp_path / "other", "a", "b", count=15)
    trained(tmp_path / "run", tmp_path / "mine")
    split, ids, said = measured(tmp_path / "run", tmp_path / "other")
    assert (split, len(ids)) == ("all", 30)
    line = f"{tmp_path / 'other'} has no splits of its own, and the model was not trained on it: measured on all 30"
    assert line in said
    split, ids, said = measured(tmp_path / "run", tmp_path / "other", "--split", "test")
    assert (split, len(ids)) == ("test", 3)
    assert "other has no test split of its own: measured on 3 of its 30 samples, cut by seed" in said


def test_what_training_set_aside_by_its_own_rule_wherever_the_folder_is_now(tmp_path, measured):
    pictures(tmp_path / "mine", "a", "b")
    config = trained(tmp_path / "run", tmp_path / "mine", split_seed=7, test_fraction=0.3, val_fraction=0.2)
    source = open_data(config.data)
    expected = set(source.split("test").ids)
    assert len(expected) == 12
    assert expected & set(open_data(DataConfig(config.data.source)).split("train").ids), "another seed, another split"
    for folder in ("mine", "moved"):
        if folder == "moved":
            (tmp_path / "mine").rename(tmp_path / "moved")
        split, ids, said = measured(tmp_path / "run", tmp_path / folder)
        assert (split, ids) == ("test", expected)
        assert (
            f"{folder} has no test split of its own: measured on the 12 samples (test) that training set aside" in said
        )
        assert "changed" not in said
        assert measured(tmp_path / "run", tmp_path / folder, "--split", "val")[1] == set(source.split("val").ids)
    (tmp_path / "moved").rename(tmp_path / "mine")
    Image.new("L", (8, 8)).save(tmp_path / "mine/a/new.png")
    said = measured(tmp_path / "run", tmp_path / "mine")[2]
    assert "it has changed since, so that some of them may have been trained on" in said


def test_a_training_on_some_of_the_samples_is_known_again_too(tmp_path, measured):
    pictures(tmp_path / "mine", "a", "b")
    config = trained(tmp_path / "run", tmp_path / "mine", train_size=10)
    expected = set(open_data(config.data).split("test").ids)
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert measured(tmp_path / "run", tmp_path / "moved")[1] == expected


def test_a_training_that_set_nothing_aside_is_said(tmp_path, measured):
    pictures(tmp_path / "mine", "a", "b", count=5)
    trained(tmp_path / "run", tmp_path / "mine", val_fraction=0.0, test_fraction=0.0)
    split, ids, said = measured(tmp_path / "run", tmp_path / "mine")
    assert (split, len(ids)) == ("all", 10)
    assert "training set nothing aside: measured on all 10, which the model was trained on" in said


def test_splits_of_the_data_set_itself_come_first(tmp_path, measured):
    pictures(tmp_path / "mine/train", "a", "b")
    pictures(tmp_path / "mine/val", "a", "b", count=3)
    trained(tmp_path / "run", tmp_path / "mine")
    split, ids, said = measured(tmp_path / "run", tmp_path / "mine")
    assert (split, len(ids)) == ("val", 6)
    assert "mine has no test split: measured on val" in said
    pictures(tmp_path / "mine/test", "a", "b", count=2)
    split, ids, said = measured(tmp_path / "run", tmp_path / "mine")
    assert (split, len(ids)) == ("test", 4)
    assert "measured" not in said


def save_model(folder: Path, count: int) -> None:
    model = toy(image_size=8, patch_size=4, num_classes=count)
    model.card.preprocessing = Preprocessing(image_size=8)
    model.card.label_names = tuple("abcdefghij")[:count]
    vitrail.save(model, folder)


def test_some_of_the_classes_are_measured_with_a_note(tmp_path, measured):
    pictures(tmp_path / "mine", "b", "d")
    save_model(tmp_path / "model", 10)
    split, ids, said = measured(tmp_path / "model", tmp_path / "mine")
    assert (split, len(ids)) == ("all", 40)
    assert "the data has 2 of the model's 10 classes: it may still answer with any of them" in said
    assert "the model does not say that it was trained on it: measured on all 40" in said
    save_model(tmp_path / "same", 2)
    pictures(tmp_path / "whole", "a", "b")
    assert "classes:" not in measured(tmp_path / "same", tmp_path / "whole")[2]


def test_what_a_preprocessing_was_tried_on_is_not_measured(tmp_path, measured):
    pictures(tmp_path / "mine", "a", "b", count=50)
    save_model(tmp_path / "model", 2)
    vitrail.convert(tmp_path / "model", tmp_path / "bare.safetensors", "timm", check=False)
    (tmp_path / "names.txt").write_text("a\nb")
    flags = ["--labels", str(tmp_path / "names.txt")]
    split, ids, said = measured(tmp_path / "bare.safetensors", tmp_path / "mine", *flags)
    tried = set(open_data(DataConfig(str(tmp_path / "mine"))).split("val").ids)
    assert split == "all"
    assert ids == set(open_data(DataConfig(str(tmp_path / "mine"))).all.ids) - tried
    assert "tried both usual ones on 10 " in said
    assert "the 10 that the preprocessing was tried on are left out of what is measured" in said
