"""The studies' grids are the paper's, and what they conclude follows from the numbers: other numbers, other words."""

import json
import math
import re
import shutil
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import randomised, toy
from vitrail.config import Preprocessing
from vitrail.data import open_data
from vitrail.drawing.plots import LIGHT
from vitrail.errors import UserError
from vitrail.models.cost import cost
from vitrail.studies.catalogue import STUDIES, describe_study, study
from vitrail.studies.comparison import compare
from vitrail.studies.setting import Setting
from vitrail.studies.study import RowResult, StudyOutcome, conclusion
from vitrail.studies.vtab import GROUPS, group_means, group_of, vtab


def outcome(chosen, accuracy) -> StudyOutcome:
    """Results as `accuracy(factors)` says, a little different for each seed, and for each point in another order."""

    def result(row):
        seed = row.config.seed
        chance = 0.001 * ((seed + zlib.crc32(json.dumps(row.factors).encode())) % 3)
        return RowResult(row.factors, seed, accuracy(row.factors) + chance, 1.0, 1_000_000, 1, 1.0, 1, 0.1)

    return StudyOutcome(tuple(result(row) for row in chosen.rows if row.measured))


def said_of(chosen, made: StudyOutcome) -> list[str]:
    return chosen.conclude(made, compare(chosen.contrasts(made)))


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_is_laid_out_drawn_and_concluded(name):
    for quick in (True, False):
        chosen = study(name, quick=quick)
        made = outcome(chosen, lambda factors: 0.5)
        assert len({row.config.seed for row in chosen.rows}) == (2 if quick else 3)
        assert said_of(chosen, made)
        assert chosen.draw(made, LIGHT).startswith(b"\x89PNG")
        assert said_of(chosen, StudyOutcome(made.results[:1])) is not None  # a study that has hardly begun
    assert describe_study(name).endswith(".")


def test_data_size_models_are_of_like_cost():
    costs = {row.factors["model"]: cost(row.config.model).macs for row in study("data-size").rows}
    assert set(costs) == {"ViT", "hybrid", "ResNet"}
    assert max(costs.values()) / min(costs.values()) < 1.15


@pytest.fixture
def photos(tmp_path) -> str:
    """A folder of colour pictures, three classes: 120 to train on, 3 to validate on and 3 to test."""
    for label in ("one", "two", "three"):
        for split, count in (("train", 40), ("val", 1), ("test", 1)):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (4, 4), "red").save(tmp_path / split / label / f"{number}.png")
    return str(tmp_path)


@pytest.mark.parametrize("name", list(STUDIES))
def test_the_last_weights_are_measured_on_the_test_split_whatever_the_data_has(photos, name):
    for row in study(name, photos, quick=True, seeds=1).rows:
        assert set(open_data(row.config.data).splits) == {"train", "test"}


def test_data_without_a_test_split_are_refused(photos):
    shutil.rmtree(Path(photos) / "test")
    with pytest.raises(UserError, match="has no test split, and a study measures on one; call its val split test"):
        study("pooling", photos)


def test_other_samples_are_another_study(photos):
    before = study("pooling", photos).fingerprint
    assert study("pooling", photos).fingerprint == before
    (Path(photos) / "train" / "one" / "0.png").unlink()
    assert study("pooling", photos).fingerprint != before


def test_models_have_the_classes_and_channels_of_the_data(photos):
    models = {row.config.model for row in study("pooling", photos, quick=True).rows}
    assert {(model.num_classes, model.channels) for model in models} == {(3, 3)}


def test_data_size_says_what_the_numbers_say():
    chosen = study("data-size")

    def as_in_the_paper(factors):
        many = factors["training images"] > 2000
        return {"ViT": 0.9 if many else 0.4, "ResNet": 0.8 if many else 0.6, "hybrid": 0.7}[factors["model"]]

    said = " ".join(said_of(chosen, outcome(chosen, as_in_the_paper)))
    assert said.count("so that holds") == 2
    assert re.search(r"the hybrid is above it at 2 of 3 sizes \(.*\), so that does not hold\.", said)
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.9 if factors["model"] == "ResNet" else 0.5)))
    assert re.search(r"below the ResNet here, -40.0 points \[-40.\d, -39.\d\], so that holds", said)
    assert "does not hold; this is far from 300 million images" in said
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.4 if factors["model"] == "ViT" else 0.5)))
    assert re.search(r"the hybrid is above it at 3 of 3 sizes \(.*\), so that holds\.", said)


def test_positions_is_table_8():
    chosen = study("positions")
    grid = {(row.config.model.positions, row.config.model.positions_at) for row in chosen.rows}
    assert {("none", "stem"), ("relative", "stem")} < grid
    for kind in ("learned", "learned_2d"):
        assert {(kind, place) for place in ("stem", "every_layer", "every_layer_shared")} < grid
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.5 if factors["positions"] == "none" else 0.8)))
    assert re.search(r"8 of 8 are above none .*, so that holds\. It finds .* so that holds", said)
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.8)))
    assert re.search(r"0 of 8 are above none .*, so that cannot be told", said)
    sure = StudyOutcome(
        tuple(replace(each, top1=round(each.top1, 2)) for each in outcome(chosen, lambda _: 0.8).results)
    )
    said = " ".join(said_of(chosen, sure))
    assert re.search(r"0 of 8 are above none .*, so that does not hold\. It finds .* so that holds", said)


def test_pooling_compares_each_at_its_best_rate():
    chosen = study("pooling")

    def peaks(factors):
        best = 3e-3 if factors["pooling"] == "average" else 1e-3
        return 0.9 if factors["learning rate"] == best else 0.6

    some = outcome(chosen, peaks)
    said = " ".join(said_of(chosen, some))
    assert re.search(r"not told apart from the class token here, [+-]0.\d points .*, so that cannot be told", said)
    assert "is 0.001 for the class token and 0.003 for the average, so that holds" in said
    sure = " ".join(said_of(chosen, StudyOutcome(tuple(replace(e, top1=round(e.top1, 2)) for e in some.results))))
    assert re.search(r"within a point of the class token here, [+-]0.0 points .*, so that holds", sure)
    same = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.9 if factors["learning rate"] == 1e-3 else 0.6)))
    assert "is 0.001 for the class token and 0.001 for the average, so that does not hold" in same
    close = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.9 + 0.0001 * peaks(factors))))
    assert close.count("0.0003 or 0.001 or 0.003 or 0.01 for the") == 2, "a difference within the spread is none"
    assert close.count("so that cannot be told") == 2
    fewer = StudyOutcome(tuple(each for each in some.results if each.factors["learning rate"] != 1e-2))
    assert "different learning rates" not in " ".join(said_of(chosen, fewer)), "the missing one might be the best"


def test_shape_weighs_what_is_gained_against_its_cost():
    chosen = study("shape")
    assert {row.factors["varied"] for row in chosen.rows} == {"nothing", "depth", "width", "patch size"}

    def steady(depth, width, patch):
        by = {"depth": depth, "width": width, "patch size": patch, "nothing": 0.0}
        middle = next(float(row.factors["megaMACs"]) for row in chosen.rows if row.factors["varied"] == "nothing")

        def accuracy(factors):
            return 0.6 + by[factors["varied"]] * math.log2(factors["megaMACs"] / middle)

        return accuracy

    def gaining(*by):
        return " ".join(said_of(chosen, outcome(chosen, steady(*by))))

    said = gaining(0.09, 0.01, 0.05)
    assert "depth: " in said
    assert "+9.0 points for each doubling of the computation" in said
    assert re.search(r"differs by depth beside patch size \+4.\d points \[\+.*, so that holds", said)
    assert "so that does not hold here" in gaining(0.01, 0.09, 0.05)
    alike = gaining(0.03, 0.03, 0.03)
    assert alike.count("within a point") == 3, "each costs another multiple, and all gain alike"
    assert "so that does not hold here" in alike
    wide = StudyOutcome(
        tuple(
            replace(each, top1=each.top1 + 0.3 * (each.seed - 1)) if each.factors["model"] == "patch size 4" else each
            for each in outcome(chosen, steady(0.09, 0.01, 0.05)).results
        )
    )
    said = " ".join(said_of(chosen, wide))
    assert re.search(r"depth beside width \+8.\d points \[\+\d.\d, \+\d+.\d\], told apart", said), "one hides no other"
    assert "so that cannot be told here" in said
    some = outcome(chosen, lambda factors: 0.5)
    fewer = StudyOutcome(tuple(each for each in some.results if each.factors["model"] != "depth 8"))
    assert "paper" not in " ".join(said_of(chosen, fewer)), "half of an axis is not ranked"


def test_compute_sets_each_beside_the_resnet_of_nearest_cost():
    chosen = study("compute")
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.6 if factors["model"] == "ResNet" else 0.7)))
    assert "Of 3 ViT sizes, beside the ResNet of nearest cost: 3 above it" in said
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: 0.6)))
    assert "Of 3 hybrid sizes, beside the ResNet of nearest cost: 3 within a point of it" in said


@pytest.mark.parametrize("name", list(STUDIES))
def test_one_seed_tells_nothing_apart(name):
    chosen = study(name, seeds=1)
    made = outcome(chosen, lambda factors: 0.5 + 0.001 * (zlib.crc32(json.dumps(factors).encode()) % 400))
    said = " ".join(said_of(chosen, made))
    assert "(one seed)" in said
    assert not re.search("so that (order )?(holds|does not hold)|that holds|[1-9] (above|below) it", said)
    assert not re.search(r"\[|within a point of", said), "nobody knows"
    assert "One seed says nothing of the chance of training" in conclusion(chosen, made)[-1]


@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(list(STUDIES)), kept=st.sets(st.integers(0, 80), max_size=40), seeds=st.integers(1, 3))
def test_whatever_fails_the_rest_is_concluded_and_drawn(name, kept, seeds):
    chosen = laid_out(name, seeds)
    whole = outcome(chosen, lambda factors: 0.5)
    some = StudyOutcome(tuple(each for place, each in enumerate(whole.results) if place in kept))
    said = conclusion(chosen, some)
    if some.results:
        assert chosen.draw(some, LIGHT).startswith(b"\x89PNG")
        missing = len(whole.results) - len(some.results)
        assert said[0].startswith(f"{missing} of {len(whole.results)} results are missing")
    else:
        assert said == []


@cache
def laid_out(name, seeds):
    return study(name, quick=True, seeds=seeds)


def test_learning_without_labels_takes_the_colours_and_the_size_of_other_data(photos):
    for row in study("self-supervised", photos, quick=True).rows:
        assert (row.config.model.channels, row.config.model.rows_columns) == (3, (32, 32))
        assert row.config.transform.flip == 0.5
        assert row.config.preprocessing.mean == (0.5, 0.5, 0.5)
        assert row.factors["labels"] in ("none", 100), "there are not 500"
    for row in study("self-supervised", quick=True).rows:
        assert (row.config.model.channels, row.config.transform.flip) == (1, 0.0)


def test_self_supervision_starts_from_rows_of_its_own_and_scratch_is_treated_fairly():
    chosen = study("self-supervised")
    for row in chosen.rows:
        if row.measured and row.factors["pre-training"] != "from scratch":
            assert row.start is not None
            assert row.start.config.seed == row.config.seed
            assert row.start.factors["pre-training"] == row.factors["pre-training"]
        elif row.measured:
            assert row.start is None
    tuned = {}
    for row in chosen.rows:
        if row.measured:
            tuned.setdefault((row.factors["labels"], row.config.seed), set()).add(row.config)
    assert all(len(configs) == 1 for configs in tuned.values()), "the training after it is one and the same"
    order = {"from scratch": 0.5, "masked patches": 0.6, "masked autoencoder": 0.7, "supervised": 0.8}
    said = " ".join(said_of(chosen, outcome(chosen, lambda factors: order[factors["pre-training"]])))
    assert "so that order holds" in said
    assert "masked autoencoder: 70.1% ± 0.1% against 50.1% ± 0.1% with 50 labels (above scratch, +20.0 points [" in said


def test_an_unknown_study_and_wrong_numbers_are_refused():
    with pytest.raises(UserError, match="did you mean 'positions'"):
        study("position")
    with pytest.raises(UserError, match="--tasks"):
        vtab("model", ())


def test_vtab_has_19_tasks_in_three_groups():
    assert {name: len(tasks) for name, tasks in GROUPS.items()} == {"natural": 7, "specialised": 4, "structured": 8}
    spelled = {"Caltech101": "natural", "sNORB-Azim": "structured", "dSpr-Loc": "structured", "EuroSAT": "specialised"}
    assert {task: group_of(task) for task in spelled} == spelled
    long = {
        "oxford_flowers102": "natural",
        "patch_camelyon": "specialised",
        "smallnorb_label_azimuth": "structured",
        "clevr_closest_object_distance": "structured",
        "kitti_closest_vehicle_distance": "structured",
        "dsprites_label_x_position": "structured",
        "dsprites_label_orientation": "structured",
    }
    assert {task: group_of(task) for task in long} == long
    assert group_of("my-photos") == "other"


def test_vtab_trains_on_800_and_chooses_on_200(tmp_path):
    model = toy(image_size=16, channels=1, num_classes=3)
    model.card.preprocessing = Preprocessing(image_size=16, mean=(0.5,), std=(0.5,))
    vitrail.save(model, tmp_path / "model")
    for row in vtab(str(tmp_path / "model"), ("digits", "mnist5k"), seeds=1, image_size=16).rows:
        source = open_data(row.config.data)
        assert {name: len(split) for name, split in source.splits.items() if name != "test"} == {
            "train": 800,
            "val": 200,
        }


def test_vtab_takes_sizes_that_the_models_own_patches_fit(tmp_path):
    model = toy(image_size=16, patch_size=2, channels=1, num_classes=3)
    vitrail.save(model, tmp_path / "model")
    rows = vtab(str(tmp_path / "model"), ("digits",), seeds=1, image_size=10).rows
    assert rows[0].config.model.rows_columns == (10, 10)
    with pytest.raises(UserError, match="cannot be cut into patches of 2 x 2"):
        vtab(str(tmp_path / "model"), ("digits",), image_size=9)


def test_vtab_of_other_weights_is_another_study(tmp_path):
    made = []
    for seed in (0, 1):
        vitrail.save(randomised(toy(image_size=16, channels=1), seed), tmp_path / "model", overwrite=True)
        made.append(vtab(str(tmp_path / "model"), ("digits",), image_size=16))
    assert made[0].rows == made[1].rows
    assert made[0].fingerprint != made[1].fingerprint


def test_vtab_means_are_over_tasks():
    made = StudyOutcome(
        tuple(
            RowResult({"task": task, "group": group_of(task)}, seed, top1, 1.0, 10, 1, 1.0, 1, 0.1)
            for task, seed, top1 in (("dtd", 0, 0.2), ("dtd", 1, 0.4), ("svhn", 0, 0.9), ("mine", 0, 0.5))
        )
    )
    means = group_means(made)
    assert means["natural"] == (pytest.approx(0.6), 2), "a task counts once, however many seeds it has"
    assert means["other"] == (pytest.approx(0.5), 1)


def test_a_row_sees_as_many_images_as_its_study_says():
    setting = Setting.of("digits", quick=True, seeds=2)
    found = setting.config(setting.model(), seed=1, samples=6_400)
    assert found.steps * found.batch_size == 6_400
    assert (found.seed, found.schedule.warmup_steps) == (1, found.steps // 10)
    assert (found.data.val_fraction, found.data.val_size) == (0.0, 0)


def test_compute_is_counted_as_three_forward_passes_of_two_operations():
    """Forward, and twice that backward; a multiply-add is two operations."""
    chosen = study("compute", source="digits", quick=True, seeds=2)
    said = conclusion(chosen, outcome(chosen, lambda factors: 0.5))
    rows = [row for row in chosen.rows if row.factors["model"] == "ViT" and row.config.seed == 0]
    told = next(sentence for sentence in said if sentence.startswith("ViT: "))
    found = [float(each.replace(",", "")) for each in re.findall(r"at ([\d.,]+) teraFLOPs", told)]
    images = rows[0].config.steps * rows[0].config.batch_size
    spent = [3 * 2 * cost(row.config.model).macs * images / 1e12 for row in rows]
    assert found == pytest.approx(spent, rel=0.01)
