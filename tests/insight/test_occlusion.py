"""Occlusion: what hiding does to the score, window by window; and the rank correlation that compares maps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

import vitrail
from tests.conftest import pictures, randomised, toy
from tests.insight.test_attention import KINDS
from vitrail.data.inputs import Prepared
from vitrail.insight.explained_score import ExplainedScore
from vitrail.insight.occlusion import Windows, affordable_windows, hidden_patches, occlusion, usual_windows
from vitrail.insight.statistics import rank_correlation
from vitrail.models.vit import ViT


def log_odds(logits: torch.Tensor, label: int) -> float:
    probability = logits.double().softmax(0)[label]
    return float(torch.log(probability / (1 - probability)))


@pytest.mark.parametrize("windows", [Windows(1, 1), Windows(2, 1), Windows(3, 2)], ids=str)
def test_it_equals_hiding_each_window_by_hand(windows):
    model = toy(image_size=(24, 40))
    image = pictures(model, 1)[0]
    expected, times = np.zeros((3, 5)), np.zeros((3, 5))
    with torch.inference_mode():
        score = log_odds(model(image[None])[0], 4)
        before = (windows.size - 1) // 2
        for top in range(-before, 3 - before, windows.stride):
            for left in range(-before, 5 - before, windows.stride):
                hidden = image.clone()
                inside = [
                    (row, column)
                    for row in range(max(top, 0), min(top + windows.size, 3))
                    for column in range(max(left, 0), min(left + windows.size, 5))
                ]
                for row, column in inside:
                    block = (slice(None), slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
                    hidden[block] = image.mean(dim=(1, 2))[:, None, None]
                fall = score - log_odds(model(hidden[None])[0], 4)
                for place in inside:
                    expected[place] += fall
                    times[place] += 1
    found = occlusion(model, image, ExplainedScore(model, image, 4), windows)
    assert np.abs(found - expected / times).max() <= 1e-5
    assert found.std() > 1e-3


@pytest.mark.parametrize(
    "fields", [*KINDS.values(), {"num_classes": 0}, {"num_classes": 1}], ids=[*KINDS, "none", "one"]
)
def test_every_kind_of_model(fields):
    model = toy(**fields)
    found = vitrail.inspect.occlusion(model, Prepared(pictures(model)))
    assert found.shape == (2, *model.config.grid)
    assert np.isfinite(found).all()
    assert found.std() > 0


def test_what_is_hidden_in_a_flat_image_changes_nothing():
    model = toy()
    assert np.abs(vitrail.inspect.occlusion(model, Prepared(torch.full((1, 3, 32, 32), 0.3)))).max() <= 1e-5


@settings(deadline=None)
@given(st.tuples(st.integers(1, 40), st.integers(1, 40)), st.integers(1, 9), st.integers(1, 9))
def test_windows_hide_every_patch(grid, size, stride):
    windows = Windows(max(size, stride), stride)
    times = np.zeros(grid)
    for place in hidden_patches(grid, windows):
        times[place] += 1
    assert times.min() >= 1
    assert windows.count(grid) <= grid[0] * grid[1]


@settings(deadline=None)
@given(st.tuples(st.integers(1, 30), st.integers(1, 30)), st.integers(1, 4000))
def test_windows_are_as_fine_as_can_be_paid_for(grid, most):
    windows = affordable_windows(grid, most)
    assert windows.size >= windows.stride
    if usual_windows(grid).count(grid) <= most:
        assert windows == usual_windows(grid)
    elif windows.count(grid) > most:
        assert windows.stride >= min(grid) // 4, "only the coarsest may cost more"


numbers = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=30)


@settings(deadline=None)
@given(numbers, st.randoms())
def test_rank_correlation_is_scipys_with_ties_too(first, random):
    second = random.sample(first, len(first))
    ours = rank_correlation(np.array(first), np.array(second))
    if len(set(first)) == 1:
        assert ours is None
    else:
        assert ours == pytest.approx(spearmanr(first, second).statistic, abs=1e-4)


def test_rank_correlation_of_too_few_or_constant_values_is_none():
    assert rank_correlation(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    assert rank_correlation(np.zeros(9), np.arange(9)) is None
    assert rank_correlation(np.arange(9.0), np.arange(9.0) ** 3) == 1
    assert rank_correlation(np.arange(9.0), -np.arange(9.0)) == -1


def test_what_is_explained_is_the_models_own_answer():
    """To the bit, also of a model with a second classifier, and of one that classifies in a way of its own."""

    class Doubled(ViT):
        def classify(self, pooled, tokens):
            return 2 * super().classify(pooled, tokens)

    for kind, fields in ((ViT, {}), (ViT, {"distillation_token": True}), (Doubled, {})):
        model = randomised(kind(toy(**fields).config)).eval()
        image = pictures(model, batch=1)[0]
        with torch.inference_mode():
            encoded = model.encode(model.embed(image[None]))
            logits = model.classify(model.pool(encoded), encoded)[0]
            asked = ExplainedScore(model, image)
            score = asked.score(model, encoded)
        assert asked.label == int(logits.argmax())
        assert asked.probability == float(logits.softmax(0)[asked.label])
        assert float(score) == pytest.approx(log_odds(logits, asked.label), abs=1e-5)
