"""What the paper found, in the real DeiT-Ti/16 weights on real photos. Needs the folder VITRAIL_ASSETS names."""

import numpy as np
import pytest

import vitrail
from vitrail.insight.attention_distance import attention_distance
from vitrail.insight.explained_score import ExplainedScore
from vitrail.insight.findings import examine
from vitrail.insight.images import Images
from vitrail.insight.occlusion import Windows, occlusion
from vitrail.insight.rollout import gradient_rollout, rollout
from vitrail.insight.statistics import rank_correlation

pytestmark = pytest.mark.assets


@pytest.fixture(scope="module")
def model(assets):
    return vitrail.load(assets / "deit-ti16.safetensors", labels=assets / "imagenet-labels.json")


@pytest.fixture(scope="module")
def numbers(model, assets):
    """As numbers.json has them, over 24 photos of 24 classes; occlusion is left for the slow test."""
    return examine(model, assets / "imagenet-sample", limit=24, occlusion_images=0).to_json()


def test_positions_are_more_similar_near_than_far(numbers):
    found = numbers["position_similarity"]
    assert found["near"] > 0.9
    assert found["far"] < 0
    cosines = [each["cosine"] for each in found["by_distance"][:7]]
    assert cosines == sorted(cosines, reverse=True), "falling with distance"
    assert found["nearest_is_most_similar"] == 1
    assert min(found["same_row"], found["same_column"]) > found["elsewhere"] + 0.3, "rows and columns stand out"


def test_some_heads_of_the_first_layers_are_global_and_some_local(numbers):
    found = numbers["attention_distance"]
    assert found["early_layers"] == 3
    assert found["early_global_share"] == pytest.approx(2 / 9, abs=1e-3)
    assert found["early_local_share"] == pytest.approx(3 / 9, abs=1e-3)
    early = np.array(found["mean"][:3])
    assert early.max() > 3 * early.min()


def test_the_mean_distance_grows_with_depth(numbers):
    found = numbers["attention_distance"]
    assert found["depth_correlation"] > 0.9
    by_layer = found["by_layer"]
    assert np.mean(by_layer[6:]) > 1.4 * np.mean(by_layer[:6])
    assert min(min(layer) for layer in found["mean"][9:]) > found["global_from"], "in the end all heads are global"


def test_the_filters_explain_much_with_few_components(numbers):
    """28 of 192 directions would hold 15 % if the filters were noise."""
    assert numbers["filters"]["explained_together"] > 0.4


@pytest.mark.slow
def test_24_photos_tell_what_other_24_tell(model, assets):
    files = sorted((assets / "imagenet-sample").glob("*/*"))
    first, second = (attention_distance(model, Images(model, files[start::20][:24])).mean for start in (0, 7))
    assert np.abs(first - second).max() < 12
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.97


@pytest.mark.slow
def test_gradient_rollout_agrees_with_occlusion_more_than_plain_rollout_does(model, assets):
    """Which maps can be believed, asked of 24 photos: both agree weakly, the one that knows the class more."""
    images = Images(model, assets / "imagenet-sample", 24)
    plain = rollout(model, images)
    agreement = []
    for index in range(len(images)):
        image = images.tensor(index)
        question = ExplainedScore(model, image)
        hidden = occlusion(model, image, question, Windows(3, 2))
        weighted = gradient_rollout(model, image, question)
        agreement.append([rank_correlation(each, hidden) for each in (plain[index], weighted)])
    means = np.mean(agreement, axis=0)
    print("plain and gradient-weighted against occlusion:", means)
    assert means[1] > max(means[0], 0.1)
