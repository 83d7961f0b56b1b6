"""The search for the fastest within a loss: what it keeps holds, and speed chooses among that."""

import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from tests.conftest import pictures, toy
from tests.inference.conftest import picture
from vitrail import UserError
from vitrail.inference.accuracy_drop import Drop, estimate_drop
from vitrail.inference.compare import CheckSet
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.search import Candidate, Workshop, merge_steps, most_merged, search
from vitrail.models.sizes import config_for


def loss(bound: float, tests: int = 2) -> Drop:
    expected = bound / 2
    return Drop(500, 500, expected, bound / 4, bound, expected, 0.5, 0.95, tests, 1.0, 0.5, calibrated=True)


class World:
    """A model whose bound grows by `per_patch` points a merged patch and by `by_int8` in 8 bits; both are faster."""

    def __init__(self, per_patch: float = 0.1, by_int8: float = 0.2):
        self.per_patch, self.by_int8 = per_patch, by_int8
        self.asked: list[Candidate] = []
        self.timed: list[Candidate] = []
        self.engine_speed = {"torch": 1.0, "onnxruntime": 1.1, "openvino": 1.05}
        self.surprise: dict[Candidate, float] = {}
        self.tests: set[int] = set()

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        self.asked.append(candidate)
        self.tests.add(tests)
        return loss(self.surprise.get(candidate, self.bound(candidate)), tests)

    def bound(self, candidate: Candidate) -> float:
        return self.per_patch * candidate.merge_tokens + self.by_int8 * candidate.int8

    def speedups(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        self.timed += candidates
        return {
            each: self.engine_speed[each.engine] * (1 + 0.05 * each.merge_tokens) * (1.6 if each.int8 else 1.0)
            for each in candidates
        }


ALL = ("torch", "onnxruntime", "openvino")


@pytest.mark.parametrize("max_drop", [0.0, 0.15, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize(("per_patch", "by_int8"), [(0.1, 0.2), (0.3, 0.0), (0.05, 2.0), (0.0, 0.0)])
def test_it_finds_what_trying_every_step_would(max_drop, per_patch, by_int8):
    world = World(per_patch, by_int8)
    found = search(world, engines=ALL, most=16, max_drop=max_drop)
    every = [Candidate(engine, r) for engine in ALL for r in merge_steps(16)]
    every += [Candidate("onnxruntime", r, int8=True) for r in merge_steps(16)]
    allowed = [each for each in every if loss(world.bound(each)).within(max_drop)]
    assert found.chosen.speedup == max(world.speedups(allowed).values())
    assert found.chosen.drop.within(max_drop)
    assert world.tests == {2}, "two rows are judged, each at half the risk"


def test_a_row_ends_at_its_first_failure_however_lucky_the_next_would_be():
    world = World(per_patch=0.1, by_int8=0.0)
    world.surprise = {Candidate("onnxruntime", 3, int8=True): 2.0}  # 4, 6, 8 and 10 would be within the limit again
    found = search(world, engines=("onnxruntime",), most=16, max_drop=1.0)
    assert found.chosen.candidate == Candidate("onnxruntime", 2, int8=True)
    assert max(each.merge_tokens for each in world.asked if each.int8) == 3
    assert [trial.candidate for trial in found.trials] == world.asked


def test_only_what_was_kept_is_timed_and_little_is_asked():
    world = World()
    search(world, engines=("onnxruntime",), most=16, max_drop=1.0)
    assert len(world.asked) == len(set(world.asked)) <= 17
    assert all(world.bound(each) <= 1.0 for each in world.timed)


def test_nothing_within_the_limit_says_what_would_help():
    world = World(by_int8=9.0)
    world.surprise = {Candidate("onnxruntime"): 4.0}
    with pytest.raises(UserError, match=r"--max-drop 1 .*at most 4.00 points lost with 95% confidence"):
        search(world, engines=("onnxruntime",), most=16, max_drop=1.0)


def test_int8_can_be_left_out_and_a_model_that_cannot_merge_is_searched_too():
    world = World()
    assert search(world, engines=ALL, most=0, max_drop=1.0).chosen.candidate == Candidate("onnxruntime", int8=True)
    world.tests.clear()
    found = search(world, engines=ALL, most=0, max_drop=1.0, int8=False)
    assert found.chosen.candidate == Candidate("onnxruntime")
    assert world.tests == {1}


@pytest.mark.parametrize(
    ("most", "steps"), [(0, [0]), (3, [0, 1, 2, 3]), (7, [0, 1, 2, 3, 4, 6, 7]), (8, [0, 1, 2, 3, 4, 6, 8])]
)
def test_the_steps_of_merging(most, steps):
    assert merge_steps(most) == steps


def test_how_many_patches_can_go():
    assert most_merged(config_for("B/16")) == 16  # 12 layers leave 4 of 196
    assert most_merged(config_for("R50+B/16")) == 0
    assert most_merged(config_for("BiT-R50x1")) == 0


def test_the_workshop_makes_and_judges_real_candidates(model, exported, tmp_path):
    shutil.copy(exported, tmp_path / "r0.onnx")  # what it would make first
    images = pictures(model, 12).numpy()
    labels = TorchEngine(model).outputs(images).argmax(axis=1)
    labels[0] = (labels[0] + 1) % 7
    parts = [slice(0, 5), slice(5, 10), slice(10, 12)]
    workshop = Workshop(model, tmp_path, [(images[part], labels[part]) for part in parts], batch_size=5)
    found = search(workshop, engines=("onnxruntime",), most=1, max_drop=100.0)
    assert found.chosen.candidate.engine == "onnxruntime"
    candidates = [trial.candidate for trial in found.trials]
    assert candidates == [Candidate("onnxruntime", r, int8) for int8 in (False, True) for r in (0, 1)]
    both = workshop.engine(Candidate("onnxruntime", 1, int8=True))
    assert both.facts.changes == {"merge_tokens": 1, "int8": "dynamic"}
    assert str(Candidate("onnxruntime", 1, int8=True)) == "onnxruntime, int8, 1 patch merged a layer"
    plain = TorchEngine(model).outputs(images)
    for trial in found.trials:
        after = np.concatenate([workshop.engine(trial.candidate).outputs(images[part]) for part in parts])
        expected = estimate_drop(plain, after, labels, tests=2)
        assert trial.drop.bound == pytest.approx(expected.bound, abs=1e-3)


def test_the_workshop_needs_images(model, tmp_path):
    with pytest.raises(UserError, match="not one could be read"):
        Workshop(model, tmp_path, []).drop(Candidate("torch"), 1)


def test_a_check_set_is_all_of_a_folder_that_was_not_trained_on(model, photos):
    facts = ExportMetadata.of(model.config, model.card)
    checked = CheckSet(facts, str(photos), batch_size=4)
    for _ in range(2):  # it may be gone through again
        labels = np.concatenate([labels for _, labels in checked])
        assert sorted(labels.tolist()) == sorted(place % 3 for place in range(12) if place not in (4, 7))
    assert checked.skipped == 2
    assert "measured on all" in checked.note
    assert all(images.dtype == np.float32 and images.shape[1:] == (3, 32, 32) for images, _ in checked)
    with pytest.raises(UserError, match="class names"):
        CheckSet(ExportMetadata.of(toy(depth=1).config, toy(depth=1).card), str(photos))


def test_pictures_without_labels_join_the_check_set(model, photos, tmp_path):
    (tmp_path / "more").mkdir()
    for place in range(3):
        picture(place).save(tmp_path / "more" / f"{place}.png")
    (tmp_path / "more" / "broken.png").write_bytes(b"no picture")
    facts = ExportMetadata.of(model.config, model.card)
    checked = CheckSet(facts, str(photos), unlabelled=[str(tmp_path / "more")], batch_size=2)
    labels = np.concatenate([labels for _, labels in checked])
    assert (labels < 0).sum() == 3
    assert (labels[:-3] >= 0).all()
