"""Class names: read from a file (JSON as in timm, a JSON list or object, or one name on each line), or ImageNet's.

imagenet-classes.txt has the 1000 classes of the ImageNet challenge in order, one on each line: its WordNet id and
WordNet's first words for it. WordNet 3.0 Copyright 2006 by Princeton University; its licence is in WORDNET-LICENSE.
"""

from importlib import resources
from pathlib import Path

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.io.documents import parse_json, read_text
from vitrail.models.card import Card

IMAGENET_CLASSES = 1000
"""A model with as many classes and no names for them is taken to have ImageNet's classes."""
IMAGENET_NOTE = (
    "the weights have 1000 outputs and no class names; ImageNet's classes are assumed (--labels FILE gives others)"
)


def attach_labels(card: Card, path: Path, config: ModelConfig) -> None:
    """Reads class names, and descriptions if the file has them, and puts them on a model's card.

    Raises UserError if the file cannot be read, repeats a name, or has another number of names than the model classes.
    """
    names, descriptions = _parse(path, read_text(path))
    if len(names) != config.num_classes:
        raise UserError(f"{path}: has {len(names)} labels, the model {config.num_classes} classes")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: has the label {twice!r} twice; every class needs a name of its own")
    card.label_names, card.label_descriptions = tuple(names), descriptions


def attach_imagenet(card: Card, config: ModelConfig) -> None:
    """Gives a model of 1000 unnamed classes the class names of ImageNet, and notes this assumption on its card."""
    if config.num_classes != IMAGENET_CLASSES or card.label_names:
        return
    text = resources.files("vitrail.checkpoints").joinpath("imagenet-classes.txt").read_text("utf-8")
    descriptions = dict(line.split(" ", 1) for line in text.splitlines())
    card.label_names, card.label_descriptions = tuple(descriptions), descriptions
    card.notes.append(IMAGENET_NOTE)


def _parse(path: Path, text: str) -> tuple[list[str], dict[str, str]]:
    """Parses the text of a labels file to the names in order and the descriptions by name."""
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.splitlines() if line.strip()], {}
    document = parse_json(text, path)
    if isinstance(document, dict) and "label_names" in document:
        names, descriptions = document["label_names"], document.get("label_descriptions") or {}
    elif isinstance(document, dict):  # {"0": "tench", ...}, or {"n01440764": "tench", ...}
        numbered = all(key.isdigit() for key in document)
        names = [document[key] for key in sorted(document, key=int)] if numbered else list(document)
        descriptions = {} if numbered else document
    else:
        names, descriptions = document, {}
    if isinstance(descriptions, list) and isinstance(names, list):
        descriptions = dict(zip(names, descriptions, strict=False))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: label_names must be a list of strings")
    if not isinstance(descriptions, dict):
        raise UserError(f"{path}: label_descriptions must map names to text")
    return names, {str(name): str(text) for name, text in descriptions.items()}
