"""Class names from a file (JSON as timm has it, a JSON list or object, or one name a line), and those of ImageNet.

imagenet-classes.txt has the 1000 classes of ImageNet's challenge in order: the WordNet id of each, and WordNet's first
words for it. WordNet 3.0 Copyright 2006 by Princeton University; its licence stands in WORDNET-LICENSE.
"""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.card import Card

IMAGENET_CLASSES = 1000
IMAGENET_NOTE = (
    "the weights have 1000 outputs and no class names; taken to be ImageNet's classes (--labels FILE says otherwise)"
)


def attach_labels(card: Card, path: Path, config: ModelConfig) -> None:
    """Read names (and descriptions, where the file has them) and put them on the card."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the labels cannot be read: {error}") from error
    names, descriptions = _parse(path, text)
    if len(names) != config.num_classes:
        raise UserError(f"{path}: has {len(names)} labels, the model {config.num_classes} classes")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: the label {twice!r} stands there twice; names must tell classes apart")
    card.label_names, card.label_descriptions = tuple(names), descriptions


def attach_imagenet(card: Card, config: ModelConfig) -> None:
    """Name the classes of weights that have as many as ImageNet and no names, and say so."""
    if config.num_classes != IMAGENET_CLASSES or card.label_names:
        return
    text = resources.files("vitrail.checkpoints").joinpath("imagenet-classes.txt").read_text("utf-8")
    descriptions = dict(line.split(" ", 1) for line in text.splitlines())
    card.label_names, card.label_descriptions = tuple(descriptions), descriptions
    card.notes.append(IMAGENET_NOTE)


def _parse(path: Path, text: str) -> tuple[list[str], dict[str, str]]:
    if path.suffix.lower() != ".json":
        return [line.strip() for line in text.splitlines() if line.strip()], {}
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
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
