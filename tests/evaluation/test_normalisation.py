"""Mean and std of weights that carry none: a planted difference is found either way round, and none is made up."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.data import Split
from vitrail.evaluation import normalisation
from vitrail.evaluation.normalisation import by_features, by_head, chance, choose_normalisation, sample

CPU = torch.device("cpu")
HALF = Preprocessing(image_size=4, crop="squash")
IMAGENET = replace(HALF, mean=IMAGENET_MEAN, std=IMAGENET_STD)


class Planted(nn.Module):
    """Its features show the brightness of a picture between the levels that lie at -1 and 1 once a picture is prepared
    as the model wants it, and nothing beyond: prepared otherwise, the classes look alike."""

    def __init__(self, trained_with: Preprocessing, level: float):
        super().__init__()
        mean, std = torch.tensor(trained_with.mean), torch.tensor(trained_with.std)
        self.wanted = ((level - mean) / std)[None, :]

    def features(self, images: Tensor) -> Tensor:
        seen = 200 * (images.mean(dim=(2, 3)) - self.wanted)
        return torch.cat([seen.clamp(-1, 1), images.std(dim=(2, 3))], dim=1)

    head_input = features

    def forward(self, images: Tensor) -> Tensor:
        score = self.features(images)[:, :3].mean(dim=1)
        return torch.stack([-score, score], dim=1)


def pictures(count: int, levels: tuple[float, float], seed: int = 0) -> Split:
    """Two classes of noisy grey, a little darker and a little brighter."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    bright = np.array(levels)[labels][:, None, None, None] + generator.normal(0, 0.04, (count, 4, 4, 3))
    return Split.of_array("train", (255 * bright.clip(0, 1)).round().astype(np.uint8), labels)


@pytest.mark.parametrize("judged", ["features", "head"])
@pytest.mark.parametrize("right", [HALF, IMAGENET])
@pytest.mark.parametrize("assumed", [HALF, IMAGENET])
def test_a_planted_difference_is_found_whatever_was_assumed(judged, right, assumed):
    model: nn.Module = Planted(right, 0.6)
    judge = by_features(model, CPU) if judged == "features" else by_head(model, None, CPU)
    images = sample(pictures(80, (0.58, 0.62)))
    chosen, line = choose_normalisation(assumed, images, judge, workers=0)
    assert chosen == right
    numbers = "0.5 0.5 0.5" if right == HALF else "0.485 0.456 0.406"
    assert line.startswith("the weights carry no preprocessing; tried both usual ones on 80 training images: ")
    assert f"took mean {numbers}" in line
    assert " right, mean error " in line


@pytest.mark.parametrize("assumed", [HALF, IMAGENET])
def test_what_cannot_be_told_stays_as_it_was(assumed):
    """Labels that have nothing to do with the pictures: neither candidate is better."""
    images = sample(pictures(80, (0.6, 0.6)))
    chosen, line = choose_normalisation(assumed, images, by_features(Planted(HALF, 0.6), CPU), workers=0)
    assert chosen == assumed
    assert "the difference may be chance; assumed mean " in line
    assert line.count(" gives ") == line.count(" right, mean error ") == 2
    assert "--preprocessing" in line


def test_too_few_of_a_class_are_not_tried():
    images = sample(pictures(7, (0.5, 0.7)))
    assert len(images) == 0, "three of a class cannot be left out one by one"
    chosen, line = choose_normalisation(IMAGENET, images, by_features(Planted(HALF, 0.6), CPU))
    assert chosen == IMAGENET
    assert "nothing tells it; assumed mean 0.485" in line


def test_grey_models_have_one_candidate():
    grey = Preprocessing(image_size=4, mean=(0.5,), std=(0.5,))
    assert choose_normalisation(grey, pictures(80, (0.5, 0.7)), by_head(nn.Identity(), None, CPU))[0] == grey


def test_classes_are_matched_before_the_head_is_judged():
    images = sample(pictures(80, (0.58, 0.62)))
    turned = np.array([1, 0])
    model = Planted(HALF, 0.6)
    right = by_head(model, turned, CPU)
    loader = normalisation.EvaluationLoader(images, HALF, batch_size=32, workers=0)
    assert float(right(loader)[0].double().mean()) < 0.1
    assert float(by_head(model, None, CPU)(loader)[0].double().mean()) > 0.9


def test_chance_counts_the_tosses_that_go_as_far():
    differences = torch.tensor([3.0, 1.0, 2.0, -1.0, 2.5, 0.5, 1.5, 0.2])
    sums = [abs(sum(s * d for s, d in zip(signs, differences.tolist(), strict=True)))
            for signs in itertools.product((-1, 1), repeat=8)]  # fmt: skip
    exact = sum(each >= float(differences.sum()) - 1e-9 for each in sums) / len(sums)
    assert chance(differences) == pytest.approx(exact, abs=0.01)
    assert chance(torch.zeros(5)) == 1


def test_the_sample_has_some_of_each_class_or_any_with_a_label():
    labels = np.repeat([0, 1, 2, -1], [600, 30, 3, 50])
    split = Split.of_array("train", np.zeros((len(labels), 4, 4, 3), np.uint8), labels)
    found = sample(split)
    assert np.bincount(found.labels).tolist() == [128, 30], "one class is too small to be left out one by one"
    free = sample(split, few_of_each=False)
    assert len(free) == normalisation.SAMPLES
    assert free.labels.min() >= 0
    many = Split.of_array("train", np.zeros((2000, 4, 4, 3), np.uint8), np.arange(2000) % 200)
    counts = np.bincount(sample(many).labels)
    assert sorted(set(counts.tolist())) == [0, 4]
    assert counts.sum() == normalisation.SAMPLES
