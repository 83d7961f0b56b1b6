"""The index of a folder of tar shards: where each sample lies, its label and its SHA-256. One file, index.parquet.

With it a folder is opened without reading the shards. `vitrail data shard` writes one; for others' shards one is made
by reading the headers, and kept. An index comes from where the data comes from, so nothing in it is believed before it
is checked: a wrong one can end in a UserError, or in samples that do not match their digests, and in nothing else.
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

from vitrail.errors import UserError
from vitrail.io.files import replacing

INDEX = "index.parquet"
FORMAT, FORMAT_OF_TARGETS = 1, 2
"""The first has a class a sample or none; the second has targets of any task, and the samples' own ids."""
BLOCK = 512
"""Tar files are made of blocks of this size; every member has one for its header."""
SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),  # a place in the list of shards
        pa.field("key", pa.string()),  # the sample's name within its shard
        pa.field("offset", pa.int64()),  # of the image's bytes
        pa.field("size", pa.int64()),
        pa.field("label", pa.int64()),  # a class number, or null
        pa.field("name", pa.string()),  # a class name where labels are names, or null
        pa.field("sha256", pa.binary(32)),  # of the image's bytes, or null
    ]
)
TARGETS = (
    pa.field("target", pa.string()),  # as JSON, in the way of its task
    pa.field("id", pa.string()),  # the sample's id where it was written from
)
_KEY = b"vitrail.shards"
LONGEST = 4096
"""Bytes of the longest name of a sample, a class or a shard."""
_ROWS_A_BYTE = 8
_TEXT_A_BYTE = 100
"""No index is packed so well that a byte of the file stands for more."""
_LONGEST_TARGET = 1 << 20
_MOST_NAMES = 1 << 16
_TEXTS, _TARGET_TEXTS = ("key", "name"), ("target", "id")
_REQUIRED = ("shard", "key", "offset", "size")


@dataclass(frozen=True)
class Shard:
    """One tar file, as it was when it was indexed."""

    name: str
    bytes: int
    sha256: str | None = None
    version: str = ""
    """When it was last changed, in an index that was made from others' shards."""
    pictureless: int = 0
    pickled: int = 0

    def __post_init__(self) -> None:
        types = {"name": str, "bytes": int, "version": str, "pictureless": int, "pickled": int}
        if any(type(getattr(self, key)) is not kind for key, kind in types.items()):
            raise ValueError("a shard's entry has a field of the wrong type")
        if min(self.bytes, self.pictureless, self.pickled) < 0 or self.bytes >= 1 << 60:
            raise ValueError(f"{self.name!r} has a size or a count that no file has")
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", str(self.sha256)):
            raise ValueError(f"{self.name!r} has no proper SHA-256")
        # A name leads to a file below the folder and nowhere else.
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
        return PurePosixPath(self.name).with_suffix("").as_posix()


@dataclass(frozen=True)
class Rows:
    """Samples, column by column."""

    shard: np.ndarray  # [samples] int32
    key: list[str]
    offset: np.ndarray  # [samples] int64
    size: np.ndarray  # [samples] int64
    label: np.ndarray  # [samples] int64, -1 where there is none
    name: list[str | None] | None = None  # where labels are names
    sha256: np.ndarray | None = None  # [samples, 32] uint8, where all are known
    target: list[str] | None = None  # as JSON, where there is more to say than a class
    id: list[str] | None = None  # where it is not SHARD/KEY

    def __len__(self) -> int:
        return len(self.key)

    def take(self, order: np.ndarray) -> "Rows":
        """The samples at these places, in this order."""
        places = order.tolist()
        return Rows(
            self.shard[order],
            [self.key[place] for place in places],
            self.offset[order],
            self.size[order],
            self.label[order],
            None if self.name is None else [self.name[place] for place in places],
            None if self.sha256 is None else self.sha256[order],
            None if self.target is None else [self.target[place] for place in places],
            None if self.id is None else [self.id[place] for place in places],
        )

    def in_shards(self, numbers: np.ndarray) -> "Rows":
        """The same samples, their shards called by other numbers."""
        return replace(self, shard=numbers.astype(np.int32))


def joined(parts: Sequence[Rows]) -> Rows:
    """Samples of others' shards, which have no digests, one after the other."""
    nothing = np.empty(0, dtype=np.int64)
    return Rows(
        np.concatenate([nothing.astype(np.int32), *(part.shard for part in parts)]),
        [key for part in parts for key in part.key],
        np.concatenate([nothing, *(part.offset for part in parts)]),
        np.concatenate([nothing, *(part.size for part in parts)]),
        np.concatenate([nothing, *(part.label for part in parts)]),
        [name for part in parts for name in part.name or [None] * len(part)],
    )


@dataclass(frozen=True)
class Index:
    """The shards, and a row for each sample."""

    shards: tuple[Shard, ...]
    rows: Rows
    written: bool
    """By the program that wrote the shards, rather than from the headers of shards that were there."""
    task: str | None = None
    """Whose targets the rows have; None: classes, or nothing."""
    names: tuple[str, ...] = ()
    """Of what the targets answer."""


def write_index(path: Path, index: Index) -> None:
    """Whole or not at all."""
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
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    table = pa.table(arrays, schema=schema.with_metadata({_KEY: json.dumps(document).encode()}))
    with replacing(path) as temporary, temporary.open("wb") as stream:
        parquet.write_table(table, stream, compression="zstd", write_page_checksum=True)


def recognise(path: Path) -> Literal["index", "other", "damaged"]:
    """What a file of that name is: a data set's own parquet file can have it too."""
    try:
        return "index" if _KEY in (parquet.read_schema(path).metadata or {}) else "other"
    except (pa.ArrowException, OSError):
        return "damaged"


def read_index(path: Path, where: str = "") -> Index:
    """An index, every field of it checked; `where` it came from if not from there."""
    with refusing(where or str(path)):
        schema, file_bytes = parquet.read_schema(path), path.stat().st_size
        shards, written, task, names = _header((schema.metadata or {}).get(_KEY, b""))
        _check_types(schema, SCHEMA if task is None else [*SCHEMA, *TARGETS])
        # Texts are read as references to the distinct ones, so that a long one is not spread over a million rows.
        texts = [*_TEXTS, *(_TARGET_TEXTS if task is not None else ())]
        with parquet.ParquetFile(path, read_dictionary=texts, page_checksum_verification=True) as file:
            # Each sample takes a header in a shard: what claims more could only be there to fill the memory.
            most = min(sum(shard.bytes for shard in shards) // BLOCK, _ROWS_A_BYTE * file_bytes)
            if file.metadata.num_rows > most:
                raise ValueError(f"it claims {file.metadata.num_rows} samples, more than its shards can hold")
            table = file.read(use_threads=False)  # starting them takes longer
        rows = _rows(table, _TEXT_A_BYTE * file_bytes, targets=task is not None)
        _check_rows(shards, rows)
    return Index(shards, rows, written, task, names)


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Turns whatever is found wrong with an index into a UserError."""
    try:
        yield
    except (
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


def _header(text: bytes) -> tuple[tuple[Shard, ...], bool, str | None, tuple[str, ...]]:
    """Reads the list of shards, whether it was written with them, and the task and names of targets if there are."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("its list of shards is nested without end") from None
    if not isinstance(document, dict) or document.get("format") not in (FORMAT, FORMAT_OF_TARGETS):
        raise ValueError(f"its format is not {FORMAT} or {FORMAT_OF_TARGETS}, those known here")
    entries, written = document.get("shards"), document.get("written")
    if not isinstance(entries, list) or not isinstance(written, bool):
        raise ValueError("its list of shards is missing")
    shards = tuple(Shard(**entry) for entry in entries)
    if len({shard.name for shard in shards}) < len(shards):
        raise ValueError("it lists a shard twice")
    if document["format"] == FORMAT:
        return shards, written, None, ()
    task, names = document.get("task"), document.get("names")
    if not isinstance(task, str) or not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ValueError("its task, or the names of what is answered, are missing")
    if len(names) > _MOST_NAMES:
        raise ValueError(f"it has {len(names)} names of what is answered")
    return shards, written, task, tuple(names)


def _check_types(schema: pa.Schema, wanted: Iterable[pa.Field]) -> None:
    for expected in wanted:
        place = schema.get_field_index(expected.name)
        if place < 0:
            raise ValueError(f"it has no column {expected.name}")
        if (kind := schema.field(place).type) != expected.type:
            raise ValueError(f"its column {expected.name} is of {kind}, not of {expected.type}")


def _rows(table: pa.Table, most_text: int, targets: bool) -> Rows:
    # By numpy alone: pyarrow's own ways to Python import pandas where it is installed, a quarter of a second.
    for name in (*_REQUIRED, *(_TARGET_TEXTS if targets else ())):
        if table[name].null_count:
            raise ValueError(f"its column {name} has gaps")
    digests = table["sha256"].combine_chunks()
    known = len(digests) and not digests.null_count
    return Rows(
        **{name: _numbers(table[name].combine_chunks()) for name in ("shard", "offset", "size", "label")},
        key=_texts(table["key"], most_text),
        name=_texts(table["name"], most_text) if table["name"].null_count < len(table) else None,
        sha256=_values(digests, np.uint8, 32).reshape(-1, 32) if known else None,
        target=_texts(table["target"], most_text, _LONGEST_TARGET) if targets else None,
        id=_texts(table["id"], most_text) if targets else None,
    )


def _values(column: pa.Array, kind: Any, width: int = 1, extra: int = 0) -> np.ndarray:
    """What a column holds: `width` numbers a row, whatever they are where there is nothing; of texts where each begins
    and, `extra`, where the last one ends."""
    content = column.buffers()[1]
    if content is None or not len(column):
        return np.empty(0, kind)
    return np.frombuffer(content, kind)[column.offset * width : (column.offset + len(column)) * width + extra]


def _present(column: pa.Array) -> np.ndarray:
    """Where a column has something."""
    bits = column.buffers()[0]
    if not column.null_count or bits is None:
        return np.ones(len(column), bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[column.offset :][: len(column)].astype(bool)


def _numbers(column: pa.Array) -> np.ndarray:
    """Numbers, -1 where there is none."""
    values = _values(column, column.type.to_pandas_dtype())
    return values if not column.null_count else np.where(_present(column), values, -1)


def _texts(column: pa.ChunkedArray, most: int, longest: int = LONGEST) -> list[Any]:
    """Texts, if they are such as names are and not more than `most` bytes in all; None where there is none."""
    column.validate(full=True)  # what is not UTF-8 would break off the program later
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
        found += [texts[place] if there else None for place, there in pairs]
    return found


def _check_rows(shards: tuple[Shard, ...], rows: Rows) -> None:
    if not len(rows):
        return
    shard, offset, size = rows.shard, rows.offset, rows.size
    if shard.min() < 0 or shard.max() >= len(shards):
        raise ValueError("a sample lies in a shard that it does not list")
    room = np.array([each.bytes for each in shards], dtype=np.int64)[shard]
    # In this order no sum can overflow.
    wrong = (size < 0) | (offset < BLOCK) | (offset > room) | (size > room - offset)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"a sample of {shards[shard[row]].name} would lie at {offset[row]}, {size[row]} bytes long, "
            f"outside of the {room[row]} bytes there are"
        )


def sample_ids(index: Index, rows: Rows) -> list[str]:
    """The ids of samples: those they were written with, else SHARD/KEY."""
    if rows.id is not None:
        return rows.id
    stems = [shard.stem for shard in index.shards]
    return [f"{stems[shard]}/{key}" for shard, key in zip(rows.shard.tolist(), rows.key, strict=True)]
