"""Writes CSV and JSON lines: files that grow in place by whole lines.

A line that a kill cut short is removed when the job is resumed.
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
from vitrail.inference.jobs.rows import AnswerColumns, Row, TableColumns
from vitrail.inference.jobs.writers import Seen
from vitrail.io.documents import parse_object


class LineWriter(ABC):
    """The base of the CSV and JSONL writers: files are appended to in place and flushed after every batch."""

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
        """Appends rows."""
        try:
            self.file.write("".join(map(self._line, rows)))
            self.file.flush()
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def close(self, finished: bool) -> None:
        """Closes the file after it has reached the disk."""
        try:
            with self.file:
                self.file.flush()
                os.fsync(self.file.fileno())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def _read(self) -> tuple[Seen, int]:
        """Returns the paths of the complete rows of an earlier job, and the offset at which the last of them ends."""
        end = 0

        def paths() -> Iterator[str]:
            """Yields the path of each complete row."""
            nonlocal end
            for number, record in enumerate(records(self.path)):
                try:
                    path = self._path(number, record)
                except (ValueError, KeyError, TypeError, IndexError):
                    raise UserError(f"{self.path}: row {number + 1} is no prediction; not resumed") from None
                end += len(record)
                if path is not None:
                    yield path

        return Seen(paths()), end

    def _head(self) -> str:
        """Returns the text above the rows."""
        return ""

    @abstractmethod
    def _path(self, number: int, record: bytes) -> str | None:
        """Returns the path of the row `record`, or None for a line that is no picture's.

        It may raise any error of reading text that is not a row.
        """

    @abstractmethod
    def _line(self, row: Row) -> str:
        """Returns the row as text, with its line end."""


class JsonlWriter(LineWriter):
    """Writes one JSON object a line."""

    def __init__(self, path: Path, columns: AnswerColumns) -> None:
        self.columns = columns
        super().__init__(path)

    def _line(self, row: Row) -> str:
        return json.dumps(self.columns.document(row), ensure_ascii=False) + "\n"

    def _path(self, number: int, record: bytes) -> str | None:
        try:
            return str(parse_object(record, self.path)["path"])
        except UserError as error:
            raise ValueError(str(error)) from error


class CsvWriter(LineWriter):
    """Writes a header, then a line of cells for each row, the first of which is its path."""

    def __init__(self, path: Path, columns: TableColumns) -> None:
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
    """Yields the complete rows of a CSV or JSONL file with their line ends; in CSV the first is the header.

    A quoted name in CSV may contain a line break, so a row is complete only if its number of quotes is even.
    """
    record, quoted = b"", path.suffix.lower() == ".csv"
    with path.open("rb") as file:
        for line in file:
            record += line
            if line.endswith(b"\n") and (not quoted or record.count(b'"') % 2 == 0):
                yield record
                record = b""


def csv_line(cells: Sequence[str]) -> str:
    """Returns the cells as a line of CSV."""
    # The csv module would leave a carriage return unquoted, which many readers take for the end of a row.
    quoted = (f'"{cell.replace(chr(34), chr(34) * 2)}"' if set(cell) & set(',"\r\n') else cell for cell in cells)
    return ",".join(quoted) + "\n"
