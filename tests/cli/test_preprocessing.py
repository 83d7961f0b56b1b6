"""Weights without preprocessing: every command says what it assumed or chose, and --preprocessing changes it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.serving.conftest import running
from tests.warm import run
from vitrail.config import IMAGENET_MEAN

NOTHING = "the weights carry no preprocessing; "
HALF = (0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Bare weights, the names of their classes, and two classes of photos with splits."""
    folder = tmp_path_factory.mktemp("bare")
    model = toy(num_classes=2)
    model.card.label_names = ("dark", "light")
    vitrail.save(model, folder / "bundle")
    vitrail.convert(folder / "bundle", folder / "bare.safetensors", "timm")
    (folder / "names.txt").write_text("dark\nlight\n")
    generator = np.random.default_rng(0)
    for split, count in {"train": 10, "val": 4, "test": 4}.items():
        for shift, name in enumerate(model.card.label_names):
            (folder / "photos" / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(90 * shift, 160 + 90 * shift, (32, 32, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / split / name / f"{index}.png")
    return folder


COMMANDS = {
    "finetune": ["finetune", "bare.safetensors", "--data", "photos", "--quick", "--out"],
    "fewshot": ["fewshot", "bare.safetensors", "--data", "photos", "--shots", "2", "--out"],
    "evaluate": ["evaluate", "bare.safetensors", "--labels", "names.txt", "--data", "photos", "--out"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_with_labelled_data_both_candidates_are_tried_and_the_outcome_said(place, name):
    result = run(*COMMANDS[name], f"{name}-tried", cwd=place)
    assert result.returncode == 0, result.stderr
    (line,) = [each for each in result.stderr.splitlines() if each.startswith(NOTHING)]
    assert "tried both usual ones on 20 training images: " in line, "never on those that are measured"
    assert re.search(r"(took|assumed) mean 0.*\(--preprocessing changes it\)$", line)
    if name == "finetune":
        kept = vitrail.load(place / "finetune-tried").card.preprocessing
        assert kept is not None
        assert (
            " ".join(f"{value:g}" for value in kept.mean) == re.findall(r"(?:took|assumed) mean ([0-9. ]+),", line)[0]
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_flag_says_it_and_nothing_is_tried(place, name):
    result = run(*COMMANDS[name], f"{name}-told", "--preprocessing", "half", cwd=place)
    assert result.returncode == 0, result.stderr
    assert NOTHING not in result.stderr
    if name == "finetune":
        kept = vitrail.load(place / "finetune-told").card.preprocessing
        assert kept is not None
        assert kept.mean == HALF != IMAGENET_MEAN


def test_what_is_measured_is_not_chosen_by(place):
    flags = ["--labels", "names.txt", "--data", "photos", "--split", "all"]
    result = run("evaluate", "bare.safetensors", *flags, cwd=place)
    assert result.returncode == 0, result.stderr
    assert f"{NOTHING}assumed mean 0.485" in result.stderr


def test_finetune_refuses_a_name_that_is_none(place):
    result = run(*COMMANDS["finetune"], "no-run", "--preprocessing", "imagent", cwd=place)
    assert result.returncode == 2
    assert "there is no 'imagent'; there are imagenet, half" in result.stderr
    assert not (place / "no-run").exists()


def test_serve_says_what_it_assumed(place, tmp_path):
    with running(tmp_path, str(place / "bare.safetensors"), "--labels", str(place / "names.txt")) as server:
        assert f"{NOTHING}assumed mean 0.485" in server.log.read_text()


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize("name", ["finetune", "fewshot"])
def test_real_weights_stripped_of_their_preprocessing_are_recognised(assets, tmp_path, name):
    """DeiT-Ti was trained with ImageNet's mean and std."""
    weights, photos = str(assets / "deit-ti16.safetensors"), str(assets / "ants-and-bees")
    flags = ["--quick", "--json"] if name == "finetune" else ["--shots", "5", "--methods", "ridge", "--json"]
    result = run(name, weights, "--data", photos, "--out", "out", *flags, cwd=tmp_path, timeout=900)
    assert result.returncode == 0, result.stderr
    (line,) = [each for each in result.stderr.splitlines() if each.startswith(NOTHING)]
    assert "took mean 0.485 0.456 0.406, std 0.229 0.224 0.225" in line
    if name == "finetune":
        assert json.loads(result.stdout)["metrics"]["top1"] >= 0.93
