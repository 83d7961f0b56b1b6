"""Attention distance: what a double loop over patches gives, and what can be worked out by hand."""

import math

import numpy as np
import pytest
import torch

import vitrail
from tests.conftest import pictures, toy
from tests.insight.test_attention import KINDS
from vitrail.data.inputs import Prepared
from vitrail.insight.attention_distance import Distances, attention_distance, mean_distances, pixel_distances
from vitrail.insight.images import Images


def double_loop(weights: np.ndarray, grid: tuple[int, int], pixels: int, prefix: int) -> float:
    """Of one head and image: weights [tokens, tokens]."""
    rows, columns = grid
    total = 0.0
    for query in range(rows * columns):
        near, mass = 0.0, 0.0
        for key in range(rows * columns):
            down, right = key // columns - query // columns, key % columns - query % columns
            share = float(weights[prefix + query, prefix + key])
            near += share * math.sqrt(down**2 + right**2) * pixels
            mass += share
        total += near / mass
    return total / (rows * columns)


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_it_equals_a_double_loop_over_patches(fields):
    model = toy(**fields)
    images = pictures(model, batch=3)
    config = model.config
    attention = vitrail.inspect.attention(model, Prepared(images))
    each = [
        [
            [double_loop(head, config.grid, config.patch_pixels, config.prefix_tokens) for head in layer]
            for layer in image
        ]
        for image in attention
    ]
    found = attention_distance(model, Images(model, Prepared(images)))
    assert np.allclose(found.mean, np.mean(each, axis=0), rtol=1e-5)
    assert np.allclose(found.spread, np.std(each, axis=0), atol=1e-4)
    assert np.array_equal(vitrail.inspect.attention_distance(model, Prepared(images)), found.mean)


GRID, PIXELS = (3, 4), 16


def head(weights: torch.Tensor) -> float:
    return mean_distances(weights.view(1, 1, 12, -1), pixel_distances(GRID, PIXELS))[0].item()


def test_uniform_attention_has_the_mean_distance_of_two_patches():
    """On 1 x 2 patches of 10 px: half of the attention stays, half goes 10 px far."""
    between = pixel_distances((1, 2), 10)
    assert mean_distances(torch.full((1, 1, 2, 2), 0.5), between)[0].item() == pytest.approx(5)
    assert head(torch.full((12, 12), 1 / 12)) == pytest.approx(pixel_distances(GRID, PIXELS).mean().item())


def test_identity_attention_has_no_distance():
    assert head(torch.eye(12)) == 0


def test_attention_to_the_next_patch_has_a_patchs_length():
    """Everyone looks one column to the right, the last column one to the left: 16 px each."""
    weights = torch.zeros(12, 12)
    for patch in range(12):
        weights[patch, patch + 1 if patch % 4 < 3 else patch - 1] = 1
    assert head(weights) == pytest.approx(16)


def test_diagonal_neighbours_are_the_root_of_two_away():
    weights = torch.zeros(12, 12)
    for patch in range(12):
        row, column = divmod(patch, 4)
        weights[patch, (row + 1 if row < 2 else row - 1) * 4 + (column + 1 if column < 3 else column - 1)] = 1
    assert head(weights) == pytest.approx(16 * math.sqrt(2))


def test_class_and_register_tokens_are_left_out_and_the_rest_scaled_to_1():
    """What a row gives to the prefix changes nothing, however much it is."""
    rows = torch.rand(1, 1, 12, 12).softmax(-1)
    between = pixel_distances(GRID, PIXELS)
    plain, kept = mean_distances(rows, between)
    assert kept.item() == pytest.approx(1)
    given = torch.rand(12, 3) * 5
    padded = torch.cat([given[None, None], rows], dim=-1)
    padded = padded / padded.sum(-1, keepdim=True)
    scaled, kept = mean_distances(padded, between, prefix=3)
    assert scaled.item() == pytest.approx(plain.item())
    assert kept.item() == pytest.approx((1 / (1 + given.sum(-1))).mean().item())


def test_a_head_that_gives_all_to_the_class_token_has_no_distance_and_no_nan():
    weights = torch.zeros(1, 1, 12, 13)
    weights[..., 0] = 1
    assert mean_distances(weights, pixel_distances(GRID, PIXELS), prefix=1)[0].item() == 0


def test_it_streams_batch_by_batch_to_the_same_result(monkeypatch):
    model = toy(registers=2)
    images = Images(model, Prepared(pictures(model, batch=7)))
    at_once = attention_distance(model, images)
    done = []
    monkeypatch.setattr("vitrail.insight.attention_distance.batch_size", lambda config, grid: 2)
    streamed = attention_distance(model, images, done.append)
    assert done == [2, 2, 2, 1]
    assert np.allclose(streamed.mean, at_once.mean)
    assert np.allclose(streamed.spread, at_once.spread)
    assert np.allclose(streamed.prefix_share, at_once.prefix_share)


def test_pixels_not_patches():
    """The same grid at twice the patch size: twice as far."""
    small, large = pixel_distances((3, 4), 8), pixel_distances((3, 4), 16)
    assert torch.equal(2 * small, large)
    hybrid = toy(**KINDS["hybrid"])
    assert hybrid.config.patch_pixels == 8, "two cells of a stem of stride 4"


def test_global_and_local_heads_are_counted_in_the_first_quarter():
    mean = np.full((8, 2), 50.0)
    mean[:2] = [[66.7, 66.5], [33.3, 33.4]]  # of 100: global, neither; local, neither
    numbers = Distances(mean, 0 * mean, 100.0, np.zeros(8), 5, [str(each) for each in range(1, 9)]).to_json()
    assert numbers["early_layers"] == 2
    assert numbers["early_global_share"] == numbers["early_local_share"] == 0.25
    assert numbers["global_from"] == pytest.approx(66.667)
    assert numbers["n"] == 5
