"""Preprocessing for weights that carry none: by name, or what their format's own code does."""

from typing import Any

from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, ModelConfig, Preprocessing
from vitrail.errors import UserError

NAMED: dict[str, dict[str, Any]] = {
    "imagenet": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "resample": "bicubic", "crop_fraction": 0.9},
    "half": {"mean": (0.5,) * 3, "std": (0.5,) * 3, "resample": "bicubic", "crop_fraction": 0.9},
}
# The official code resizes the whole picture to a square; torchvision's own presets resize to 256 and crop 224.
BY_FORMAT: dict[str, dict[str, Any]] = {
    "google": {**NAMED["half"], "resample": "bilinear", "crop": "squash", "crop_fraction": 1.0},
    "huggingface": {**NAMED["half"], "resample": "bilinear", "crop": "squash", "crop_fraction": 1.0},
    "torchvision": {**NAMED["imagenet"], "resample": "bilinear", "crop_fraction": 0.875},
    "timm": NAMED["imagenet"],
}


def named(name: str, config: ModelConfig) -> Preprocessing:
    if name not in NAMED:
        raise UserError(f"there is no preprocessing {name!r}; there are {', '.join(NAMED)}")
    if config.channels != 3 and name == "imagenet":
        raise UserError(f"preprocessing 'imagenet' is for 3 channels; the model has {config.channels}: give 'half'")
    return _for(NAMED[name], config)


def assumed(format: str, config: ModelConfig) -> tuple[Preprocessing, str]:  # noqa: A002
    """(preprocessing, the note that says so)."""
    facts = BY_FORMAT.get(format, NAMED["half"])
    preprocessing = _for(facts, config)
    note = (
        f"the weights carry no preprocessing; assumed mean {_numbers(preprocessing.mean)}, "
        f"std {_numbers(preprocessing.std)}, {preprocessing.resample}, "
        + ("a plain resize" if preprocessing.crop == "squash" else f"crop fraction {preprocessing.crop_fraction}")
        + " (--preprocessing imagenet or half says otherwise)"
    )
    return preprocessing, note


def _for(facts: dict[str, Any], config: ModelConfig) -> Preprocessing:
    if config.channels != 3:
        facts = {**facts, "mean": (0.5,) * config.channels, "std": (0.5,) * config.channels}
    return Preprocessing(image_size=config.image_size, **facts)


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
