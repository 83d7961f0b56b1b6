"""What an exported model says of itself: one JSON text inside the file, read back with suspicion and without torch."""

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.models.card import Card
from vitrail.tasks import DEFAULT, Meaning, task
from vitrail.version import __version__

KEY = "vitrail"
"""Under which the text stands in an ONNX file's metadata and in OpenVINO's rt_info."""
FORMAT = 2
"""The newest that is read; a model of classes is written in format 1, which has no task and no constants."""
_LARGEST = 64 << 20


@dataclass(frozen=True)
class Facts:
    """What has to be known to turn pictures into a model's inputs, and its outputs into words."""

    config: ModelConfig
    preprocessing: Preprocessing
    label_names: tuple[str, ...] = ()
    label_descriptions: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """What export did besides translating, such as int8 or merged tokens."""

    @classmethod
    def of(cls, config: ModelConfig, card: Card, **changes: Any) -> "Facts":
        """Of a model in memory; one that never saw data gets pixels in [-1, 1], as a bundle does."""
        half = (0.5,) * config.channels
        preprocessing = card.preprocessing or Preprocessing(image_size=config.image_size, mean=half, std=half)
        names, words = card.label_names, card.label_descriptions
        return cls(config, preprocessing, names, words, card.constants, card.provenance, changes)

    @property
    def output(self) -> str:
        """The name of the output that answers are made of."""
        return task(self.config.task).answer.output

    @property
    def features_width(self) -> int:
        if self.config.family == "resnet":
            return self.config.stem_width * 4 * 2 ** (len(self.config.stages or ()) - 1)
        return self.config.representation_size or self.config.width

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, rows, columns) of one picture."""
        return (len(self.preprocessing.mean), *self.preprocessing.rows_columns)

    def label(self, index: int) -> tuple[str, str]:
        """Gives an output's name and description; its number where it has no name."""
        return self.meaning.named(index)

    @property
    def meaning(self) -> Meaning:
        """What the model's outputs mean."""
        return Meaning(self.label_names, self.label_descriptions, self.constants)

    def to_text(self) -> str:
        document = {
            "format": 1 if self.config.task == DEFAULT else FORMAT,
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
    def from_text(cls, path: Path, text: str | None) -> "Facts":
        if not text:
            raise UserError(
                f"{path}: does not say how its images are prepared and what its classes are called; "
                "make the file with vitrail export"
            )
        try:
            document = json.loads(text)
            if not isinstance(document, dict) or document.get("format") not in (1, FORMAT):
                raise UserError(f"{path}: its facts are of a format this version cannot read; upgrade vitrail")
            facts = cls(
                ModelConfig.from_json(document["model"]),
                Preprocessing.from_json(document["preprocessing"]),
                tuple(map(str, document.get("label_names") or ())),
                {str(name): str(words) for name, words in (document.get("label_descriptions") or {}).items()},
                dict(document.get("constants") or {}),
                dict(document.get("provenance") or {}),
                dict(document.get("changes") or {}),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: the facts in it cannot be read: {error}") from error
        task(facts.config.task)
        if facts.label_names and len(facts.label_names) != facts.config.num_classes:
            count = len(facts.label_names)
            raise UserError(f"{path}: names {count} classes, but its model has {facts.config.num_classes}")
        if facts.input_shape != (facts.config.channels, *facts.config.rows_columns):
            raise UserError(f"{path}: prepares images of {facts.input_shape}, but its model takes others")
        return facts


def read_onnx_facts(path: Path) -> Facts:
    """The facts of an .onnx file, by skipping through its outermost layer: neither onnx nor a runtime is needed."""
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
    return Facts.from_text(path, text)


def _fields(file: BinaryIO, end: int, wanted: int) -> list[bytes]:
    """The contents of one length-delimited field of a protocol buffer; all others are passed over."""
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
    """A StringStringEntryProto."""
    parts = [_fields(io.BytesIO(entry), len(entry), wanted=number) for number in (1, 2)]
    return (parts[0] or [b""])[-1], (parts[1] or [b""])[-1]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise EOFError("it ends in the middle of a number")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("a number is longer than ten bytes")
