"""Preprocessing for weights that carry none: by name, by field, or what their format's own code does."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from vitrail.checkpoints.formats import FORMATS, weights_format
from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, ModelConfig, Preprocessing
from vitrail.errors import UserError

NAMED: dict[str, dict[str, Any]] = {
    "imagenet": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "resample": "bicubic", "crop_fraction": 0.9},
    "half": {"mean": (0.5,) * 3, "std": (0.5,) * 3, "resample": "bicubic", "crop_fraction": 0.9},
}
SQUASHED: Mapping[str, Any] = MappingProxyType(
    {**NAMED["half"], "resample": "bilinear", "crop": "squash", "crop_fraction": 1.0}
)
"""As the official code does it: the whole picture is resized to a square."""
FIELDS = ("mean", "std", "crop", "crop_fraction", "resample", "range")


def asked(text: str, config: ModelConfig, own: Preprocessing) -> Preprocessing:
    """A name, fields in place of the model's own, or of a name's: `half`, `crop_fraction=0.875,mean=0.48:0.46:0.41`,
    `imagenet,crop=squash,resample=bilinear`, `range=0:4095`, `range=dtype`."""
    first, *rest = text.split(",")
    if "=" in first:
        rest = [first, *rest]
    else:
        own = _named(first.strip(), config)
    given = dict(_field(each, config) for each in rest)
    if len(given) < len(rest):
        raise UserError(f"--preprocessing {text}: names a field twice")
    try:
        return replace(own, **given)
    except UserError as error:
        raise UserError(f"--{error}") from error


def _named(name: str, config: ModelConfig) -> Preprocessing:
    if name not in NAMED:
        known = f"{', '.join(NAMED)}, and fields such as crop_fraction=0.875"
        raise UserError(f"--preprocessing: there is no {name!r}; there are {known}")
    if config.channels != 3 and name == "imagenet":
        raise UserError(f"--preprocessing imagenet is for 3 channels; the model has {config.channels}: give half")
    return _for(NAMED[name], config)


def _field(text: str, config: ModelConfig) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if name not in FIELDS or not value:
        raise UserError(f"--preprocessing: {text!r} is no field with its value; there are {', '.join(FIELDS)}")
    if name in ("crop", "resample"):
        return name, value
    if name == "range" and value == "dtype":
        return name, None
    try:
        numbers = [float(each) for each in value.split(":")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"--preprocessing: {text!r} must be numbers, with colons between those of several channels")
    if name == "range":
        return name, tuple(numbers)
    wanted = 1 if name == "crop_fraction" else config.channels
    if len(numbers) not in (1, wanted):
        raise UserError(f"--preprocessing: {text!r} has {len(numbers)} numbers, and {wanted} are needed")
    return name, numbers[0] if name == "crop_fraction" else tuple(numbers * (wanted // len(numbers)))


def assumed(format: str, config: ModelConfig) -> tuple[Preprocessing, str]:  # noqa: A002
    """(preprocessing, the note that says so)."""
    facts = weights_format(format).preprocessing if format in FORMATS else {}
    preprocessing = _for(facts or NAMED["half"], config)
    return preprocessing, f"the weights carry no preprocessing; assumed {words(preprocessing)}"


def words(preprocessing: Preprocessing) -> str:
    """What was assumed or chosen, and how to say otherwise."""
    crop = "a plain resize" if preprocessing.crop == "squash" else f"crop fraction {preprocessing.crop_fraction}"
    return f"{normalised(preprocessing)}, {preprocessing.resample}, {crop} (--preprocessing says otherwise)"


def normalised(preprocessing: Preprocessing) -> str:
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    return f"mean {mean}, std {std}"


def _for(facts: Mapping[str, Any], config: ModelConfig) -> Preprocessing:
    if config.channels != 3:
        facts = {**facts, "mean": (0.5,) * config.channels, "std": (0.5,) * config.channels}
    return Preprocessing(image_size=config.image_size, **facts)
