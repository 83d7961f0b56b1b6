"""Joins the output of several processes: each writes a file of its own, and these become one.

`FILE.processes/` holds a file for each process, `RANK-of-COUNT.csv` (or .jsonl, .parquet), written as `outputs.py`
writes any output. Beside it, `RANK-of-COUNT.places` holds the place of each of its rows among all inputs, in eight
bytes a row. Rows are put in order by their places, so files of a job that was stopped and continued with another number
of processes can be joined too.
"""

import heapq
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import reduce
from itertools import islice, repeat
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.inputs import Input, writable
from vitrail.errors import UserError
from vitrail.inference.jobs.rows import Row
from vitrail.inference.jobs.text_files import records
from vitrail.inference.jobs.writers import RowWriter, Seen, parts_folder, processes_folder

_PLACE = np.dtype("<u8")
"""How a place is stored."""
_CHUNK = 4096
"""The number of rows, or places, that are handled at a time."""
_PATIENCE = 90.0
"""Seconds to wait for a new file to appear: a network file system may for a while remember that it was missing."""

OpenWriter = Callable[[Path], RowWriter]
"""Opens a writer that continues the file if it exists."""


class ProcessFile:
    """The writer of one process, which also notes the place of every row among all inputs."""

    def __init__(self, path: Path, opened: OpenWriter) -> None:
        self._waiting: deque[int] = deque()
        # Places are written before their rows: extra places can be cut off, missing ones could not be found out.
        with _writing(path):
            path.parent.mkdir(exist_ok=True)
            self._places = _places_of(path).open("ab")
        self._writer = opened(path)
        self.seen, self.count = self._writer.seen, self._writer.count
        self.rows = self.count

    def take(self, inputs: Iterable[Input], rank: int, count: int, seen: Seen) -> Iterator[Input]:
        """Yields the inputs of this process that have no row yet.

        An input belongs to process `rank` of `count` by its place among all inputs, so it belongs to exactly one,
        whichever already have a row (`seen`).
        """
        for place, each in enumerate(inputs):
            if place % count == rank and (each.path is None or writable(each.path) not in seen):
                self._waiting.append(place)
                yield each

    def write(self, rows: Sequence[Row]) -> None:
        """Writes the rows and their places."""
        places = [self._waiting.popleft() for _ in rows]
        with _writing(self._places.name):
            self._places.write(np.array(places, _PLACE).tobytes())
            self._places.flush()
        self._writer.write(rows)
        self.rows += len(rows)

    def close(self, finished: bool) -> None:
        """Closes both files; `finished` says that no rows are missing."""
        try:
            self._writer.close(finished)
        finally:
            self._places.close()


def path_of(out: Path, rank: int, count: int) -> Path:
    """Returns the file into which process `rank` of `count` writes its rows."""
    return processes_folder(out) / f"{rank}-of-{count}{out.suffix}"


def recover(out: Path, opened: OpenWriter) -> Seen:
    """Repairs the files that an earlier job left, with any number of processes; returns the paths that have a row."""
    shutil.rmtree(_hidden(out), ignore_errors=True)
    before = _recovered(out, opened) if out.exists() or parts_folder(out).exists() else Seen()
    beside = reduce(or_, (_recovered_file(file, opened) for file in _files(out)), Seen())
    if len(beside) and beside <= before:  # all of them are in FILE: they were joined, but not yet removed
        _clear(out)
        return before
    return before | beside


def check_visible(out: Path, count: int, patience: float = _PATIENCE) -> None:
    """Waits until this process sees the files of all others, so that a folder that is not shared is noticed before
    hours of work."""
    until = time.monotonic() + patience
    while lacking := [rank for rank in range(count) if _rows(path_of(out, rank, count), missing=-1) < 0]:
        if time.monotonic() > until:
            raise _not_visible(out, lacking[0])
        time.sleep(0.2)


def join_process_files(out: Path, rows: Sequence[int]) -> None:
    """Writes FILE from what it held before and the rows of all processes by their places, and removes their files.

    Args:
        out: FILE.
        rows: The number of rows that each process has written by its own count; a UserError if a file shows another
            number.
    """
    for rank, expected in enumerate(rows):
        if _rows(path_of(out, rank, len(rows))) != expected:
            raise _not_visible(out, rank)
    files = _files(out)
    if out.exists() and not any(_rows(file) for file in files):
        return _clear(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    fill = _join_tables if out.suffix.lower() == ".parquet" else _join_lines
    try:
        with _writing(out):
            fill(temporary, out, files)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return _clear(out)


def _join_lines(temporary: Path, out: Path, files: Sequence[Path]) -> None:
    """Joins .csv or .jsonl files into `temporary`."""
    with ExitStack() as stack:
        joined = stack.enter_context(temporary.open("wb"))
        readers = [stack.enter_context(closing(records(file))) for file in files]
        heads = [next(reader) for reader in readers] if out.suffix.lower() == ".csv" else [b""]
        if out.exists():
            shutil.copyfileobj(stack.enter_context(out.open("rb")), joined)
        else:
            joined.write(heads[0])
        for index in _order(files):
            joined.write(next(readers[index]))


def _join_tables(temporary: Path, out: Path, files: Sequence[Path]) -> None:
    """Joins parquet files into `temporary`, and numbers the rows anew where they have an `id`."""
    import pyarrow
    from pyarrow.parquet import ParquetFile, ParquetWriter

    with ExitStack() as stack:
        # Without read-ahead, so that memory holds only a little of every file at a time.
        opened = [stack.enter_context(ParquetFile(file, pre_buffer=False, buffer_size=1 << 16)) for file in files]
        schema = opened[0].schema_arrow.remove_metadata()
        writer = stack.enter_context(ParquetWriter(temporary, schema))
        written = 0

        def add(table: Any) -> None:
            """Appends a table, with the next numbers as `id`."""
            nonlocal written
            if "id" in schema.names:
                numbers = pyarrow.array(range(written, written + len(table)), pyarrow.int64())
                table = table.set_column(schema.names.index("id"), "id", numbers)
            writer.write_table(table.cast(schema))
            written += len(table)

        if out.exists():
            before = stack.enter_context(ParquetFile(out))
            for group in range(before.num_row_groups):
                add(before.read_row_group(group))
        readers = [_TableReader(file, max(1, _CHUNK // len(files))) for file in opened]
        order = _order(files)
        while chunk := list(islice(order, _CHUNK)):
            counts = np.bincount(chunk, minlength=len(files)).tolist()
            parts = [reader.take(count) for reader, count in zip(readers, counts, strict=True) if count]
            # `parts` has the rows of one file after those of another; `places` are the indices that restore the order.
            places = np.argsort(np.argsort(chunk, kind="stable"), kind="stable")
            add(pyarrow.concat_tables(parts).combine_chunks().take(places))


class _TableReader:
    """Reads the rows of a parquet file a few at a time."""

    def __init__(self, file: Any, batch: int) -> None:
        self.batches = file.iter_batches(batch_size=batch)
        self.rest: list[Any] = []

    def take(self, count: int) -> Any:
        """Returns the next `count` rows as a table."""
        import pyarrow

        while sum(len(each) for each in self.rest) < count:
            self.rest.append(pyarrow.Table.from_batches([next(self.batches)]).replace_schema_metadata())
        table = pyarrow.concat_tables(self.rest)
        self.rest = [table.slice(count)]
        return table.slice(0, count)


def _order(files: Sequence[Path]) -> Iterator[int]:
    """Yields, row by row, the index of the file that has the next row."""
    numbered = [zip(_places(file), repeat(index), strict=False) for index, file in enumerate(files)]
    return (index for _, index in heapq.merge(*numbered))


def _places(file: Path) -> Iterator[int]:
    """Yields the places of a file's rows."""
    # Opened again for every chunk: with a thousand processes, keeping all open would exceed most systems' limit.
    path, start = _places_of(file), 0
    while len(places := np.fromfile(path, _PLACE, _CHUNK, offset=start)):
        yield from places.tolist()
        start += places.nbytes


def _rows(file: Path, missing: int = 0) -> int:
    """Counts the rows of a file by its places. That file is opened, since a network file system may report an old
    size."""
    try:
        with _places_of(file).open("rb") as places:
            return places.seek(0, os.SEEK_END) // _PLACE.itemsize
    except FileNotFoundError:
        return missing


def _not_visible(out: Path, rank: int) -> UserError:
    """Returns the error for a process whose file the first one cannot see."""
    return UserError(
        f"{processes_folder(out)}: what process {rank} writes cannot be seen by the first; put --out on a file system "
        "that all processes share"
    )


def _files(out: Path) -> list[Path]:
    """Lists the files of all processes that have places."""
    found = sorted(processes_folder(out).glob("*.places"), key=lambda path: (len(path.name), path.name))
    return [path.with_suffix(out.suffix) for path in found]


def _places_of(file: Path) -> Path:
    """Returns the file with the places of a file's rows."""
    return file.with_suffix(".places")


def _recovered_file(file: Path, opened: OpenWriter) -> Seen:
    """Repairs the file of one process and shortens its places to the number of rows; returns the paths that have a
    row."""
    seen, places = _recovered(file, opened), _places_of(file)
    if _rows(file) < len(seen):
        raise UserError(f"{file}: is damaged, its rows have lost their places; begin anew with --overwrite")
    with _writing(places):
        os.truncate(places, _PLACE.itemsize * len(seen))
    return seen


def _recovered(path: Path, opened: OpenWriter) -> Seen:
    """Repairs a file by opening and closing it: removes a cut-off row, joins its parts; returns the paths that have a
    row."""
    writer = opened(path)
    writer.close(True)
    return writer.seen


def _hidden(out: Path) -> Path:
    """Returns the folder that `FILE.processes` is renamed to before it is deleted."""
    return processes_folder(out).with_name(f".{out.name}.processes")


def _clear(out: Path) -> None:
    """Removes the files of all processes. The folder is renamed first, so that a kill leaves no half of them to be
    read."""
    shutil.rmtree(_hidden(out), ignore_errors=True)
    if processes_folder(out).exists():
        with _writing(out):
            processes_folder(out).rename(_hidden(out))
    shutil.rmtree(_hidden(out), ignore_errors=True)


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """Turns an OSError in the block into a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
