"""Parquet files with a column of images: bytes, or {bytes, path} as Hugging Face writes them."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.base import (
    MAX_SAMPLE_BYTES,
    UNLABELLED,
    OpenOptions,
    ShardedReader,
    Source,
    Split,
    SplitRule,
    build_source,
)
from vitrail.data.sources.classes import labels_by_name, numbered_classes
from vitrail.data.sources.image_columns import IMAGE_NAMES, LABEL_NAMES, MaskColumn, holds_bytes, mask_column
from vitrail.data.sources.mask_reading import MASK_TASK
from vitrail.data.sources.paired_masks import (
    MaskOrigin,
    ShardedPairedReader,
    classes_by_index,
    classes_in,
    masked_source,
)
from vitrail.data.sources.splits import files_by_split
from vitrail.data.sources.storage.files import Fetcher, StoredFile, attempt
from vitrail.data.sources.storage.folders import StorageFolder
from vitrail.errors import UserError
from vitrail.io.documents import parse_json

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_BYTES = 2 << 30
"""The size up to which row groups are kept in memory; a data set below it is read from disk only once."""


@dataclass
class ParquetReader(ShardedReader):
    """Reads a column of images at random. Parquet is read by the row group, so the last groups are kept in memory."""

    files: tuple[StoredFile, ...]
    column: str
    """The name of the column of images."""
    starts: np.ndarray
    """The number of each row group's first row, counted over all files, integers [row groups]."""
    members: np.ndarray
    """The number of each row group's file, integers [row groups]."""
    groups: np.ndarray
    """The number of each row group in its file, integers [row groups]."""
    weights: np.ndarray
    """The size of each row group in bytes as the file states it, integers [row groups]."""
    _cache: OrderedDict = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _fetching: Fetcher = field(default_factory=Fetcher, repr=False)

    def of_column(self, column: str) -> "ParquetReader":
        """Returns a reader of another column of the same files."""
        return ParquetReader(self.files, column, self.starts, self.members, self.groups, self.weights)

    def read(self, row: int) -> bytes:
        import pyarrow as pa

        group = int(self.shards(row))
        try:
            value = self._group(group)[row - int(self.starts[group])].as_py()
        except (OSError, IndexError, pa.ArrowException) as error:
            raise BadImage(f"cannot be read from its parquet file: {error}") from error
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise BadImage(f"has no bytes in the column {self.column}")
        if len(content) > MAX_SAMPLE_BYTES:
            raise BadImage(f"is larger than {MAX_SAMPLE_BYTES >> 20} MB")
        return content

    def size(self, row: int) -> int:
        """Returns the size of the row group that a sample is in; that of the sample is only known after reading it."""
        return int(self.weights[self.shards(row)])

    @property
    def remote(self) -> bool:
        return any(file.remote for file in self.files)

    def shards(self, rows: Any) -> np.ndarray:
        return np.searchsorted(self.starts, rows, side="right") - 1

    def prepare(self, rows: np.ndarray) -> None:
        members = dict.fromkeys(self.members[self.shards(rows)].tolist())
        self._fetching.start([self.files[member] for member in members])

    def _group(self, group: int) -> Any:
        """Returns the images of a row group as a pyarrow array, from memory if it is one of the last."""
        import pyarrow.parquet as parquet

        with self._lock:
            if group not in self._cache:
                with parquet.ParquetFile(self.files[self.members[group]].local()) as file:
                    # The chunks are not joined: above 2 GB that would overflow 32-bit offsets.
                    read = file.read_row_group(int(self.groups[group]), columns=[self.column])
                self._cache[group] = read.column(0)
                while len(self._cache) > 1 and sum(kept.nbytes for kept in self._cache.values()) > CACHE_BYTES:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(group)
            return self._cache[group]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict(), "_lock": None, "_fetching": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_lock": threading.Lock(), "_fetching": Fetcher()})


@dataclass(frozen=True)
class _Told:
    """The facts about a parquet file that are read without its images."""

    image_column: str
    label_column: str | None
    class_names: tuple[str, ...] | None
    """The class names in the file's metadata."""
    labels: Any
    """A pyarrow array of the labels; all null if there is no column of labels."""
    groups: list[tuple[int, int]]
    """(number of rows, bytes) of each row group."""
    masks: MaskColumn | None = None
    """The column of masks; None if there is none, or the labels are what is learned."""


def open_parquet(name: str, place: StorageFolder, names: list[str], rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens parquet files as one source. Splits are recognised by file names such as train-00000-of-00001.parquet.

    Args:
        name: The name of the source.
        place: The folder of the files.
        names: The names of the files.
        rule: How to make the splits that it does not have.
        asked: What the user asked of it besides.

    Raises:
        UserError: If a file cannot be read, has no images, or contradicts another.
    """
    groups = files_by_split(name, map(PurePosixPath, names), PurePosixPath())
    told = {file: _ask(place, str(file), asked) for files in groups.values() for file in files}
    if all(each.masks is not None for each in told.values()):
        return _masked(name, place, groups, told, MaskOrigin(rule, asked, classes_in(place, asked.ignore)))
    listed = {each.class_names: place.where(str(file)) for file, each in told.items() if each.class_names is not None}
    if len(listed) > 1:
        raise UserError(f"{list(listed.values())[-1]} lists other class names than the files before it")
    raw = {split: [told[file].labels for file in files] for split, files in groups.items()}
    classes, labels = _labels(name, raw, next(iter(listed)) if listed else place.class_names())
    found = {}
    for split, files in groups.items():
        stems = {str(file.with_suffix("")): len(told[file].labels) for file in files}
        ids = [f"{stem}/{row:06d}" for stem, count in stems.items() for row in range(count)]
        found[split] = Split.of(split, ids, labels[split], _reader(place, files, told))
    total = sum(weight for each in told.values() for _, weight in each.groups)
    bare = [place.where(str(file)) for file, each in told.items() if each.label_column is None]
    notes = [f"{bare[0]} has no column of labels (one named {', '.join(LABEL_NAMES[:4])} ...)"] if bare else []
    if total > CACHE_BYTES:
        notes.append(
            f"{total >> 20} MB of parquet do not fit the {CACHE_BYTES >> 20} MB kept in memory: a shuffled order "
            "reads row groups again and again; --data.shuffle shards or tar shards are faster"
        )
    return build_source(name, classes, found, rule, notes)


def _masked(
    name: str,
    place: StorageFolder,
    groups: dict[str, list[PurePosixPath]],
    told: dict[PurePosixPath, _Told],
    origin: MaskOrigin,
) -> Source:
    """Builds a source of files that have a column of masks. groups: the files of each split."""
    found = {}
    for split, files in groups.items():
        stems = {str(file.with_suffix("")): len(told[file].labels) for file in files}
        ids = [f"{stem}/{row:06d}" for stem, count in stems.items() for row in range(count)]
        present = np.concatenate([column.present for file in files if (column := told[file].masks) is not None])
        columns = {column.name for file in files if (column := told[file].masks) is not None}
        if len(columns) > 1:
            raise UserError(
                f"{place.where(str(files[0]))} and the files beside it have masks in columns of other names"
            )
        pictures = _reader(place, files, told)
        masks = pictures.of_column(columns.pop())
        weights = pictures.weights[pictures.shards(np.arange(len(ids)))]
        reader = ShardedPairedReader(pictures, masks, present, "the mask in row", sizes=weights)
        found[split] = Split(
            split, ids, present.astype(np.int8), reader, np.arange(len(ids), dtype=np.int64), MASK_TASK
        )
    if origin.known is None:
        named = next((column.classes for each in told.values() if (column := each.masks) and column.classes), None)
        known = None if named is None else classes_by_index(named, "the files' metadata", origin.asked.ignore)
        states = "\n".join(f"{place.where(str(file))} {place.state(str(file))}" for file in told)
        origin = replace(origin, known=known, states=states)
    return masked_source(name, found, origin)


def _reader(place: StorageFolder, files: list[PurePosixPath], told: dict[PurePosixPath, _Told]) -> ParquetReader:
    """Makes the reader of some files. Raises UserError if their columns of images have different names."""
    rows = [
        (count, member, group, weight)
        for member, file in enumerate(files)
        for group, (count, weight) in enumerate(told[file].groups)
        if count
    ]
    counts, members, groups, weights = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    columns = {told[file].image_column for file in files}
    if len(columns) > 1:
        raise UserError(f"{place.where(str(files[0]))} and the files beside it have images in columns of other names")
    stored = tuple(place.stored(str(file)) for file in files)
    return ParquetReader(stored, columns.pop(), np.cumsum(counts) - counts, members, groups, weights)


def _ask(place: StorageFolder, file: str, asked: OpenOptions) -> _Told:
    """Reads the facts about one file: its metadata and labels, but none of its images.

    asked: what the user asked for, which decides where there are both labels and masks.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    where = place.where(file)

    def ask() -> _Told:
        try:
            with place.stream(file) as stream, parquet.ParquetFile(stream) as opened:
                masks = mask_column(opened, _features(opened.schema_arrow), asked.task)
                image, label, names = _columns(where, opened.schema_arrow, masks)
                about = [opened.metadata.row_group(group) for group in range(opened.num_row_groups)]
                empty = pa.chunked_array([pa.nulls(opened.metadata.num_rows)])
                told = _Told(
                    image,
                    label,
                    names,
                    empty if label is None else opened.read(columns=[label]).column(0),
                    [(group.num_rows, group.total_byte_size) for group in about],
                    masks,
                )
            if sum(rows for rows, _ in told.groups) != len(told.labels):
                raise ValueError("its row groups do not add up")
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"{where} is not a readable parquet file: {error}") from error
        return told

    if place.remote:
        return attempt(where, ask)
    try:
        return ask()
    except OSError as error:
        raise UserError(f"{where} is not a readable parquet file: {error}") from error


def _labels(
    name: str, raw: dict[str, list[Any]], names: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Makes the list of classes of the labels of all files.

    raw: for each split the labels of each file; names: class names for labels that are numbers, if there are any.

    Returns the class names, and for each split its labels, int64 [samples], -1 for none. Raises UserError if labels
    are neither all integers nor all text.
    """
    import pyarrow as pa

    columns = [column for part in raw.values() for column in part]
    kinds = [column.type.value_type if pa.types.is_dictionary(column.type) else column.type for column in columns]
    texts = [pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds]
    for column, kind, text in zip(columns, kinds, texts, strict=True):
        if not (text or pa.types.is_integer(kind) or column.null_count == len(column)):
            odd = column.drop_null()[0].as_py()
            raise UserError(f"{name}: a label is {odd!r}; labels must be whole numbers or names")
    if any(texts):
        if not all(text or column.null_count == len(column) for column, text in zip(columns, texts, strict=True)):
            raise UserError(f"{name}: some labels are names and some are not")
        classes, numbers = labels_by_name([label for column in columns for label in column.to_pylist()])
    else:
        try:
            numbers = np.concatenate([column.cast(pa.int64()).fill_null(UNLABELLED).to_numpy() for column in columns])
        except pa.ArrowInvalid as error:
            raise UserError(f"{name}: a label is no class number: {error}") from error
        classes = numbered_classes(name, numbers, names)
    cuts = np.cumsum([sum(map(len, part)) for part in raw.values()])[:-1]
    return classes, dict(zip(raw, np.split(numbers, cuts), strict=True))


def _columns(
    path: str, schema: "pa.Schema", masks: MaskColumn | None
) -> tuple[str, str | None, tuple[str, ...] | None]:
    """Finds the column of images, that of labels (None if there is none), and the class names (None if not stated).

    path: the file, for messages; masks: its column of masks. Raises UserError if there is no column of images.
    """
    features = _features(schema)
    binary = [field.name for field in schema if holds_bytes(field.type)]
    if masks is not None:
        binary.remove(masks.name)
    images = [column for column, feature in features.items() if _kind(feature) == "Image" and column in binary]
    images += sorted(binary, key=_rank(IMAGE_NAMES))
    labels = [column for column, feature in features.items() if _kind(feature) == "ClassLabel"]
    labels = sorted(labels, key=_rank(LABEL_NAMES)) + [column for column in LABEL_NAMES if column in schema.names]
    if not images:
        raise UserError(f"{path} has no column of images: its columns are {', '.join(schema.names)}")
    if not labels or masks is not None:
        return images[0], None, None
    listed = features.get(labels[0], {}).get("names")
    return images[0], labels[0], tuple(map(str, listed)) if isinstance(listed, list) else None


def _features(schema: "pa.Schema") -> dict[str, dict[str, Any]]:
    """Returns the description of each column that Hugging Face writes to the metadata; {} if there is none."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"], "")["info"]["features"]
        return {key: value for key, value in features.items() if isinstance(value, dict) and key in schema.names}
    except (UserError, KeyError, TypeError, AttributeError):
        return {}


def _kind(feature: dict[str, Any]) -> Any:
    return feature.get("_type")


def _rank(names: Sequence[str]) -> Any:
    """Returns a key to sort columns by: those among `names` in their order, then the others by name."""
    return lambda column: (names.index(column) if column in names else len(names), column)
