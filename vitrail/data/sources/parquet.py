"""Parquet with an image column: bytes, or the {bytes, path} that Hugging Face writes."""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.base import UNLABELLED, Source, Split, SplitRule, finish
from vitrail.data.sources.classes import labels_by_name, numbered_classes
from vitrail.data.sources.listing import read_class_names
from vitrail.data.sources.splits import files_by_split
from vitrail.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_NAMES = ("image", "img", "images", "jpg", "jpeg", "png", "picture", "photo", "content")
LABEL_NAMES = ("label", "labels", "fine_label", "class", "cls", "target", "category", "class_name", "y")
CACHE_BYTES = 2 << 30
"""Row groups are kept in memory up to this size: a data set below it is read from disk once."""


@dataclass
class ParquetReader:
    """Random access to an image column. Parquet is read by the row group, so the latest groups are kept."""

    files: tuple[str, ...]
    column: str
    members: np.ndarray  # [samples]: which file
    groups: np.ndarray  # [samples]: which of its row groups
    places: np.ndarray  # [samples]: where in it
    _cache: OrderedDict = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self, row: int) -> bytes:
        import pyarrow as pa

        try:
            value = self._group(row)[int(self.places[row])].as_py()
        except (OSError, pa.ArrowException) as error:
            raise BadImage(f"cannot be read from its parquet file: {error}") from error
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise BadImage("has no bytes in the image column")
        return content

    def size(self, row: int) -> int:
        value = self._group(row)[int(self.places[row])]
        content = (value["bytes"] if hasattr(value, "keys") else value).as_buffer()
        return 0 if content is None else content.size

    def _group(self, row: int) -> Any:
        import pyarrow.parquet as parquet

        key = int(self.members[row]), int(self.groups[row])
        with self._lock:
            if key not in self._cache:
                with parquet.ParquetFile(self.files[key[0]]) as file:
                    # Chunks stay as they are: joining them would overflow 32-bit offsets beyond 2 GB.
                    self._cache[key] = file.read_row_group(key[1], columns=[self.column]).column(0)
                while len(self._cache) > 1 and sum(group.nbytes for group in self._cache.values()) > CACHE_BYTES:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(key)
            return self._cache[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_lock": threading.Lock()})


def open_parquet(name: str, files: list[Path], root: Path, rule: SplitRule) -> Source:
    """Parquet files; the split is told by their names, such as train-00000-of-00001.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    groups = files_by_split(name, files, root)
    image_column, label_column, names = "", "", None
    raw: dict[str, list[Any]] = {}
    found: dict[str, Split] = {}
    total = 0
    for split, members in groups.items():
        ids: list[str] = []
        places: list[tuple[int, int, int]] = []
        raw[split] = []
        for member, path in enumerate(members):
            try:
                with parquet.ParquetFile(path) as file:
                    image_column, label_column, names = _columns(path, file.schema_arrow, names)
                    for group in range(file.num_row_groups):
                        rows = file.metadata.row_group(group).num_rows
                        places += [(member, group, place) for place in range(rows)]
                        total += file.metadata.row_group(group).total_byte_size
                    raw[split] += file.read(columns=[label_column]).column(0).to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{path} is not a readable parquet file: {error}") from error
            stem = path.relative_to(root).with_suffix("").as_posix()
            ids += [f"{stem}/{row:06d}" for row in range(len(raw[split]) - len(ids))]
        table = np.array(places, dtype=np.int64).reshape(-1, 3)
        reader = ParquetReader(tuple(map(str, members)), image_column, table[:, 0], table[:, 1], table[:, 2])
        found[split] = Split.of(split, ids, np.full(len(ids), UNLABELLED), reader)
    notes = []
    if total > CACHE_BYTES:
        notes.append(
            f"{total >> 20} MB of parquet do not fit the {CACHE_BYTES >> 20} MB kept in memory: a shuffled order "
            "reads row groups again and again; tar shards are faster"
        )
    classes, labels = _labels(name, raw, names or read_class_names(root))
    labelled = {split: Split(split, part.ids, labels[split], part.reader, part.rows) for split, part in found.items()}
    return finish(name, classes, labelled, rule, notes)


def _labels(
    name: str, raw: dict[str, list[Any]], names: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    every = [label for part in raw.values() for label in part]
    cuts = np.cumsum([len(part) for part in raw.values()])[:-1]
    if any(isinstance(label, str) for label in every):
        if not all(label is None or isinstance(label, str) for label in every):
            raise UserError(f"{name}: some labels are names and some are not")
        classes, numbers = labels_by_name(every)
    else:
        if not all(label is None or type(label) is int for label in every):
            odd = next(label for label in every if label is not None and type(label) is not int)
            raise UserError(f"{name}: a label is {odd!r}; labels must be whole numbers or names")
        numbers = np.array([UNLABELLED if label is None else label for label in every], dtype=np.int64)
        classes = numbered_classes(name, numbers, names)
    return classes, dict(zip(raw, np.split(numbers, cuts), strict=True))


def _columns(path: Path, schema: "pa.Schema", names: Any) -> tuple[str, str, tuple[str, ...] | None]:
    """The image column, the label column, and the class names if the file's metadata has them."""
    features = _features(schema)
    images = [column for column, feature in features.items() if _kind(feature) == "Image"]
    images += sorted((f.name for f in schema if _holds_bytes(f.type)), key=_rank(IMAGE_NAMES))
    labels = [column for column, feature in features.items() if _kind(feature) == "ClassLabel"]
    labels = sorted(labels, key=_rank(LABEL_NAMES)) + [column for column in LABEL_NAMES if column in schema.names]
    if not images:
        raise UserError(f"{path} has no column of images: its columns are {', '.join(schema.names)}")
    if not labels:
        raise UserError(f"{path} has no column of labels (one named {', '.join(LABEL_NAMES[:4])} ...)")
    listed = features.get(labels[0], {}).get("names")
    own = tuple(map(str, listed)) if isinstance(listed, list) else None
    if names is not None and own is not None and own != names:
        raise UserError(f"{path} lists other class names than the files before it")
    return images[0], labels[0], own or names


def _features(schema: "pa.Schema") -> dict[str, dict[str, Any]]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {key: value for key, value in features.items() if isinstance(value, dict) and key in schema.names}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _kind(feature: dict[str, Any]) -> Any:
    return feature.get("_type")


def _holds_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(part.name == "bytes" and _holds_bytes(part.type) for part in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _rank(names: Sequence[str]) -> Any:
    return lambda column: (names.index(column) if column in names else len(names), column)
