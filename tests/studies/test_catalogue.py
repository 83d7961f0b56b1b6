"""The studies' grids are the paper's, and what they conclude follows from the numbers: other numbers, other words."""

import json

import pytest
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.data import open_data
from vitrail.errors import UserError
from vitrail.models.cost import cost
from vitrail.studies.catalogue import STUDIES, describe, study
from vitrail.studies.runner import run
from vitrail.studies.study import Outcome, Result
from vitrail.studies.vtab import GROUPS, group_means, group_of, vtab


def outcome(chosen, accuracy) -> Outcome:
    """Results as `accuracy(factors)` says, a little different for each seed."""
    results = [
        Result(row.factors, row.config.seed, accuracy(row.factors) + 0.001 * row.config.seed, 1.0, 10, 1, 1.0, 1, 0.1)
        for row in chosen.rows
        if row.measured
    ]
    return Outcome(tuple(results))


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_study_is_laid_out_drawn_and_concluded(name):
    for quick in (True, False):
        chosen = study(name, quick=quick)
        made = outcome(chosen, lambda factors: 0.5)
        assert len({row.config.seed for row in chosen.rows}) == (2 if quick else 3)
        assert chosen.conclude(made)
        from vitrail.drawing.plots import LIGHT

        assert chosen.draw(made, LIGHT).startswith(b"\x89PNG")
        assert chosen.conclude(Outcome(made.results[:1])) is not None  # a study that has hardly begun
    assert describe(name).endswith(".")


def test_data_size_models_are_of_like_cost():
    costs = {row.factors["model"]: cost(row.config.model).macs for row in study("data-size").rows}
    assert set(costs) == {"ViT", "hybrid", "ResNet"}
    assert max(costs.values()) / min(costs.values()) < 1.15


def test_models_have_the_classes_and_channels_of_the_data(tmp_path):
    for label in ("one", "two", "three"):
        for split in ("train", "test"):
            (tmp_path / "photos" / split / label).mkdir(parents=True)
            Image.new("RGB", (8, 8), "red").save(tmp_path / "photos" / split / label / "photo.png")
    models = {row.config.model for row in study("pooling", str(tmp_path / "photos"), quick=True).rows}
    assert {(model.num_classes, model.channels) for model in models} == {(3, 3)}


def test_data_size_says_what_the_numbers_say():
    chosen = study("data-size")

    def as_in_the_paper(factors):
        many = factors["training images"] > 2000
        return {"ViT": 0.9 if many else 0.4, "ResNet": 0.8 if many else 0.6, "hybrid": 0.7}[factors["model"]]

    said = " ".join(chosen.conclude(outcome(chosen, as_in_the_paper)))
    assert said.count("so that holds") == 2
    said = " ".join(chosen.conclude(outcome(chosen, lambda factors: 0.9 if factors["model"] == "ResNet" else 0.5)))
    assert "below the ResNet, so that holds" in said
    assert "does not show: this is far from 300 million images" in said


def test_positions_is_table_8():
    chosen = study("positions")
    grid = {(row.config.model.positions, row.config.model.positions_at) for row in chosen.rows}
    assert {("none", "stem"), ("relative", "stem")} < grid
    for kind in ("learned", "learned_2d"):
        assert {(kind, place) for place in ("stem", "every_layer", "every_layer_shared")} < grid
    said = " ".join(chosen.conclude(outcome(chosen, lambda factors: 0.5 if factors["positions"] == "none" else 0.8)))
    assert "below 8 of 8, so that holds" in said
    said = " ".join(chosen.conclude(outcome(chosen, lambda factors: 0.8)))
    assert "below 0 of 8, so that does not hold" in said


def test_pooling_compares_each_at_its_best_rate():
    chosen = study("pooling")

    def peaks(factors):
        best = 3e-3 if factors["pooling"] == "average" else 1e-3
        return 0.9 if factors["learning rate"] == best else 0.6

    said = " ".join(chosen.conclude(outcome(chosen, peaks)))
    assert "level with the class token here, so that holds" in said
    assert "different, so that holds" in said
    same = " ".join(chosen.conclude(outcome(chosen, lambda factors: 0.9 if factors["learning rate"] == 1e-3 else 0.6)))
    assert "does not show" in same


def test_self_supervision_starts_from_rows_of_its_own_and_scratch_is_treated_fairly():
    chosen = study("self-supervised")
    for row in chosen.rows:
        if row.measured and row.factors["pre-training"] != "from scratch":
            assert row.start is not None
            assert row.start.config.seed == row.config.seed
            assert row.start.factors["pre-training"] == row.factors["pre-training"]
        elif row.measured:
            assert row.start is None
            assert row.config.optimizer.layer_decay == 1
    order = {"from scratch": 0.5, "masked patches": 0.6, "masked autoencoder": 0.7, "supervised": 0.8}
    said = " ".join(chosen.conclude(outcome(chosen, lambda factors: order[factors["pre-training"]])))
    assert "so that order holds" in said
    assert "masked autoencoder: 70.1% ± 0.1% against 50.1% ± 0.1% with 50 labels (above scratch)" in said


def test_an_unknown_study_and_wrong_numbers_are_refused():
    with pytest.raises(UserError, match="did you mean 'positions'"):
        study("position")
    with pytest.raises(UserError, match="--seeds"):
        study("positions", seeds=0)
    with pytest.raises(UserError, match="--tasks"):
        vtab("model", ())


def test_vtab_has_19_tasks_in_three_groups():
    assert {name: len(tasks) for name, tasks in GROUPS.items()} == {"natural": 7, "specialised": 4, "structured": 8}
    spelled = {"Caltech101": "natural", "sNORB-Azim": "structured", "dSpr-Loc": "structured", "EuroSAT": "specialised"}
    assert {task: group_of(task) for task in spelled} == spelled
    assert group_of("my-photos") == "other"


def test_vtab_trains_on_800_and_chooses_on_200(tmp_path):
    model = toy(image_size=16, channels=1, num_classes=3)
    model.card.preprocessing = Preprocessing(image_size=16, mean=(0.5,), std=(0.5,))
    vitrail.save(model, tmp_path / "model")
    chosen = vtab(str(tmp_path / "model"), ("digits", "mnist5k"), seeds=1, steps=2, batch_size=8, image_size=16)
    for row in chosen.rows:
        source = open_data(row.config.data)
        assert {name: len(split) for name, split in source.splits.items() if name != "test"} == {
            "train": 800,
            "val": 200,
        }
    ended = run(chosen, tmp_path / "out", 2, lambda line: None)
    assert not ended.failed
    assert [each.n for each in ended.results] == [180, 500]
    mean, count = group_means(ended)["other"]
    assert count == 2
    assert mean == pytest.approx(sum(each.top1 for each in ended.results) / 2)
    assert json.loads((tmp_path / "out" / "study.json").read_text())["study"] == "vtab"
