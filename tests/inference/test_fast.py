"""The search for the fastest within a loss: it finds it, and asks little."""

import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from tests.conftest import pictures, toy
from vitrail import UserError
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.fast import PLAIN, Candidate, Workshop, check_batches, largest, most_merged, search
from vitrail.models.sizes import config_for


class World:
    """A model that loses `per_patch` points a merged patch and `by_int8` in 8 bits; both make it faster."""

    def __init__(self, per_patch: float = 0.1, by_int8: float = 0.2, plain: float = 0.8):
        self.per_patch, self.by_int8, self.plain = per_patch, by_int8, plain
        self.asked: list[Candidate] = []
        self.timed: list[Candidate] = []
        self.engine_speed = {"torch": 1.0, "onnxruntime": 1.1, "openvino": 1.05}
        self.surprise: dict[Candidate, float] = {}

    def accuracy(self, candidate: Candidate) -> float:
        self.asked.append(candidate)
        lost = self.per_patch * candidate.merge_tokens + self.by_int8 * candidate.int8
        return self.surprise.get(candidate, self.plain - lost / 100)

    def speedups(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        self.timed += candidates
        return {
            each: self.engine_speed[each.engine] * (1 + 0.05 * each.merge_tokens) * (1.6 if each.int8 else 1.0)
            for each in candidates
        }


ALL = ("torch", "onnxruntime", "openvino")


@pytest.mark.parametrize("max_drop", [0.0, 0.15, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize(("per_patch", "by_int8"), [(0.1, 0.2), (0.3, 0.0), (0.05, 2.0), (0.0, 0.0)])
def test_it_finds_what_trying_everything_would(max_drop, per_patch, by_int8):
    world = World(per_patch, by_int8)
    found = search(world, engines=ALL, most=16, max_drop=max_drop)
    every = [Candidate(engine, r) for engine in ALL for r in range(17)]
    every += [Candidate("onnxruntime", r, int8=True) for r in range(17)]
    allowed = [each for each in every if 100 * (world.plain - world.accuracy(each)) <= max_drop + 1e-9]
    speeds = world.speedups(allowed)
    assert found.chosen.speedup == max(speeds.values())
    assert found.drop <= max_drop + 1e-9
    assert found.plain.top1 == world.plain


def test_it_asks_little_and_times_only_what_stays_within():
    world = World()
    found = search(world, engines=("onnxruntime",), most=16, max_drop=1.0)
    assert found.chosen.candidate == Candidate("onnxruntime", 8, int8=True)
    assert len(world.asked) == len(set(world.asked)) <= 14
    exported = {each for each in world.asked if each.engine != "torch"}
    assert len(exported) <= 7, "each is an export"
    assert all(0.1 * each.merge_tokens + 0.2 * each.int8 <= 1.0 for each in world.timed)
    assert {trial.candidate for trial in found.trials} == set(world.asked)


def test_a_winner_that_is_worse_than_thought_gives_way():
    world = World(by_int8=9.0)
    world.surprise[Candidate("openvino", 10)] = 0.5
    world.engine_speed["openvino"] = 3.0
    found = search(world, engines=ALL, most=16, max_drop=1.0)
    assert found.chosen.candidate == Candidate("openvino", 0)
    world.surprise |= {Candidate(engine, r): 0.5 for engine in ("openvino", "onnxruntime") for r in (0, 10)}
    with pytest.raises(UserError, match=r"onnxruntime.*--max-drop 1"):
        search(world, engines=("onnxruntime",), most=16, max_drop=1.0)


def test_int8_can_be_left_out_and_a_model_that_cannot_merge_is_searched_too():
    world = World()
    assert search(world, engines=ALL, most=0, max_drop=1.0).chosen.candidate == Candidate("onnxruntime", int8=True)
    found = search(world, engines=ALL, most=0, max_drop=1.0, int8=False)
    assert found.chosen.candidate == Candidate("onnxruntime")


@pytest.mark.parametrize("limit", range(10))
def test_the_largest_that_fits_is_found_by_halving(limit):
    asked = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert largest(fits, 9) == limit
    assert len(asked) <= 5
    assert 0 not in asked


def test_how_many_patches_can_go():
    assert most_merged(config_for("B/16")) == 16  # 12 layers leave 4 of 196
    assert most_merged(config_for("R50+B/16")) == 0
    assert most_merged(config_for("BiT-R50x1")) == 0


def test_the_workshop_makes_and_judges_real_candidates(model, exported, tmp_path):
    shutil.copy(exported, tmp_path / "r0.onnx")  # what it would make first
    images = pictures(model, 12).numpy()
    labels = TorchEngine(model).logits(images).argmax(axis=1)
    labels[0] = (labels[0] + 1) % 7
    parts = [slice(0, 5), slice(5, 10), slice(10, 12)]
    workshop = Workshop(model, tmp_path, lambda: ((images[part], labels[part]) for part in parts), batch_size=5)
    assert workshop.accuracy(PLAIN) == 11 / 12
    found = search(workshop, engines=("onnxruntime",), most=1, max_drop=100.0)
    assert found.chosen.candidate.engine == "onnxruntime"
    assert {trial.candidate for trial in found.trials} >= {PLAIN, Candidate("onnxruntime", 1, int8=True)}
    both = workshop.engine(Candidate("onnxruntime", 1, int8=True))
    assert both.facts.changes == {"merge_tokens": 1, "int8": "dynamic"}
    assert str(Candidate("onnxruntime", 1, int8=True)) == "onnxruntime, int8, 1 patches merged a layer"


def test_the_workshop_needs_images(model, tmp_path):
    with pytest.raises(UserError, match="not one could be read"):
        Workshop(model, tmp_path, list).accuracy(PLAIN)


def test_a_check_batches_is_a_split_with_the_models_numbers(model, photos):
    batches = check_batches(model, str(photos), split="all", batch_size=4)
    labels = np.concatenate([labels for _, labels in batches()])
    assert sorted(labels.tolist()) == sorted(place % 3 for place in range(12) if place not in (4, 7))
    assert all(images.dtype == np.float32 and images.shape[1:] == (3, 32, 32) for images, _ in batches())
    with pytest.raises(UserError, match="class names"):
        check_batches(toy(depth=1), str(photos))
