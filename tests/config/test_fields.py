"""Every field of every configuration is checked by its annotation, and the message says what would be right."""

import json
import math
from dataclasses import fields

import pytest

from vitrail.config import (
    DataConfig,
    DinoConfig,
    MaeConfig,
    MaskedPatchConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.config.fields import Configuration
from vitrail.errors import UserError

KINDS = [
    DataConfig, DinoConfig, MaeConfig, MaskedPatchConfig, ModelConfig, OptimizerConfig, Preprocessing, ScheduleConfig,
    TransformConfig,
]  # fmt: skip


def some(kind: type[Configuration], /, **values) -> Configuration:
    return kind(**{**({"steps": 1} if kind is TrainConfig else {}), **values})


def every_field() -> list[tuple[type[Configuration], str]]:
    return [(kind, field.name) for kind in [*KINDS, TrainConfig] for field in fields(kind)]


@pytest.mark.parametrize(("kind", "name"), every_field(), ids=lambda value: getattr(value, "__name__", value))
def test_no_field_takes_what_is_of_another_kind_altogether(kind, name):
    """A set is neither a number, a text, a choice nor a tuple."""
    with pytest.raises(UserError, match=rf"\b{name}\b"):
        some(kind, **{name: {"a", "set"}})


@pytest.mark.parametrize(("kind", "values", "said"), [
    (ModelConfig, {"depth": 0}, "depth must be a whole number from 1 to 1000, not 0"),
    (ModelConfig, {"width": 768.0}, "width must be a whole number from 1 to 131072, not 768.0"),
    (ModelConfig, {"registers": True}, "registers must be a whole number from 0 to 16777216, not True"),
    (ModelConfig, {"qkv_bias": 1}, "qkv_bias must be true or false, not 1"),
    (ModelConfig, {"dropout": 1}, "dropout must be at least 0 and below 1, not 1"),
    (ModelConfig, {"norm_eps": 0}, "norm_eps must be above 0 and below 1, not 0"),
    (ModelConfig, {"head_bias": math.nan}, "head_bias must be a number, not nan"),
    (ModelConfig, {"layer_scale": math.inf}, "layer_scale must be a number, not inf"),
    (ModelConfig, {"pooling": "max"}, "pooling is 'max'; choose one of class, average"),
    (ModelConfig, {"positions": ["learned"]}, "positions is ['learned']; choose one of none, learned,"),
    (ModelConfig, {"stages": [3, 0]}, "stages: each of [3, 0] must be a whole number from 1 to 1000, not 0"),
    (ModelConfig, {"image_size": [1, 2, 3]}, "image_size must be one number or two (rows, columns), not [1, 2, 3]"),
    (Preprocessing, {"std": [0]}, "preprocessing: std: each of [0] must be above 0, not 0"),
    (Preprocessing, {"mean": 0.5}, "preprocessing: mean must be numbers, not 0.5"),
    (Preprocessing, {"crop_fraction": 0}, "preprocessing: crop_fraction must be above 0 and at most 1, not 0"),
    (TransformConfig, {"area": (0.5, 2)}, "transform: area must be two numbers, rising, above 0 and at most 1"),
    (TransformConfig, {"flip": -1}, "transform: flip must be at least 0 and at most 1, not -1"),
    (DataConfig, {"max_bad": "half"}, "data: max_bad must be a share such as 0.01 or 1%, not 'half'"),
    (DataConfig, {"train_size": 0}, "data: train_size must be a whole number of at least 1, not 0"),
    (OptimizerConfig, {"betas": (0.9,)}, "optimizer: betas must be 2 numbers, not (0.9,)"),
    (OptimizerConfig, {"lr": "fast"}, "optimizer: lr must be above 0, not 'fast'"),
    (TrainConfig, {"seed": 1.5}, "seed must be a whole number, not 1.5"),
    (TrainConfig, {"device": 0}, "device must be a text, not 0"),
    (TrainConfig, {"model": [1]}, "model must be an object with fields, not [1]"),
])  # fmt: skip
def test_the_message_names_the_field_and_what_would_be_right(kind, values, said):
    with pytest.raises(UserError) as refused:
        some(kind, **values)
    assert said in str(refused.value)


def test_bounds_belong_to_what_is_accepted_unless_said_otherwise():
    assert TransformConfig(flip=1, fill=255, aspect=(2, 3)).aspect == (2.0, 3.0)
    assert ModelConfig(depth=1000).depth == 1000
    assert ModelConfig(dropout=0).dropout == 0
    assert OptimizerConfig(layer_decay=1).layer_decay == 1


@pytest.mark.parametrize("kind", [*KINDS, TrainConfig])
def test_json_gives_back_what_was_written(kind):
    before = some(kind)
    assert kind.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_a_configuration_inside_another_is_read_and_checked_too():
    values = json.loads(json.dumps(TrainConfig(steps=3, model=ModelConfig(depth=2)).to_json()))
    assert TrainConfig.from_json(values).model.depth == 2
    values["model"]["dept"] = 3
    with pytest.raises(UserError, match=r"ModelConfig has no field 'dept'; did you mean depth\?"):
        TrainConfig.from_json(values)


def test_younger_fields_are_left_out_of_json_where_they_have_their_default():
    assert not {"range", "task"} & DataConfig().to_json().keys()
    assert DataConfig(task="regression").to_json()["task"] == "regression"
    assert "task" not in ModelConfig().to_json()
    assert ModelConfig(task="regression").to_json()["task"] == "regression"
    assert TrainConfig(steps=1).to_json()["model"]["task"] == "classification", "a run has always said it"
