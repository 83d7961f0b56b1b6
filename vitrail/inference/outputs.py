"""Where results go: CSV, JSON lines or parquet, written as they come and safe to resume after any kill.

CSV and JSONL grow in place, whole lines at a time; a line that a kill cut short is cut off when the job is resumed.
Parquet cannot grow: rows are collected in `FILE.parquet.parts/`, each part whole under its name or not there, and
joined to FILE.parquet at the end. How several processes write one output is in `shares.py`.
"""

import array
import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from vitrail.errors import UserError

FORMATS = (".csv", ".jsonl", ".parquet")
Row = dict[str, Any]


class Writer(Protocol):
    """Takes rows; `seen` tells which paths an earlier, interrupted job has written."""

    seen: "Seen"
    count: int
    """Rows that were there already."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self, finished: bool) -> None:
        """Finished, or interrupted with more to come."""
        ...


class Seen:
    """The paths that have a row, in eight bytes each: a million of them must fit beside a model."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        numbers = array.array("Q", (_number(path) for path in paths))
        self._numbers = np.sort(np.frombuffer(numbers, dtype=np.uint64)) if numbers else np.empty(0, np.uint64)

    def __contains__(self, path: object) -> bool:
        number = np.uint64(_number(str(path)))
        place = int(np.searchsorted(self._numbers, number))
        return place < len(self._numbers) and self._numbers[place] == number

    def __len__(self) -> int:
        return len(self._numbers)

    def __or__(self, other: "Seen") -> "Seen":
        both = Seen()
        both._numbers = np.sort(np.concatenate([self._numbers, other._numbers]))
        return both

    def __le__(self, other: "Seen") -> bool:
        """Whether every path of this one is in the other."""
        return bool(np.isin(self._numbers, other._numbers).all())


def writable(path: str) -> str:
    """A path as text that every format can hold: bytes of a name that are no UTF-8 are written as escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _number(path: str) -> int:
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8"), digest_size=8).digest(), "big")


def check_out(out: Path, formats: tuple[str, ...] = FORMATS) -> None:
    if out.suffix.lower() not in formats:
        raise UserError(f"--out {out}: the name must end in {' or '.join(formats)}")


def open_predictions(out: Path, top: int, *, resume: bool = False, overwrite: bool = False) -> Writer:
    """A writer of rows {path, top: [{label, description, score}], error}."""
    check_out(out)
    make_way(out, resume, overwrite)
    if out.suffix.lower() == ".jsonl":
        return JsonlWriter(out)
    if out.suffix.lower() == ".csv":
        return CsvWriter(out, top)
    import pyarrow

    from vitrail.inference.parquet import ParquetWriter

    guess = pyarrow.struct(
        [("label", pyarrow.string()), ("description", pyarrow.string()), ("score", pyarrow.float32())]
    )
    schema = pyarrow.schema([("path", pyarrow.string()), ("top", pyarrow.list_(guess)), ("error", pyarrow.string())])
    return ParquetWriter(out, schema)


def open_embeddings(
    out: Path, width: int, dtype: str = "float32", *, resume: bool = False, overwrite: bool = False
) -> Writer:
    """A writer of rows {path, embedding, error}; it numbers them."""
    check_out(out, (".parquet",))
    make_way(out, resume, overwrite)
    import pyarrow

    from vitrail.inference.parquet import ParquetWriter

    number = {"float16": pyarrow.float16(), "float32": pyarrow.float32()}[dtype]
    fields = [("id", pyarrow.int64()), ("path", pyarrow.string()), ("embedding", pyarrow.list_(number, width))]
    return ParquetWriter(out, pyarrow.schema([*fields, ("error", pyarrow.string())]))


class _LineWriter:
    """What CSV and JSONL share: appended to in place, flushed with every batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.seen, end = self._read() if path.exists() else (Seen(), 0)
            self.count = len(self.seen)
            self.file: IO[str] = path.open("a", encoding="utf-8", newline="")
            self.file.truncate(end)
            if not end:
                self._start()
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error

    def write(self, rows: Sequence[Row]) -> None:
        try:
            self.file.write("".join(map(self._line, rows)))
            self.file.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self, finished: bool) -> None:
        try:
            with self.file:
                self.file.flush()
                os.fsync(self.file.fileno())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _read(self) -> tuple[Seen, int]:
        """The paths of the whole rows of an earlier job, and where the last of them ends."""
        end = 0

        def paths() -> Iterator[str]:
            nonlocal end
            for number, record in enumerate(records(self.path)):
                try:
                    path = self._path(number, record)
                except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                    raise UserError(f"{self.path}: row {number + 1} is no prediction; not resumed") from None
                end += len(record)
                if path is not None:
                    yield path

        return Seen(paths()), end

    def _start(self) -> None:
        """Write what stands above the rows."""

    def _path(self, number: int, record: bytes) -> str | None:
        """Whose row it is, or None for a row that is not a picture's."""
        raise NotImplementedError

    def _line(self, row: Row) -> str:
        raise NotImplementedError


class JsonlWriter(_LineWriter):
    """One JSON row a line."""

    def _line(self, row: Row) -> str:
        return json.dumps(rounded(row), ensure_ascii=False) + "\n"

    def _path(self, number: int, record: bytes) -> str | None:
        return str(json.loads(record)["path"])


class CsvWriter(_LineWriter):
    """path, label1, score1, ... labelK, scoreK, error"""

    def __init__(self, path: Path, top: int) -> None:
        self.top = top
        pairs = [name for place in range(1, top + 1) for name in (f"label{place}", f"score{place}")]
        self.columns = ["path", *pairs, "error"]
        super().__init__(path)

    def _start(self) -> None:
        self.file.write(_csv_line(self.columns))
        self.file.flush()

    def _line(self, row: Row) -> str:
        cells = [text for guess in row["top"] for text in (guess["label"], f"{guess['score']:.6f}")]
        return _csv_line([row["path"], *cells, *[""] * (2 * self.top - len(cells)), row["error"] or ""])

    def _path(self, number: int, record: bytes) -> str | None:
        cells = next(csv.reader(io.StringIO(record.decode("utf-8"), newline="")))
        if number == 0 and cells != self.columns:
            raise UserError(f"{self.path}: has other columns than --top {self.top} gives; not resumed")
        return cells[0] if number else None


def records(path: Path) -> Generator[bytes]:
    """Whole rows of a CSV or JSONL file with their line ends; in CSV the first is the head.

    In CSV a name may hold a line break, between quotes: those must be even.
    """
    record, quoted = b"", path.suffix.lower() == ".csv"
    with path.open("rb") as file:
        for line in file:
            record += line
            if line.endswith(b"\n") and (not quoted or record.count(b'"') % 2 == 0):
                yield record
                record = b""


def _csv_line(cells: Sequence[str]) -> str:
    # Not the csv module's: it leaves a carriage return unquoted, which many readers take for the end of a row.
    quoted = (f'"{cell.replace(chr(34), chr(34) * 2)}"' if set(cell) & set(',"\r\n') else cell for cell in cells)
    return ",".join(quoted) + "\n"


class Collected:
    """Rows kept in memory, for Python callers and small tables."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.seen, self.count = Seen(), 0

    def write(self, rows: Sequence[Row]) -> None:
        self.rows += rows

    def close(self, finished: bool) -> None:
        pass


class JsonArray:
    """One JSON document, a list of rows, printed as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream
        self.seen, self.count = Seen(), 0

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.stream.write(("[\n  " if not self.count else ",\n  ") + json.dumps(rounded(row), ensure_ascii=False))
            self.count += 1
        self.stream.flush()

    def close(self, finished: bool) -> None:
        self.stream.write("\n]\n" if self.count else "[]\n")


def rounded(row: Row) -> Row:
    """Six digits of a score are all that float32 can promise."""
    return {**row, "top": [{**guess, "score": round(guess["score"], 6)} for guess in row["top"]]}


def parts_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def shares_folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.processes")


def make_way(out: Path, resume: bool, overwrite: bool) -> None:
    """What is there stays to go on with, or goes, or is an error: never written over unasked."""
    folders = parts_folder(out), shares_folder(out)
    there = [path for path in (out, *folders) if os.path.lexists(path)]
    if resume or not there:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
        if out.is_dir():
            raise UserError(f"--out {out}: is a folder; give the name of a file")
        return
    if not overwrite or out.is_dir():
        raise UserError(f"{there[0]}: exists already; give --resume to go on with it, or --overwrite")
    out.unlink(missing_ok=True)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
