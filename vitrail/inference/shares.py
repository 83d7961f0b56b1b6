"""One output of several processes: each writes its share beside it, and the shares become one file.

`FILE.processes/` holds a share for each process, `RANK-of-COUNT.csv` (or .jsonl, .parquet), written as `outputs.py`
writes any output. Beside it, `RANK-of-COUNT.places` says where each of its rows stands among all inputs, in eight bytes
a row. By the places rows are put in order, so shares of a job that was stopped and went on with another number of
processes join as well.
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

from vitrail.errors import UserError
from vitrail.inference.inputs import Input
from vitrail.inference.outputs import Row, Seen, Writer, parts_folder, records, shares_folder, writable

_PLACE = np.dtype("<u8")
_CHUNK = 4096
"""Rows, or places, at a time."""
_PATIENCE = 90.0
"""Seconds until a new file must have appeared everywhere: network file systems remember for a while what was not."""

OpenWriter = Callable[[Path], Writer]
"""A writer that goes on with what is there."""


class Share:
    """The writer of one process, which remembers the place of every row."""

    def __init__(self, path: Path, opened: OpenWriter) -> None:
        self._waiting: deque[int] = deque()
        # Places are written before their rows: those too many are cut off, but nothing could say them later.
        with _writing(path):
            path.parent.mkdir(exist_ok=True)
            self._places = _places_of(path).open("ab")
        self._writer = opened(path)
        self.seen, self.count = self._writer.seen, self._writer.count
        self.rows = self.count

    def take(self, inputs: Iterable[Input], rank: int, count: int, seen: Seen) -> Iterator[Input]:
        """Those of the inputs that are this process's and have no row yet. Whose they are is decided by their place
        among all, so each is exactly one's, whatever has a row already."""
        for place, each in enumerate(inputs):
            if place % count == rank and (each.path is None or writable(each.path) not in seen):
                self._waiting.append(place)
                yield each

    def write(self, rows: Sequence[Row]) -> None:
        places = [self._waiting.popleft() for _ in rows]
        with _writing(self._places.name):
            self._places.write(np.array(places, _PLACE).tobytes())
            self._places.flush()
        self._writer.write(rows)
        self.rows += len(rows)

    def close(self, finished: bool) -> None:
        try:
            self._writer.close(finished)
        finally:
            self._places.close()


def share_of(out: Path, rank: int, count: int) -> Path:
    return shares_folder(out) / f"{rank}-of-{count}{out.suffix}"


def settle(out: Path, opened: OpenWriter) -> Seen:
    """Make whole what an earlier job left, of this number of processes or another; the paths that have a row."""
    shutil.rmtree(_hidden(out), ignore_errors=True)
    before = _settled(out, opened) if out.exists() or parts_folder(out).exists() else Seen()
    shared = reduce(or_, (_settled_share(share, opened) for share in _shares(out)), Seen())
    if len(shared) and shared <= before:  # what has a row is in no share, so these were joined and not cleared up
        _clear(out)
        return before
    return before | shared


def check_shared(out: Path, count: int, patience: float = _PATIENCE) -> None:
    """That this process sees the share of every other one, before hours are spent on them."""
    until = time.monotonic() + patience
    while lacking := [rank for rank in range(count) if _rows(share_of(out, rank, count), missing=-1) < 0]:
        if time.monotonic() > until:
            raise _not_shared(out, lacking[0])
        time.sleep(0.2)


def join(out: Path, rows: Sequence[int]) -> None:
    """FILE from what it held before and the rows of all shares in the order of their places; the shares go. `rows` are
    those of each process, by its own count."""
    for rank, expected in enumerate(rows):
        if _rows(share_of(out, rank, len(rows))) != expected:
            raise _not_shared(out, rank)
    shares = _shares(out)
    if out.exists() and not any(_rows(share) for share in shares):
        return _clear(out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    fill = _join_tables if out.suffix.lower() == ".parquet" else _join_lines
    try:
        with _writing(out):
            fill(temporary, out, shares)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return _clear(out)


def _join_lines(temporary: Path, out: Path, shares: Sequence[Path]) -> None:
    with ExitStack() as stack:
        file = stack.enter_context(temporary.open("wb"))
        readers = [stack.enter_context(closing(records(share))) for share in shares]
        heads = [next(reader) for reader in readers] if out.suffix.lower() == ".csv" else [b""]
        if out.exists():
            shutil.copyfileobj(stack.enter_context(out.open("rb")), file)
        else:
            file.write(heads[0])
        for index in _order(shares):
            file.write(next(readers[index]))


def _join_tables(temporary: Path, out: Path, shares: Sequence[Path]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetFile, ParquetWriter

    with ExitStack() as stack:
        # Without reading ahead: a little of every share at a time is all that memory has to hold.
        files = [stack.enter_context(ParquetFile(share, pre_buffer=False, buffer_size=1 << 16)) for share in shares]
        schema = files[0].schema_arrow.remove_metadata()
        writer = stack.enter_context(ParquetWriter(temporary, schema))
        written = 0

        def add(table: Any) -> None:
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
        readers = [_Rows(file, max(1, _CHUNK // len(shares))) for file in files]
        order = _order(shares)
        while chunk := list(islice(order, _CHUNK)):
            counts = np.bincount(chunk, minlength=len(shares)).tolist()
            parts = [reader.take(count) for reader, count in zip(readers, counts, strict=True) if count]
            # The parts stand one after the other: where in them the first row of the chunk is, and so on.
            places = np.argsort(np.argsort(chunk, kind="stable"), kind="stable")
            add(pyarrow.concat_tables(parts).combine_chunks().take(places))


class _Rows:
    """The rows of a parquet file, so many at a time."""

    def __init__(self, file: Any, batch: int) -> None:
        self.batches = file.iter_batches(batch_size=batch)
        self.rest: list[Any] = []

    def take(self, count: int) -> Any:
        import pyarrow

        while sum(len(each) for each in self.rest) < count:
            self.rest.append(pyarrow.Table.from_batches([next(self.batches)]).replace_schema_metadata())
        table = pyarrow.concat_tables(self.rest)
        self.rest = [table.slice(count)]
        return table.slice(0, count)


def _order(shares: Sequence[Path]) -> Iterator[int]:
    """The number of the share that has the next row, row by row."""
    numbered = [zip(_places(share), repeat(index), strict=False) for index, share in enumerate(shares)]
    return (index for _, index in heapq.merge(*numbered))


def _places(share: Path) -> Iterator[int]:
    # Opened for every chunk: there may be a thousand shares, and as many open files are few systems' limit.
    path, start = _places_of(share), 0
    while len(places := np.fromfile(path, _PLACE, _CHUNK, offset=start)):
        yield from places.tolist()
        start += places.nbytes


def _rows(share: Path, missing: int = 0) -> int:
    """By its places. The file is opened, since a network's file system may remember an old size."""
    try:
        with _places_of(share).open("rb") as file:
            return file.seek(0, os.SEEK_END) // _PLACE.itemsize
    except FileNotFoundError:
        return missing


def _not_shared(out: Path, rank: int) -> UserError:
    return UserError(
        f"{shares_folder(out)}: what process {rank} writes cannot be seen by the first; put --out on a file system "
        "that all processes share"
    )


def _shares(out: Path) -> list[Path]:
    found = sorted(shares_folder(out).glob("*.places"), key=lambda path: (len(path.name), path.name))
    return [path.with_suffix(out.suffix) for path in found]


def _places_of(share: Path) -> Path:
    return share.with_suffix(".places")


def _settled_share(share: Path, opened: OpenWriter) -> Seen:
    """A share with as many places as rows."""
    seen, places = _settled(share, opened), _places_of(share)
    if _rows(share) < len(seen):
        raise UserError(f"{share}: is damaged, its rows have lost their places; begin anew with --overwrite")
    with _writing(places):
        os.truncate(places, _PLACE.itemsize * len(seen))
    return seen


def _settled(path: Path, opened: OpenWriter) -> Seen:
    """Without what a kill cut short, and in one file."""
    writer = opened(path)
    writer.close(True)
    return writer.seen


def _hidden(out: Path) -> Path:
    return shares_folder(out).with_name(f".{out.name}.processes")


def _clear(out: Path) -> None:
    """Out of the way in one step, so that a kill leaves no half of them to be taken for shares."""
    shutil.rmtree(_hidden(out), ignore_errors=True)
    if shares_folder(out).exists():
        with _writing(out):
            shares_folder(out).rename(_hidden(out))
    shutil.rmtree(_hidden(out), ignore_errors=True)


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """What the system refuses is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error
