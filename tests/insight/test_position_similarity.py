"""Position similarity: cosines of the embeddings, and near against far as numbers."""

import numpy as np
import pytest
import torch

import vitrail
from tests.conftest import toy
from vitrail.insight.position_similarity import locality


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"image_size": (24, 40), "registers": 2},
        {"class_token": False, "pooling": "average"},
        {"class_position": False},
        {"positions": "learned_2d", "image_size": (16, 24)},
        {"positions": "sincos"},
        {"positions": "sincos", "attention": "axial", "class_token": False, "pooling": "average"},
        {"positions_at": "every_layer_shared"},
    ],
    ids=str,
)
def test_it_is_the_cosine_of_every_pair_of_patches(fields):
    model = toy(**fields)
    rows, columns = model.config.grid
    # What the model adds to the patches is what must be compared: the difference to a model without positions.
    images = torch.zeros(1, 3, *model.config.rows_columns)
    with torch.no_grad():
        patches = model.embed(images)[0, -rows * columns :] - model.patch_embed(images)[0]
    found = vitrail.inspect.position_similarity(model)
    assert found.shape == (rows, columns, rows, columns)
    for one in range(rows * columns):
        for other in range(rows * columns):
            expected = torch.cosine_similarity(patches[one], patches[other], dim=0).item()
            assert found[one // columns, one % columns, other // columns, other % columns] == pytest.approx(
                expected, abs=1e-4
            )


def test_a_layer_of_its_own():
    model = toy(positions_at="every_layer")
    first, last = (vitrail.inspect.position_similarity(model, layer) for layer in (0, -1))
    assert np.abs(first - last).max() > 0.1
    with pytest.raises(vitrail.UserError, match="no layer 3"):
        vitrail.inspect.position_similarity(model, 3)


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_where_no_place_has_an_embedding_it_says_so(positions):
    with pytest.raises(vitrail.UserError, match=positions):
        vitrail.inspect.position_similarity(toy(positions=positions))


def test_locality_by_hand():
    """Three places in a row; the ends are 2 apart."""
    cosines = np.array([[1.0, 0.8, 0.2], [0.8, 1.0, 0.6], [0.2, 0.6, 1.0]]).reshape(1, 3, 1, 3)
    found = locality(cosines)
    assert found["near"] == pytest.approx(0.7)
    assert found["far"] == pytest.approx(0.2)
    assert [(each["distance"], each["cosine"], each["pairs"]) for each in found["by_distance"]] == [
        (1, pytest.approx(0.7), 4),
        (2, pytest.approx(0.2), 2),
    ]
    assert found["same_row"] == pytest.approx((0.8 * 2 + 0.6 * 2 + 0.2 * 2) / 6, abs=1e-4)
    assert found["same_column"] is None
    assert found["nearest_is_most_similar"] == 1.0


def test_fixed_sine_cosine_positions_are_local_and_random_ones_are_not():
    found = locality(vitrail.inspect.position_similarity(toy(positions="sincos", image_size=64)))
    assert found["near"] > found["far"] + 0.1
    assert found["nearest_is_most_similar"] == 1
    random = locality(vitrail.inspect.position_similarity(toy(image_size=64)))
    assert abs(random["near"] - random["far"]) < 0.1


def test_a_single_patch_has_no_neighbours():
    found = locality(vitrail.inspect.position_similarity(toy(image_size=8)))
    assert found["near"] is None
    assert found["by_distance"] == []
