"""Filters: the principal components that scikit-learn finds, of what is applied to the pixels."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

import vitrail
from tests.conftest import toy
from vitrail.insight.filters import described, filter_pictures
from vitrail.insight.statistics import principal_components


@pytest.mark.parametrize(
    "fields",
    [{"width": 64, "patch_size": 4}, {"width": 32}, {"width": 64, "channels": 1}, {"channels": 5, "patch_size": 4}],
    ids=["more filters than pixels", "fewer", "grey", "five channels"],
)
def test_they_equal_scikit_learns_pca_up_to_sign(fields):
    model = toy(**fields)
    weight = model.patch_embed.proj.weight.detach().double().numpy()
    count = min(28, len(weight) - 1)
    theirs = PCA(count, svd_solver="full").fit(weight.reshape(len(weight), -1))
    tiles, explained = vitrail.inspect.filters(model, count)
    assert tiles.shape == (count, *weight.shape[2:], weight.shape[1])
    ours = tiles.transpose(0, 3, 1, 2).reshape(count, -1)
    signs = np.sign((ours * theirs.components_).sum(axis=1, keepdims=True))
    assert np.abs(ours * signs - theirs.components_).max() <= 1e-6
    assert np.abs(explained - theirs.explained_variance_ratio_).max() <= 1e-9


def test_there_are_28_as_in_the_paper_or_as_many_as_there_can_be():
    assert len(vitrail.inspect.filters(toy()).tiles) == 28
    assert len(vitrail.inspect.filters(toy(patch_size=2, channels=1, image_size=8)).tiles) == 4


def test_the_sign_does_not_depend_on_the_library():
    directions, _ = principal_components(np.random.default_rng(0).normal(size=(40, 6)), 6)
    largest = np.abs(directions).argmax(axis=1)
    assert (directions[np.arange(6), largest] > 0).all()
    assert np.allclose(directions @ directions.T, np.eye(6))


def test_of_a_hybrid_they_are_the_stems_first_convolution_as_applied():
    for stages in ((1,), ()):
        model = toy(stages=stages, stem_width=32, patch_size=1, image_size=16)
        root = model.patch_embed.backbone.stem if stages else model.patch_embed.backbone
        applied = root.conv.standardized().detach().double().numpy().reshape(32, -1)
        tiles, explained = vitrail.inspect.filters(model)
        assert tiles.shape == (28, 7, 7, 3)
        assert np.allclose(explained, PCA(28, svd_solver="full").fit(applied).explained_variance_ratio_, atol=1e-6)
        assert "stem" in described(model)
    assert "patch projection (8 x 8" in described(toy())


def test_of_a_plain_stem_they_are_its_first_convolution():
    model = toy(stem="plain", stages=(1,), stem_width=32, patch_size=1, image_size=16)
    stored = model.patch_embed.backbone[0].conv.weight.detach().double().numpy().reshape(32, -1)
    tiles, explained = vitrail.inspect.filters(model, 20)
    assert tiles.shape == (20, 3, 3, 3)
    assert np.allclose(explained, PCA(20, svd_solver="full").fit(stored).explained_variance_ratio_, atol=1e-6)
    assert described(model) == "the stem's first convolution (3 x 3 pixels)"


def test_filters_that_are_all_alike_have_no_components_and_no_nan():
    model = toy()
    model.patch_embed.proj.weight.data.fill_(0.5)
    _, explained = vitrail.inspect.filters(model)
    assert np.isfinite(explained).all()


def test_as_pictures_grey_means_no_response():
    tiles = np.zeros((2, 3, 3, 3))
    tiles[1, 0, 0] = [1, -1, 0.5]
    shown = filter_pictures(tiles)
    assert set(np.unique(shown[0])) == {128}
    assert shown[1, 0, 0].tolist() == [255, 0, 191]
    assert filter_pictures(np.ones((1, 2, 2, 1))).shape == (1, 2, 2, 3)
    assert filter_pictures(np.ones((1, 2, 2, 7))).shape == (1, 2, 2, 3)
