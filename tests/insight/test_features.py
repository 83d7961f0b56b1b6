"""Patch features: colours by scikit-learn's directions, nearest patches by comparing all."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

import vitrail
from tests.conftest import pictures, toy
from tests.insight.test_attention import KINDS
from vitrail.data.inputs import Prepared
from vitrail.insight.features import as_colours, nearest_patches
from vitrail.models.attention import Recorder


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_features_are_the_patches_after_the_final_norm(fields):
    model = toy(**fields)
    images = pictures(model, batch=3)
    recorder = Recorder("hidden")
    with torch.inference_mode():
        tokens = model.encode(model.embed(images), record=recorder)
    found = vitrail.inspect.patch_features(model, Prepared(images))
    first, shape = model.config.prefix_tokens, (3, *model.config.grid, 32)
    assert found.shape == shape
    assert np.allclose(found, tokens[:, first:].reshape(shape).numpy(), atol=1e-5)
    middle = vitrail.inspect.patch_features(model, Prepared(images), layer=1)
    assert np.allclose(middle, recorder.hidden[1][:, first:].reshape(shape).numpy(), atol=1e-5)


def test_colours_are_the_three_main_directions():
    features = np.random.default_rng(0).normal(size=(2, 5, 6, 20)) * np.linspace(3, 0.1, 20)
    colours, explained = as_colours(features)
    pca = PCA(3, svd_solver="full").fit(features.reshape(-1, 20))
    assert np.allclose(explained, pca.explained_variance_ratio_)
    for band, projected in enumerate(pca.transform(features.reshape(-1, 20)).T):
        ours = colours.reshape(-1, 3)[:, band]
        inside = (ours > 0) & (ours < 1)
        assert inside.mean() > 0.9, "only the outermost are cut off"
        assert abs(np.corrcoef(ours[inside], projected[inside])[0, 1]) == pytest.approx(1)
    assert colours.min() == 0
    assert colours.max() == 1


def test_colours_of_patches_that_are_all_alike_or_very_few():
    assert np.isfinite(as_colours(np.ones((1, 2, 2, 8)))[0]).all()
    assert as_colours(np.random.default_rng(0).normal(size=(1, 1, 2, 8)))[0].shape == (1, 1, 2, 3)


def test_nearest_patches_equal_a_search_through_all():
    features = np.random.default_rng(1).normal(size=(5, 3, 4, 8)).astype(np.float32)
    where, cosines = nearest_patches(features, 2, 1, 3, count=3)
    query = features[2, 1, 3]
    best = []
    for image in (0, 1, 3, 4):
        found = []
        for row in range(3):
            for column in range(4):
                other = features[image, row, column]
                cosine = query @ other / np.linalg.norm(query) / np.linalg.norm(other)
                found.append((cosine, (image, row, column)))
        best.append(max(found))
    best.sort(reverse=True)
    assert [tuple(each) for each in where.tolist()] == [place for _, place in best[:3]]
    assert cosines == pytest.approx([cosine for cosine, _ in best[:3]], abs=1e-5)


def test_in_a_single_image_its_own_other_patches_are_searched():
    features = np.random.default_rng(1).normal(size=(1, 2, 2, 8)).astype(np.float32)
    where, cosines = nearest_patches(features, 0, 1, 0)
    assert len(where) == 3
    assert [0, 1, 0] not in where.tolist()
    assert (np.diff(cosines) <= 0).all()
    assert len(nearest_patches(features[:, :1, :1], 0, 0, 0)[0]) == 0


def test_the_same_patch_in_another_image_is_found():
    """Average pooling has no positions to tell it apart by, if there are none."""
    model = toy(positions="none", class_token=False, pooling="average")
    image = pictures(model, 1)
    images = torch.cat([image, image.roll(8, dims=3)])
    where, cosines = vitrail.inspect.nearest_patches(model, Prepared(images), 0, 1, 1)
    assert where.tolist() == [[1, 1, 2]]
    assert cosines[0] == pytest.approx(1, abs=1e-5)
