"""Looking into a model whose head reads every patch: a class is explained over the patches that have it."""

import json

import numpy as np
import pytest
import torch

import vitrail
from tests.mask_models import mask_model, smooth_picture
from vitrail import inspect
from vitrail.errors import UserError
from vitrail.insight.explained_score import ExplainedScore, find_class
from vitrail.insight.rollout import gradient_rollout


@pytest.fixture(scope="module")
def model():
    return mask_model()


@pytest.fixture(scope="module")
def image(model):
    return vitrail.preprocess(model, smooth_picture(3))[0]


@torch.inference_mode()
def test_the_class_is_that_of_most_patches_and_its_score_the_mean_over_them(model, image):
    logits = model(image[None])[0].flatten(1).T.double()  # (patches, classes)
    given = logits.argmax(dim=1)
    counts = [int((given == each).sum()) for each in range(3)]
    assert sorted(counts)[1] > 0, "several classes should occur"
    explained = ExplainedScore(model, image)
    assert explained.label == int(np.argmax(counts))
    odds, chances = [], []
    for row in logits[given == explained.label].tolist():
        others = [value for place, value in enumerate(row) if place != explained.label]
        odds.append(row[explained.label] - np.logaddexp.reduce(others))
        chances.append(np.exp(row[explained.label] - np.logaddexp.reduce(row)))
    assert explained.probability == pytest.approx(np.mean(chances), abs=1e-5)
    encoded = model.encode(model.embed(image[None]))
    assert float(explained.score(model, encoded)[0]) == pytest.approx(np.mean(odds), abs=1e-4)
    rare = ExplainedScore(model, image, 1)
    assert rare.label == 1


def test_maps_of_a_class_have_the_form_of_the_grid_and_differ_between_classes(model):
    pixels = smooth_picture(3)
    for function in (inspect.gradient_rollout, inspect.occlusion):
        maps = [function(model, pixels, label) for label in ("sky", "tree")]
        assert [each.shape for each in maps] == [(1, 4, 6)] * 2
        assert all(np.isfinite(each).all() for each in maps)
        assert not np.allclose(*maps)
    assert find_class(model, "road") == 1
    with pytest.raises(UserError, match="there is no such class"):
        find_class(model, "sea")


def test_gradient_rollout_reads_the_patches_that_have_the_class(model, image):
    for label in range(3):
        explained = ExplainedScore(model, image, label)
        assert explained.patches is not None
        own = np.zeros(24, bool)
        own[explained.patches.numpy()] = True
        found = gradient_rollout(model, image, explained).ravel()
        assert found[own].min() > found[~own].max(), "a patch depends most on itself, through the skip connections"


def test_a_head_that_is_not_trained_follows_the_images_own_features(image):
    untrained = mask_model()
    with torch.no_grad():
        untrained.head.weight.zero_()
    explained = ExplainedScore(untrained, image)
    assert explained.label is None
    with torch.inference_mode():
        features = untrained.features(image[None])
        score = explained.score(untrained, untrained.encode(untrained.embed(image[None])))
    assert float(score[0]) == pytest.approx(float(features.norm()), rel=1e-5)


def test_the_report_of_such_a_model_is_whole(model, tmp_path):
    from vitrail.cli import main

    vitrail.save(model, tmp_path / "model")
    from PIL import Image

    Image.fromarray(smooth_picture(3)).save(tmp_path / "a.png")
    main(["inspect", str(tmp_path / "model"), str(tmp_path / "a.png"), "--out", str(tmp_path / "report")])
    numbers = json.loads((tmp_path / "report" / "numbers.json").read_text())
    assert "NaN" not in (tmp_path / "report" / "numbers.json").read_text()
    assert numbers
    assert (tmp_path / "report" / "maps.png").stat().st_size > 1000


def test_features_are_the_mean_over_the_patches(model, tmp_path):
    pixels = smooth_picture(3)
    with torch.inference_mode():
        image = vitrail.preprocess(model, pixels)
        expected = model.head_input(image).mean(dim=1).numpy()
    assert vitrail.embed(model, pixels) == pytest.approx(expected, abs=1e-6)
