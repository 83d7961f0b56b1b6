"""The index of a folder of tar shards, index.parquet: the position of each sample, its label and its SHA-256.

With it a folder is opened without reading the shards. `vitrail data shard` writes one; for shards that others wrote, it
is made from the headers of their members and kept. An index may be hostile like any data, so every field is checked: a
wrong one raises UserError or leads to samples that do not match their SHA-256, and can do no other harm.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from vitrail.data.sources.annotation_index import ANNOTATIONS, AnnotationTable, joined_annotations
from vitrail.errors import UserError
from vitrail.io.documents import parse_json
from vitrail.io.files import replacing

INDEX = "index.parquet"
"""The file name of an index."""
FORMAT, FORMAT_OF_TARGETS, FORMAT_OF_ANNOTATIONS = 1, 2, 3
"""The versions of the format: the first has a class or none for each sample, the second targets of any task and ids,
the third also files of right answers, such as masks."""
BLOCK = 512
"""The size of the blocks that tar files consist of; every member has one for its header."""
SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),  # an index into the list of shards
        pa.field("key", pa.string()),  # the sample's name in its shard
        pa.field("offset", pa.int64()),  # the position of the image's bytes in the shard
        pa.field("size", pa.int64()),  # the number of these bytes
        pa.field("label", pa.int64()),  # the number of the class, or null
        pa.field("name", pa.string()),  # the name of the class if labels are names, or null
        pa.field("sha256", pa.binary(32)),  # the SHA-256 of the image's bytes, or null
    ]
)
"""The columns of an index."""
TARGETS = (
    pa.field("target", pa.string()),  # the target as JSON, as its task stores it
    pa.field("id", pa.string()),  # the id of the sample in the source that was written as shards
)
"""The further columns of an index with targets."""
_KEY = b"vitrail.shards"
"""The key of the parquet metadata that holds the list of shards as JSON."""
# The limits for what an index may claim, so that a hostile one cannot fill the memory:
LONGEST = 4096
"""The longest name of a sample, a class or a shard, in bytes."""
_ROWS_A_BYTE = 8
"""The most rows for each byte of the index file; real ones are never packed so well."""
_TEXT_A_BYTE = 100
"""The most bytes of text, unpacked, for each byte of the index file."""
_LONGEST_TARGET = 1 << 20
"""The longest target, in bytes."""
_MOST_NAMES = 1 << 16
"""The most names of classes."""
_TEXTS, _TARGET_TEXTS = ("key", "name"), ("target", "id")
_REQUIRED = ("shard", "key", "offset", "size")
"""The columns without nulls."""


@dataclass(frozen=True)
class Shard:
    """A tar file as it was when it was indexed. Fields of a wrong type or value raise ValueError."""

    name: str
    """The path below the folder of the index."""
    bytes: int
    """The size."""
    sha256: str | None = None
    """The SHA-256 of the whole file, if this program wrote it."""
    version: str = ""
    """A text that changes when the file does, in an index of shards that others wrote."""
    pictureless: int = 0
    """The number of samples without an image, which are left out."""
    pickled: int = 0
    """The number of pickled members, which are never read."""

    def __post_init__(self) -> None:
        types = {"name": str, "bytes": int, "version": str, "pictureless": int, "pickled": int}
        if any(type(getattr(self, key)) is not kind for key, kind in types.items()):
            raise ValueError("a shard's entry has a field of the wrong type")
        if min(self.bytes, self.pictureless, self.pickled) < 0 or self.bytes >= 1 << 60:
            raise ValueError(f"{self.name!r} has an impossible size or count")
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", str(self.sha256)):
            raise ValueError(f"{self.name!r} has no proper SHA-256")
        # A name must not lead to a file outside the folder of the index.
        parts = self.name.split("/")
        if (
            not self.name.lower().endswith(".tar")
            or len(self.name) > LONGEST
            or any(part in ("", ".", "..") for part in parts)
            or any(mark in self.name for mark in ("\\\0:" if os.name == "nt" else "\\\0"))
        ):
            raise ValueError(f"{self.name[:200]!r} is not the name of a shard beside the index")

    @property
    def stem(self) -> str:
        """Returns the name without its ending, which begins the ids of the shard's samples."""
        return PurePosixPath(self.name).with_suffix("").as_posix()


@dataclass(frozen=True)
class SampleTable:
    """The columns of an index, one entry for each sample; `SCHEMA` and `TARGETS` say what they mean."""

    shard: np.ndarray
    """int32 [samples]"""
    key: list[str]
    offset: np.ndarray
    """int64 [samples]"""
    size: np.ndarray
    """int64 [samples]"""
    label: np.ndarray
    """int64 [samples], -1 for none"""
    name: list[str | None] | None = None
    """None if no label is a name."""
    sha256: np.ndarray | None = None
    """uint8 [samples, 32]; None if some are not known"""
    target: list[str] | None = None
    """None if each sample has one class at most."""
    id: list[str] | None = None
    """None if the ids are SHARD/KEY."""
    annotation: AnnotationTable | None = None
    """The places of right answers that are files; None if there are none."""

    def __len__(self) -> int:
        return len(self.key)

    def take(self, order: np.ndarray) -> "SampleTable":
        """Returns the samples at these indices, in this order."""
        indices = order.tolist()
        return SampleTable(
            self.shard[order],
            [self.key[index] for index in indices],
            self.offset[order],
            self.size[order],
            self.label[order],
            None if self.name is None else [self.name[index] for index in indices],
            None if self.sha256 is None else self.sha256[order],
            None if self.target is None else [self.target[index] for index in indices],
            None if self.id is None else [self.id[index] for index in indices],
            None if self.annotation is None else self.annotation.take(order),
        )

    def in_shards(self, numbers: np.ndarray) -> "SampleTable":
        """Returns the same samples with other numbers for their shards, integers [samples]."""
        return replace(self, shard=numbers.astype(np.int32))


def concatenated(parts: Sequence[SampleTable]) -> SampleTable:
    """Joins samples of shards that others wrote, which have no SHA-256, targets or ids."""
    nothing = np.empty(0, dtype=np.int64)
    return SampleTable(
        np.concatenate([nothing.astype(np.int32), *(part.shard for part in parts)]),
        [key for part in parts for key in part.key],
        np.concatenate([nothing, *(part.offset for part in parts)]),
        np.concatenate([nothing, *(part.size for part in parts)]),
        np.concatenate([nothing, *(part.label for part in parts)]),
        [name for part in parts for name in part.name or [None] * len(part)],
        annotation=joined_annotations([(part.annotation, len(part)) for part in parts]),
    )


@dataclass(frozen=True)
class Index:
    """The index of a folder of shards: the list of shards, and a row for each sample."""

    shards: tuple[Shard, ...]
    rows: SampleTable
    written: bool
    """True if it was written together with the shards; False if it was made from shards that others wrote."""
    task: str | None = None
    """The task of the targets in the rows; None if the rows have classes or nothing."""
    names: tuple[str, ...] = ()
    """The names that the targets refer to."""


def write_index(path: Path, index: Index) -> None:
    """Writes an index to a file atomically. Raises OSError if it cannot be written."""
    rows, count = index.rows, len(index.rows)
    document: dict[str, Any] = {"format": FORMAT, "written": index.written}
    document["shards"] = [asdict(shard) for shard in index.shards]
    columns = {
        "shard": rows.shard,
        "key": rows.key,
        "offset": rows.offset,
        "size": rows.size,
        "label": [None if label == -1 else label for label in rows.label.tolist()],
        "name": rows.name or [None] * count,
        "sha256": [None] * count if rows.sha256 is None else [digest.tobytes() for digest in rows.sha256],
    }
    schema = SCHEMA
    if index.task is not None:
        document.update(format=FORMAT_OF_TARGETS, task=index.task, names=index.names)
        columns.update(target=rows.target, id=rows.id)
        schema = pa.schema([*SCHEMA, *TARGETS])
    if rows.annotation is not None:
        document.update(format=FORMAT_OF_ANNOTATIONS, task=index.task, names=index.names)
        columns.update(rows.annotation.columns())
        schema = pa.schema([*schema, *ANNOTATIONS])
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = pa.table(arrays, schema=schema.with_metadata({_KEY: json.dumps(document).encode()}))
    with replacing(path) as temporary, temporary.open("wb") as stream:
        parquet.write_table(table, stream, compression="zstd", write_page_checksum=True)


def recognise(path: Path) -> Literal["index", "other", "damaged"]:
    """Tells whether a file is an index, another parquet file that has its name by chance, or damaged."""
    try:
        return "index" if _KEY in (parquet.read_schema(path).metadata or {}) else "other"
    except (pa.ArrowException, OSError):
        return "damaged"


def read_index(path: Path, where: str = "") -> Index:
    """Reads an index and checks every field of it.

    where: what messages call it, if not `path`. Raises UserError if anything in it is wrong.
    """
    with refusing(where or str(path)):
        schema, file_bytes = parquet.read_schema(path), path.stat().st_size
        shards, written, task, names, annotated = _header((schema.metadata or {}).get(_KEY, b""))
        _check_types(schema, [*SCHEMA, *(TARGETS if task is not None else ()), *(ANNOTATIONS if annotated else ())])
        # Texts are read as a dictionary and references to it, so that a long text in a million rows is stored once.
        texts = [*_TEXTS, *(_TARGET_TEXTS if task is not None else ())]
        with parquet.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
            # Each sample has a header in a shard: an index that claims more samples is hostile.
            most = min(sum(shard.bytes for shard in shards) // BLOCK, _ROWS_A_BYTE * file_bytes)
            if file.metadata.num_rows > most:
                raise ValueError(f"it claims {file.metadata.num_rows} samples, more than its shards can hold")
            table = file.read(use_threads=False)  # starting threads takes longer than reading
        rows = _rows(table, _TEXT_A_BYTE * file_bytes, targets=task is not None)
        rows = replace(rows, annotation=_annotations(table)) if annotated else rows
        _check_rows(shards, rows)
    return Index(shards, rows, written, task, names)


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Turns any exception that a wrong index causes in the block into a UserError. where: its path for the message."""
    try:
        yield
    except (
        UserError,
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"{where} is not a sound index: {reason}. Fetch it again, or delete it to have one made from the shards"
        ) from error


def _header(text: bytes) -> tuple[tuple[Shard, ...], bool, str | None, tuple[str, ...], bool]:
    """Parses the metadata of an index: its shards, `written`, `task`, `names`, and whether it knows files of answers.

    Raises ValueError if it is wrong.
    """
    document = parse_json(text, "its list of shards")
    formats = (FORMAT, FORMAT_OF_TARGETS, FORMAT_OF_ANNOTATIONS)
    if not isinstance(document, dict) or document.get("format") not in formats:
        raise ValueError(f"its format is none of {', '.join(map(str, formats))}, which this version reads")
    entries, written = document.get("shards"), document.get("written")
    if not isinstance(entries, list) or not isinstance(written, bool):
        raise ValueError("its list of shards is missing")
    shards = tuple(Shard(**entry) for entry in entries)
    if len({shard.name for shard in shards}) < len(shards):
        raise ValueError("it lists a shard twice")
    task, names, annotated = document.get("task"), document.get("names"), document["format"] == FORMAT_OF_ANNOTATIONS
    if document["format"] == FORMAT or (annotated and task is None):
        return shards, written, None, (), annotated
    if not isinstance(task, str) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its task or the names of its classes are missing")
    if len(names) > _MOST_NAMES:
        raise ValueError(f"it has {len(names)} names of classes, more than {_MOST_NAMES}")
    return shards, written, task, tuple(names), annotated


def _check_types(schema: pa.Schema, wanted: Iterable[pa.Field]) -> None:
    """Raises ValueError if a column is missing or of another type."""
    for expected in wanted:
        column = schema.get_field_index(expected.name)
        if column < 0:
            raise ValueError(f"it has no column {expected.name}")
        if (kind := schema.field(column).type) != expected.type:
            raise ValueError(f"its column {expected.name} is of {kind}, not of {expected.type}")


def _rows(table: pa.Table, most_text: int, targets: bool) -> SampleTable:
    """Converts a table to columns. most_text: the most bytes of text in a column; targets: whether it has `TARGETS`."""
    # With numpy only, since pyarrow's own conversion imports pandas if it is installed, which takes 0.25 s.
    for name in (*_REQUIRED, *(_TARGET_TEXTS if targets else ())):
        if table[name].null_count:
            raise ValueError(f"its column {name} has gaps")
    digests = table["sha256"].combine_chunks()
    known = len(digests) and not digests.null_count
    return SampleTable(
        _numbers(table["shard"].combine_chunks()),
        offset=_numbers(table["offset"].combine_chunks()),
        size=_numbers(table["size"].combine_chunks()),
        label=_numbers(table["label"].combine_chunks()),
        key=_texts(table["key"], most_text),
        name=_texts(table["name"], most_text) if table["name"].null_count < len(table) else None,
        sha256=_values(digests, np.uint8, 32).reshape(-1, 32) if known else None,
        target=_texts(table["target"], most_text, _LONGEST_TARGET) if targets else None,
        id=_texts(table["id"], most_text) if targets else None,
    )


def _annotations(table: pa.Table) -> AnnotationTable:
    """Converts the columns of right answers that are files."""
    for name in ("annotation_offset", "annotation_size", "stated_size"):
        if table[name].null_count:
            raise ValueError(f"its column {name} has gaps")
    digests = table["annotation_sha256"].combine_chunks()
    known = len(digests) and not digests.null_count
    return AnnotationTable(
        _numbers(table["annotation_offset"].combine_chunks()),
        _numbers(table["annotation_size"].combine_chunks()),
        _numbers(table["stated_size"].combine_chunks()),
        _values(digests, np.uint8, 32).reshape(-1, 32) if known else None,
    )


def _values(column: pa.Array, kind: Any, width: int = 1, extra: int = 0) -> np.ndarray:
    """Returns the numbers in the buffer of a column, without copying; where the column is null they are arbitrary.

    Args:
        column: A column of numbers, of bytes of fixed length, or of text, of which it returns the offsets.
        kind: The numpy type of the numbers.
        width: The numbers of each row.
        extra: Further numbers after the last row: 1 for the end of the last text.
    """
    content = column.buffers()[1]
    if content is None or not len(column):
        return np.empty(0, kind)
    return np.frombuffer(content, kind)[column.offset * width : (column.offset + len(column)) * width + extra]


def _present(column: pa.Array) -> np.ndarray:
    """Tells in which rows a column is not null, bool [rows]."""
    bits = column.buffers()[0]
    if not column.null_count or bits is None:
        return np.ones(len(column), bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[column.offset :][: len(column)].astype(bool)


def _numbers(column: pa.Array) -> np.ndarray:
    """Returns the numbers of a column, -1 where it is null."""
    values = _values(column, column.type.to_pandas_dtype())
    return values if not column.null_count else np.where(_present(column), values, -1)


def _texts(column: pa.ChunkedArray, most: int, longest: int = LONGEST) -> list[Any]:
    """Returns the texts of a column, None where it is null.

    Raises ValueError if they have more than `most` bytes in all, or one has more than `longest`.
    """
    column.validate(full=True)  # text that is not UTF-8 would raise an exception later
    found: list[str | None] = []
    total = 0
    for chunk in column.chunks:
        distinct, references, present = chunk.dictionary, _values(chunk.indices, np.int32), _present(chunk.indices)
        lengths = np.diff(_values(distinct, np.int32, extra=1))
        if len(lengths) and lengths.max() > longest:
            raise ValueError(f"it has a text of {lengths.max()} bytes where a name belongs")
        total += int(lengths[references[present]].sum())
        if total > most:
            raise ValueError(f"its names unpack to {total} bytes or more")
        texts = distinct.to_pylist()
        pairs = zip(references.tolist(), present.tolist(), strict=True)
        found += [texts[reference] if is_present else None for reference, is_present in pairs]
    return found


def _check_rows(shards: tuple[Shard, ...], rows: SampleTable) -> None:
    """Raises ValueError if a sample is not inside its shard."""
    if not len(rows):
        return
    shard = rows.shard
    if shard.min() < 0 or shard.max() >= len(shards):
        raise ValueError("a sample lies in a shard that it does not list")
    _check_places(shards, shard, rows.offset, rows.size)
    if rows.annotation is not None:
        there = rows.annotation.present
        _check_places(shards, shard[there], rows.annotation.offset[there], rows.annotation.size[there])


def _check_places(shards: tuple[Shard, ...], shard: np.ndarray, offset: np.ndarray, size: np.ndarray) -> None:
    """Raises ValueError if a file is not inside its shard."""
    shard_size = np.array([listed.bytes for listed in shards], dtype=np.int64)[shard]
    # `offset + size` could overflow, so the size is compared with the difference.
    wrong = (size < 0) | (offset < BLOCK) | (offset > shard_size) | (size > shard_size - offset)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"a sample of {shards[shard[row]].name} would lie at {offset[row]}, {size[row]} bytes long, "
            f"outside of the {shard_size[row]} bytes there are"
        )


def sample_ids(index: Index, rows: SampleTable) -> list[str]:
    """Returns the ids of samples: those in the index, else SHARD/KEY. rows: the samples, of this index."""
    if rows.id is not None:
        return rows.id
    stems = [shard.stem for shard in index.shards]
    return [f"{stems[shard]}/{key}" for shard, key in zip(rows.shard.tolist(), rows.key, strict=True)]
