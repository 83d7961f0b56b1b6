"""Rollout: rows that sum to 1, equal to a product written out in float64; gradients equal to finite differences."""

import numpy as np
import pytest
import torch

import vitrail
from tests.conftest import pictures, randomised, toy
from tests.insight.test_attention import KINDS
from vitrail.data.inputs import Prepared
from vitrail.insight.explained_score import ExplainedScore
from vitrail.insight.images import Images
from vitrail.insight.rollout import gradient_rollout, rollout_matrices
from vitrail.models.attention import Recorder

kinds = pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)


def by_hand(layers: np.ndarray) -> np.ndarray:
    """layers: [steps, heads, tokens, tokens] -> [tokens, tokens], entry by entry in float64."""
    tokens = layers.shape[-1]
    result = np.eye(tokens)
    for heads in layers.astype(np.float64):
        mixed = np.zeros((tokens, tokens))
        for row in range(tokens):
            for column in range(tokens):
                mixed[row, column] = sum(head[row, column] for head in heads) / len(heads) + (row == column)
            mixed[row] /= mixed[row].sum()
        result = mixed @ result
    return result


def read(matrix: np.ndarray, config) -> np.ndarray:
    first = config.prefix_tokens
    if config.pooling == "average":
        row = matrix[first:, first:].mean(axis=0)
    else:
        row = matrix[: 2 if config.distillation_token else 1, first:].mean(axis=0)
    return row.reshape(config.grid)


@kinds
def test_it_equals_a_brute_force_product_in_float64_and_rows_sum_to_1(fields):
    model = toy(**fields)
    images = pictures(model, batch=3)
    matrices = vitrail.inspect.rollout(model, Prepared(images), matrix=True)
    maps = vitrail.inspect.rollout(model, Prepared(images))
    assert np.abs(matrices.sum(axis=-1) - 1).max() <= 1e-6
    for attention, matrix, found in zip(
        vitrail.inspect.attention(model, Prepared(images)), matrices, maps, strict=True
    ):
        expected = by_hand(attention)
        assert np.abs(matrix - expected).max() <= 1e-6
        assert np.abs(found - read(expected, model.config)).max() <= 1e-6


def test_rows_are_scaled_not_columns():
    """With a class token everyone looks at, scaling columns gives something else: the test above can fail."""
    model = toy()
    attention = vitrail.inspect.attention(model, Prepared(pictures(model, 1)))[0].astype(np.float64)
    wrong = np.eye(attention.shape[-1])
    for heads in attention:
        mixed = heads.mean(axis=0) + np.eye(len(wrong))
        wrong = (mixed / mixed.sum(axis=0, keepdims=True)) @ wrong
    assert np.abs(by_hand(attention) - wrong).max() > 1e-3


def test_every_image_of_a_batch_is_treated_alike(monkeypatch):
    model = toy()
    images = pictures(model, batch=5)
    together = np.concatenate(list(rollout_matrices(model, Images(model, Prepared(images)))))
    monkeypatch.setattr("vitrail.insight.rollout.batch_size", lambda config, grid: 2)
    in_twos = np.concatenate(list(rollout_matrices(model, Images(model, Prepared(images)))))
    assert np.abs(together - in_twos).max() <= 1e-6


class Nudge(Recorder):
    """Changes one entry of one layer's attention, in place, before the model goes on with it."""

    def __init__(self, layer: int, place: tuple[int, ...], by: float):
        super().__init__("attention", layers=[layer])
        self.place, self.by = place, by

    def keep(self, kind, layer, tensor):
        tensor[self.place] += self.by


@pytest.mark.parametrize(
    "fields",
    [{}, {"class_token": False, "pooling": "average"}, {"num_classes": 0}],
    ids=["class", "average", "no head"],
)
def test_gradient_rollout_equals_one_made_of_finite_differences(fields):
    sizes = {"width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 16, "image_size": 16}
    model = randomised(toy(**sizes, **fields), seed=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that attention is far from uniform
    image = pictures(model, 1)[0].double()
    label = None if model.config.num_classes == 0 else 2
    question = ExplainedScore(model, image, label)
    recorder = Recorder("attention")

    def score(record):
        with torch.inference_mode():
            return question.score(model, model.encode(model.embed(image[None]), record=record)).item()

    score(recorder)
    layers = []
    for layer, attention in sorted(recorder.attention.items()):
        gradient = torch.zeros_like(attention)
        for place in np.ndindex(*attention.shape):
            gradient[place] = (score(Nudge(layer, place, 1e-6)) - score(Nudge(layer, place, -1e-6))) / 2e-6
        layers.append((gradient * attention).clamp_min(0)[0].numpy())
    expected = read(by_hand(np.stack(layers)), model.config)
    found = gradient_rollout(model, image, question)
    assert expected.std() > 1e-4, "a flat map would prove nothing"
    assert np.abs(found - expected).max() <= 1e-5


@kinds
def test_gradient_rollout_of_every_kind_of_model_leaves_no_gradients_behind(fields):
    model = toy(**fields)
    images = pictures(model)
    found = vitrail.inspect.gradient_rollout(model, Prepared(images), label="3")
    assert found.shape == (2, *model.config.grid)
    assert np.isfinite(found).all()
    assert all(parameter.grad is None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert np.allclose(vitrail.inspect.gradient_rollout(model, Prepared(images), label="3"), found), (
        "frozen weights too"
    )


def test_gradient_rollout_depends_on_the_class_and_is_the_models_own_by_default():
    model = toy()
    images = pictures(model, 1)
    maps = [vitrail.inspect.gradient_rollout(model, Prepared(images), label=str(each)) for each in range(7)]
    said = model(images).argmax().item()
    assert np.array_equal(vitrail.inspect.gradient_rollout(model, Prepared(images)), maps[said])
    assert np.abs(maps[0] - maps[1]).max() > 1e-6


def test_gradients_are_found_inside_inference_mode_too():
    model = toy()
    images = pictures(model, 1)
    expected = vitrail.inspect.gradient_rollout(model, Prepared(images))
    with torch.inference_mode():
        assert np.array_equal(vitrail.inspect.gradient_rollout(model, Prepared(images)), expected)
