"""The bundle: one folder is the model.

`model.safetensors`, `config.json` and `SHA256SUMS`. timm reads config.json too (`local-dir:BUNDLE`); our own section
`vitrail` holds the ModelConfig, the exact preprocessing, the class names in order, and where the model came from.
"""

from pathlib import Path
from typing import Any

from vitrail.checkpoints import timm
from vitrail.checkpoints.files import read_tensors, safetensors, write_model_folder
from vitrail.checkpoints.rules import Reading
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.io.checksums import SUMS, digest, sum_line
from vitrail.io.files import json_text, read_json
from vitrail.models.build import Model
from vitrail.models.card import Card
from vitrail.tasks import DEFAULT, task
from vitrail.version import __version__

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = 2
"""The newest that is read. A model of classes is written in format 1, which earlier versions read too; format 2 has a
task, and the constants its answers need."""


def save(model: Model, folder: str | Path, overwrite: bool = False) -> Path:
    """Write a model as a bundle: all of it, or nothing."""
    folder = Path(folder)
    document = config_document(model)
    tensors = timm.to_timm(model.state_dict(), model.config)

    def fill(temporary: Path) -> None:
        safetensors(tensors)(temporary / WEIGHTS)
        (temporary / CONFIG).write_text(json_text(document), encoding="utf-8")
        sums = "".join(sum_line(temporary / name) for name in (WEIGHTS, CONFIG))
        (temporary / SUMS).write_text(sums, encoding="utf-8")

    write_model_folder(folder, fill, overwrite)
    return folder


def config_document(model: Model) -> dict[str, Any]:
    config, card = model.config, model.card
    preprocessing = card.preprocessing or default_preprocessing(config)
    document: dict[str, Any] = {
        **timm.model_config_json(config),
        "num_classes": config.num_classes,
        "num_features": config.representation_size or config.width,
        "pretrained_cfg": timm.pretrained_config(config, preprocessing),
    }
    if card.label_names:
        document["label_names"] = list(card.label_names)
    if card.label_descriptions:
        document["label_descriptions"] = card.label_descriptions
    document["vitrail"] = {
        "format": 1 if config.task == DEFAULT else FORMAT,
        "version": __version__,
        "model": config.to_json(),
        "preprocessing": preprocessing.to_json(),
        "label_names": list(card.label_names),
        "provenance": card.provenance,
        **({"constants": card.constants} if card.constants else {}),
    }
    return document


def is_bundle(folder: Path) -> bool:
    return (folder / SUMS).is_file()


def read_bundle(folder: Path) -> tuple[Reading, Card]:
    """A bundle's weights and card; any byte that is not as it was written is noticed."""
    verify(folder)
    document = read_json(folder / CONFIG)
    section = document.get("vitrail")
    if not isinstance(section, dict) or not isinstance(section.get("model"), dict):
        raise UserError(f"{folder / CONFIG}: has no section 'vitrail' with a model; not a bundle")
    if section.get("format") not in (1, FORMAT):
        raise UserError(
            f"{folder / CONFIG}: bundle format {section.get('format')!r}, this version reads {FORMAT}; upgrade vitrail"
        )
    config = ModelConfig.from_json(section["model"])
    task(config.task)
    tensors = read_tensors(folder / WEIGHTS).tensors
    reading = timm.reading_for(config, tensors, "bundle")
    try:
        card = Card(
            preprocessing=Preprocessing.from_json(section.get("preprocessing") or {}),
            label_names=tuple(map(str, section.get("label_names") or ())),
            label_descriptions=dict(document.get("label_descriptions") or {}),
            constants=dict(section.get("constants") or {}),
            provenance=dict(section.get("provenance") or {}),
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder / CONFIG}: the section 'vitrail' cannot be read: {error}") from error
    return reading, card


def verify(folder: Path) -> None:
    """Compare every file with its SHA-256."""
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / SUMS}: cannot be read: {error}") from error
    sums = {name: value for value, _, name in (line.partition("  ") for line in lines)}
    for name in (WEIGHTS, CONFIG):
        if name not in sums:
            raise UserError(f"{folder / SUMS}: does not list {name}; the bundle is damaged")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: is missing; the bundle is incomplete")
        if digest(folder / name) != sums[name]:
            raise UserError(f"{folder / name}: does not match its SHA-256; the file was changed or damaged")


def default_preprocessing(config: ModelConfig) -> Preprocessing:
    """For a model that never saw data: pixels to [-1, 1], as the paper has it."""
    half = (0.5,) * config.channels
    return Preprocessing(image_size=config.image_size, mean=half, std=half)
