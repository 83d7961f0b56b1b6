"""Reads and writes what an exported file says of its model: one JSON text, which is checked, and read without torch."""

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError, naming
from vitrail.io.documents import parse_json
from vitrail.models.card import Card
from vitrail.tasks import Meaning, task, written_format
from vitrail.version import __version__

KEY = "vitrail"
"""The key of the text in an ONNX file's metadata and in OpenVINO's rt_info."""
_FORMAT = 2
"""The newest format that can be read. Models for classification are written in format 1, which has no task and no
constants."""
_LARGEST = 64 << 20
"""The largest text that is read, in bytes."""


@dataclass(frozen=True)
class ExportMetadata:
    """All that is needed to prepare pictures for a model and to put its outputs into words."""

    config: ModelConfig
    preprocessing: Preprocessing
    label_names: tuple[str, ...] = ()
    label_descriptions: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """What was changed in the model at export, such as int8 or merged tokens."""

    @classmethod
    def of(cls, config: ModelConfig, card: Card, **changes: Any) -> "ExportMetadata":
        """Returns the facts of a model in memory. Without preprocessing on its card, pixels are scaled to [-1, 1], as
        in a bundle."""
        preprocessing = card.preprocessing_for(config)
        names, words = card.label_names, card.label_descriptions
        return cls(config, preprocessing, names, words, card.constants, card.provenance, changes)

    @property
    def output(self) -> str:
        """Returns the name of the output that the task's answers are made of."""
        return task(self.config.task).answer.output

    @property
    def features_width(self) -> int:
        """Returns the number of features of one picture."""
        if self.config.family == "resnet":
            return self.config.stem_width * 4 * 2 ** (len(self.config.stages or ()) - 1)
        return self.config.representation_size or self.config.width

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Returns (channels, rows, columns) of one prepared picture."""
        return (len(self.preprocessing.mean), *self.preprocessing.rows_columns)

    def label(self, index: int) -> tuple[str, str]:
        """Returns the name and description of the class at `index`; its number if it has no name."""
        return self.meaning.named(index)

    @property
    def meaning(self) -> Meaning:
        """Returns what the model's outputs mean."""
        return Meaning(self.label_names, self.label_descriptions, self.constants)

    def to_text(self) -> str:
        """Returns the facts as the JSON text that is written into a file."""
        document = {
            "format": written_format(self.config.task, _FORMAT),
            "version": __version__,
            "model": self.config.to_json(),
            "preprocessing": self.preprocessing.to_json(),
            "label_names": list(self.label_names),
            "label_descriptions": self.label_descriptions,
            **({"constants": self.constants} if self.constants else {}),
            "provenance": self.provenance,
            "changes": self.changes,
        }
        return json.dumps(document, ensure_ascii=False, default=str)

    @classmethod
    def from_text(cls, path: Path, text: str | None) -> "ExportMetadata":
        """Reads the facts from the text in the file `path`; raises a UserError if they are missing, damaged or
        contradictory."""
        if not text:
            raise UserError(
                f"{path}: does not say how its images are prepared and what its classes are called; "
                "make the file with vitrail export"
            )
        document = parse_json(text, f"{path}: the facts in it", finite=False)  # a metric may be NaN
        if not isinstance(document, dict) or document.get("format") not in (1, _FORMAT):
            raise UserError(f"{path}: its facts are of a format this version cannot read; upgrade vitrail")
        changes = document.get("changes") or {}
        with naming(f"{path}: the facts in it cannot be read"):
            if not isinstance(changes, dict):
                raise UserError("changes must be an object")
            config = ModelConfig.from_json(document.get("model"))
            task(config.task)
            facts = replace(cls.of(config, Card.from_json(document, config)), changes=changes)
        if facts.input_shape != (facts.config.channels, *facts.config.rows_columns):
            raise UserError(f"{path}: prepares images of {facts.input_shape}, but its model takes others")
        return facts


def read_onnx_facts(path: Path) -> ExportMetadata:
    """Reads the facts from an .onnx file, without onnx or a runtime.

    Only the outermost fields of the file are visited; the weights are skipped. Raises a UserError if the file is
    damaged or has no facts.
    """
    text = None
    try:
        with path.open("rb") as file:
            for entry in _fields(file, path.stat().st_size, wanted=14):  # ModelProto.metadata_props
                key, value = _pair(entry)
                if key == KEY.encode():
                    text = value.decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: damaged or not an ONNX file ({error})") from error
    return ExportMetadata.from_text(path, text)


def _fields(file: BinaryIO, end: int, wanted: int) -> list[bytes]:
    """Returns the contents of one length-delimited field of a protocol buffer, and skips all other fields."""
    found = []
    while file.tell() < end:
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _varint(file)
        elif kind in (1, 5):
            file.seek(8 if kind == 1 else 4, 1)
        elif kind == 2:
            length = _varint(file)
            if length > end - file.tell():
                raise ValueError("a part is longer than the file")
            if number == wanted and length <= _LARGEST:
                found.append(file.read(length))
            else:
                file.seek(length, 1)
        else:
            raise ValueError(f"a field of kind {kind}")
    return found


def _pair(entry: bytes) -> tuple[bytes, bytes]:
    """Reads the key and the value of a StringStringEntryProto."""
    parts = [_fields(io.BytesIO(entry), len(entry), wanted=number) for number in (1, 2)]
    return (parts[0] or [b""])[-1], (parts[1] or [b""])[-1]


def _varint(file: BinaryIO) -> int:
    """Reads a number as protocol buffers store it, seven bits in a byte."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise EOFError("it ends in the middle of a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("a number is longer than ten bytes")
