"""The bundle: one folder is the model.

`model.safetensors`, `config.json` and `SHA256SUMS`. timm reads config.json too (`local-dir:BUNDLE`); our own section
`vitrail` holds the ModelConfig, the exact preprocessing, the class names in order, and where the model came from.
"""

from pathlib import Path
from typing import Any

from vitrail.checkpoints import timm
from vitrail.checkpoints.files import check_length, read_tensors, safetensors, write_model_folder
from vitrail.checkpoints.name_maps import Reading
from vitrail.config import ModelConfig
from vitrail.errors import UserError, naming
from vitrail.io.checksums import LARGEST_SUMS, SUMS, digest, sum_line
from vitrail.io.documents import read_json, read_text
from vitrail.io.files import json_text
from vitrail.models.build import Model
from vitrail.models.card import Card
from vitrail.tasks import task, written_format
from vitrail.version import __version__

WEIGHTS, CONFIG = "model.safetensors", "config.json"
"""The names of a bundle's files, besides the list of their checksums."""
_FORMAT = 2
"""The newest bundle format; 1 is read too. Format 2 adds a task, and the constants its answers need. A classification
model is still written in format 1, which earlier versions of this program read as well."""


def save(model: Model, folder: str | Path, overwrite: bool = False) -> Path:
    """Saves a model as a bundle: a folder that `vitrail.load` and timm read. It is written as a whole or not at all.

    Args:
        model: The model; its card gives the preprocessing, the class names and the provenance.
        folder: The folder to write; its parents are created.
        overwrite: Replace `folder` if it exists and holds nothing but a model.

    Returns:
        The path of the bundle.

    Raises:
        UserError: If `folder` exists and may not be replaced, or cannot be written.
    """
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
    """Builds the content of a bundle's config.json: timm's fields, and this program's own in the section `vitrail`."""
    config, card = model.config, model.card
    preprocessing = card.preprocessing_for(config)
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
        "format": written_format(config.task, _FORMAT),
        "version": __version__,
        "model": config.to_json(),
        "preprocessing": preprocessing.to_json(),
        "label_names": list(card.label_names),
        "provenance": card.provenance,
        **({"constants": card.constants} if card.constants else {}),
    }
    return document


def is_bundle(folder: Path) -> bool:
    """Tells whether a folder is a bundle, by its list of checksums."""
    return (folder / SUMS).is_file()


def read_bundle(folder: Path) -> tuple[Reading, Card]:
    """Reads the weights and the card of a bundle, after comparing every file with its SHA-256.

    Raises UserError if a file is missing, changed or damaged, or if the format is newer than this version reads.
    """
    verify(folder)
    document = read_json(folder / CONFIG, finite=False)  # what was measured may be no number
    section = document.get("vitrail")
    if not isinstance(section, dict) or not isinstance(section.get("model"), dict):
        raise UserError(f"{folder / CONFIG}: has no section 'vitrail' with a model; not a bundle")
    if section.get("format") not in (1, _FORMAT):
        raise UserError(
            f"{folder / CONFIG}: bundle format {section.get('format')!r}; this version reads up to {_FORMAT}: upgrade "
            "vitrail"
        )
    with naming(folder / CONFIG):
        config = ModelConfig.from_json(section["model"])
        task(config.task)
        card = Card.from_json({**section, "label_descriptions": document.get("label_descriptions")}, config)
    tensors = read_tensors(folder / WEIGHTS).tensors
    with naming(folder / WEIGHTS):
        return timm.reading_for(config, tensors, "bundle"), card


def verify(folder: Path) -> None:
    """Compares every file of a bundle with its SHA-256. Raises UserError if one is missing, changed or damaged."""
    lines = read_text(folder / SUMS, LARGEST_SUMS).splitlines()
    sums = {name: value for value, _, name in (line.partition("  ") for line in lines)}
    for name in (WEIGHTS, CONFIG):
        if name not in sums:
            raise UserError(f"{folder / SUMS}: does not list {name}; the bundle is damaged")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: is missing; the bundle is incomplete")
        if name == WEIGHTS:
            check_length(folder / name)
        if digest(folder / name) != sums[name]:
            raise UserError(f"{folder / name}: does not match its SHA-256; the file was changed or damaged")
