"""CSV and JSON lines: files that grow in place, whole lines at a time.

A line that a kill cut short is cut off when the job is resumed.
"""

import csv
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import IO

from vitrail.errors import UserError
from vitrail.inference.jobs.rows import AnswerColumns, Columns, Row
from vitrail.inference.jobs.writers import Seen


class LineWriter(ABC):
    """What CSV and JSONL share: appended to in place, flushed with every batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.seen, end = self._read() if path.exists() else (Seen(), 0)
            self.count = len(self.seen)
            self.file: IO[str] = path.open("a", encoding="utf-8", newline="")
            self.file.truncate(end)
            if not end:
                self.file.write(self._head())
                self.file.flush()
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

    def _head(self) -> str:
        """Returns what stands above the rows."""
        return ""

    @abstractmethod
    def _path(self, number: int, record: bytes) -> str | None:
        """Returns whose row it is, or None for a row that is not a picture's. It may raise what reading text that is no
        row raises."""

    @abstractmethod
    def _line(self, row: Row) -> str:
        """Returns the row as text, with the end of the line."""


class JsonlWriter(LineWriter):
    """One JSON row a line."""

    def __init__(self, path: Path, columns: AnswerColumns) -> None:
        self.columns = columns
        super().__init__(path)

    def _line(self, row: Row) -> str:
        return json.dumps(self.columns.document(row), ensure_ascii=False) + "\n"

    def _path(self, number: int, record: bytes) -> str | None:
        return str(json.loads(record)["path"])


class CsvWriter(LineWriter):
    """A header, then a line of cells for each row; the first is its path."""

    def __init__(self, path: Path, columns: Columns) -> None:
        self.columns = columns
        super().__init__(path)

    def _head(self) -> str:
        return csv_line(self.columns.names)

    def _line(self, row: Row) -> str:
        return csv_line(self.columns.cells(row))

    def _path(self, number: int, record: bytes) -> str | None:
        cells = next(csv.reader(io.StringIO(record.decode("utf-8"), newline="")))
        if number == 0 and cells != list(self.columns.names):
            raise UserError(f"{self.path}: has other columns than {self.columns.given} gives; not resumed")
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


def csv_line(cells: Sequence[str]) -> str:
    # Not the csv module's: it leaves a carriage return unquoted, which many readers take for the end of a row.
    quoted = (f'"{cell.replace(chr(34), chr(34) * 2)}"' if set(cell) & set(',"\r\n') else cell for cell in cells)
    return ",".join(quoted) + "\n"
