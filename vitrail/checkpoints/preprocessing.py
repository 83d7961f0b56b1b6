"""Preprocessing for weights that state none: given by the flag --preprocessing, or assumed from their format."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from vitrail.checkpoints.formats import FORMATS, weights_format
from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, ModelConfig, Preprocessing
from vitrail.errors import UserError

# The fields of Preprocessing that a name given to --preprocessing means.
NAMED: dict[str, dict[str, Any]] = {
    "imagenet": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "resample": "bicubic", "crop_fraction": 0.9},
    "half": {"mean": (0.5,) * 3, "std": (0.5,) * 3, "resample": "bicubic", "crop_fraction": 0.9},
}
SQUASHED: Mapping[str, Any] = MappingProxyType(
    {**NAMED["half"], "resample": "bilinear", "crop": "squash", "crop_fraction": 1.0}
)
"""The preprocessing of Google's code and of Hugging Face's ViT: the whole picture is resized to a square."""
FIELDS = ("mean", "std", "crop", "crop_fraction", "resample", "range")
"""The fields of Preprocessing that --preprocessing can set."""


def requested(text: str, config: ModelConfig, own: Preprocessing) -> Preprocessing:
    """Parses the value of --preprocessing.

    Args:
        text: A name (`half`), fields that replace those of the model's own preprocessing
            (`crop_fraction=0.875,mean=0.48:0.46:0.41`, `range=0:4095`, `range=dtype`), or a name and fields
            that replace those of the name (`imagenet,crop=squash,resample=bilinear`).
        config: The model: its number of channels and its image size.
        own: The model's own preprocessing.

    Raises:
        UserError: If a name or field is unknown, or a value does not fit its field.
    """
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
    """Parses "name=value" to the field's name and its value in the field's type; one number serves all channels."""
    name, _, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if name not in FIELDS or not value:
        raise UserError(f"--preprocessing: {text!r} is not FIELD=VALUE with one of the fields {', '.join(FIELDS)}")
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
    """Returns the preprocessing to assume for weights of this format that state none, and the note that says so."""
    facts = weights_format(format).preprocessing if format in FORMATS else {}
    preprocessing = _for(facts or NAMED["half"], config)
    return preprocessing, f"the weights carry no preprocessing; assumed {as_words(preprocessing)}"


def as_words(preprocessing: Preprocessing) -> str:
    """Describes a preprocessing in words, with the flag that changes it."""
    crop = "a plain resize" if preprocessing.crop == "squash" else f"crop fraction {preprocessing.crop_fraction}"
    return f"{normalised(preprocessing)}, {preprocessing.resample}, {crop} (--preprocessing changes it)"


def normalised(preprocessing: Preprocessing) -> str:
    """Formats mean and std: "mean 0.5 0.5 0.5, std 0.5 0.5 0.5"."""
    mean, std = (" ".join(f"{value:g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    return f"mean {mean}, std {std}"


def _for(facts: Mapping[str, Any], config: ModelConfig) -> Preprocessing:
    """Makes a Preprocessing of the given fields at the model's image size; mean and std are one half unless the model
    has 3 channels."""
    if config.channels != 3:
        facts = {**facts, "mean": (0.5,) * config.channels, "std": (0.5,) * config.channels}
    return Preprocessing(image_size=config.image_size, **facts)
