"""Writes parquet, which cannot grow: rows are collected in parts beside the file and joined to it at the end.

`FILE.parquet.parts/` holds parts of a few thousand rows. A part has its name only when it is complete, so a killed job
loses at most the last half minute. FILE.parquet itself is written in one go and renamed into place.
"""

import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from vitrail.errors import UserError
from vitrail.inference.jobs.rows import Row
from vitrail.inference.jobs.writers import Seen, parts_folder

_PART_ROWS = 4096
"""The number of rows from which on a part is written."""
_PART_SECONDS = 30.0
"""The time after which a part is written even if it has fewer rows."""
_RUN = b"vitrail.run"
"""The key in the metadata of FILE.parquet of the runs whose parts it already holds."""


class ParquetWriter:
    """Collects rows in parts beside the file and joins them at the end; continues what an earlier job left."""

    def __init__(self, path: Path, schema: pyarrow.Schema) -> None:
        self.path, self.schema = path, schema
        self.folder = parts_folder(path)
        self._rows: list[Row] = []
        self._since = time.monotonic()
        self._run = uuid.uuid4().hex[:12]
        try:
            for leftover in self.folder.glob(".*"):  # half-written parts of a killed job
                leftover.unlink()
            self._drop_joined()
            self._parts = sorted(self.folder.glob("*.parquet"))
            self.seen = Seen(self._paths())
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
        self.count = len(self.seen)
        self._next = self.count

    def write(self, rows: Sequence[Row]) -> None:
        """Adds rows; writes a part if there are enough of them or enough time has passed."""
        self._rows += rows
        if len(self._rows) >= _PART_ROWS or time.monotonic() - self._since > _PART_SECONDS:
            self._flush()

    def close(self, finished: bool) -> None:
        """Writes the last part, and joins all parts if the job is finished."""
        self._flush()
        if finished and (self._parts or not self.path.exists()):
            self._join()

    def _flush(self) -> None:
        """Writes the waiting rows as a part."""
        self._since = time.monotonic()
        if not self._rows:
            return
        # The number of rows before it, in ten digits: sorted by name, parts of several runs are in the order of rows.
        name = f"{self._next:010d}-{self._run}.parquet"
        temporary, part = self.folder / f".{name}", self.folder / name
        try:
            self.folder.mkdir(exist_ok=True)
            pyarrow.parquet.write_table(self._table(), temporary)
            temporary.replace(part)
        except OSError as error:
            raise UserError(f"{part}: cannot be written: {error.strerror or error}") from error
        self._parts.append(part)
        self._next += len(self._rows)
        self._rows = []

    def _table(self) -> pyarrow.Table:
        """Returns the waiting rows as a table."""
        return pyarrow.Table.from_arrays([self._array(field) for field in self.schema], schema=self.schema)

    def _array(self, field: pyarrow.Field) -> pyarrow.Array:
        """Returns one column of the waiting rows."""
        if field.name == "id":
            return pyarrow.array(range(self._next, self._next + len(self._rows)), field.type)
        values = [row.get(field.name) for row in self._rows]
        return _vectors(values, field.type) if _is_vector(field.type) else pyarrow.array(values, field.type)

    def _join(self) -> None:
        """Writes FILE.parquet from what it held before and the parts, a row group for each, and removes the parts."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        schema = self.schema.with_metadata({_RUN: ",".join(self._runs()).encode()})
        try:
            with pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
                for source in self._sources():
                    with _opened(source) as file:
                        for group in range(file.num_row_groups):
                            writer.write_table(file.read_row_group(group).cast(schema))
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(self.path)
            if self.folder.exists():
                shutil.rmtree(self.folder)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def _runs(self) -> set[str]:
        """Returns the ids of the runs that have written the parts."""
        return {part.stem.partition("-")[2] for part in self._parts}

    def _drop_joined(self) -> None:
        """Deletes parts that FILE.parquet already holds: the job was killed between joining and removing them."""
        if not self.path.exists():
            return
        with _opened(self.path) as file:
            held = (file.schema_arrow.metadata or {}).get(_RUN, b"")
        for run in held.decode().split(","):
            for part in self.folder.glob(f"*-{run}.parquet") if run else ():
                part.unlink()

    def _paths(self) -> Iterator[str]:
        """Yields the paths that have a row; raises a UserError for files with other columns."""
        for source in self._sources():
            with _opened(source) as file:
                if not file.schema_arrow.equals(self.schema):
                    raise UserError(f"{source}: has other columns than this command writes; not resumed")
                for batch in file.iter_batches(columns=["path"]):
                    yield from batch.column(0).to_pylist()

    def _sources(self) -> list[Path]:
        """Lists FILE.parquet, if it exists, and the parts."""
        return [*([self.path] if self.path.exists() else []), *self._parts]


def vector_column(schema: pyarrow.Schema) -> pyarrow.Field:
    """Returns the first column that holds vectors of one width."""
    return next(field for field in schema if _is_vector(field.type))


def _is_vector(kind: pyarrow.DataType) -> bool:
    """Tells whether a column holds vectors of one width."""
    return pyarrow.types.is_fixed_size_list(kind)


def _vectors(vectors: list[np.ndarray | None], kind: pyarrow.FixedSizeListType) -> pyarrow.Array:
    """Returns a fixed-size list array made directly from the numbers; a missing vector is null."""
    dtype = np.dtype(kind.value_type.to_pandas_dtype())
    empty = np.zeros(kind.list_size, dtype)
    flat = np.concatenate([empty if vector is None else vector.astype(dtype) for vector in vectors])
    missing = pyarrow.array([vector is None for vector in vectors])
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat), kind.list_size, mask=missing)


def _opened(path: Path) -> pyarrow.parquet.ParquetFile:
    """Opens a parquet file, or raises a UserError if it is damaged."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path}: damaged or not a parquet file; not resumed") from error
