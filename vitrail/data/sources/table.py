"""A table of image files and their targets: .csv, or .parquet with a column of file names.

How the targets are read is each task's own affair (`Target.from_columns`): here is what all tables have, the files and
the splits.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.sources.base import Source, SourceKind, Split, SplitRule, finish
from vitrail.data.sources.folder import FilesReader
from vitrail.data.sources.parquet import holds_bytes
from vitrail.data.sources.splits import SPLIT_NAMES
from vitrail.errors import UserError
from vitrail.tasks import task, task_names
from vitrail.tasks.base import BadCell, ReadColumns

FILE_NAMES = ("file", "path", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "photo")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
TARGET_NAMES = ("label", "labels", "class", "class_name", "category", "tags", "target", "cls", "y")
"""Where a column is called so, it is what is learned, and others are not looked at."""


@dataclass(frozen=True)
class Table:
    """The cells of a table as text, "" for an empty one, by the names of the columns."""

    path: Path
    columns: dict[str, list[str]]
    lines: Sequence[int] = ()
    """Of the file, where each row ends; empty where a file has no lines, and rows are counted from 1."""

    def where(self, row: int) -> str:
        """Names a row for messages."""
        return f"{self.path}, " + (f"line {self.lines[row]}" if self.lines else f"row {row + 1}")

    def take(self, names: Sequence[str]) -> tuple[str, list[str]] | None:
        """Takes out the first of these columns that there is, whatever its case."""
        found = {each.strip().lower(): each for each in reversed(self.columns)}
        name = next((found[each] for each in names if each in found), None)
        return None if name is None else (name, self.columns.pop(name))


class TableFile(SourceKind):
    words = "a .csv or .parquet table of image files"

    def recognises(self, path: Path) -> bool:
        return path.is_file() and is_table(path)

    def open(self, path: Path, rule: SplitRule, asked: str | None) -> Source:
        return open_table(path, rule, asked)


def is_table(path: Path) -> bool:
    """Tells whether a file is a table of files, and not of the pictures themselves."""
    if path.suffix.lower() == ".csv":
        return True
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException):
        return False  # whoever opens it says why
    text = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    names = [field.name.lower() for field in schema if any(is_text(field.type) for is_text in text)]
    return any(name in FILE_NAMES for name in names) and not any(holds_bytes(field.type) for field in schema)


def open_table(path: Path, rule: SplitRule, asked: str | None = None) -> Source:
    """Opens a table; files are named relative to its folder, and are the ids of the samples. asked: the task that its
    columns are read for; None: the first that can read them."""
    table = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    header = list(table.columns)
    files = table.take(FILE_NAMES)
    if files is None:
        raise UserError(
            f"{path} has no column of image files (one named {', '.join(FILE_NAMES[:4])} ...): its columns are "
            f"{', '.join(header)}"
        )
    names = _files(table, *files)
    splits = _splits(table)
    chosen, (classes, targets), notes = _targets(table, asked)
    reader = FilesReader(path.parent, tuple(names))
    found = {}
    for name in dict.fromkeys(splits):
        rows = np.array([row for row, each in enumerate(splits) if each == name], dtype=np.int64)
        found[name] = Split(name, [names[row] for row in rows], targets[rows], reader, rows, chosen)
    return finish(str(path), classes, found, rule, notes)


def _targets(table: Table, asked: str | None) -> tuple[str, ReadColumns, list[str]]:
    """The task, what its columns say, and a sentence on both."""
    columns, ignored = table.columns, []
    if (named := table.take(TARGET_NAMES)) is not None:
        ignored, columns = list(table.columns), dict([named])
    if not columns:
        raise UserError(f"{table.path} has no column besides the files: add one that says what is to be learned")
    candidates = sorted(task_names(), key=lambda name: task(name).target.precedence) if asked is None else [asked]
    for candidate in candidates:
        target = task(candidate).target
        try:
            read = target.from_columns(columns, asked is not None)
        except BadCell as error:
            raise UserError(f"{table.where(error.row)}: the cell of {error.column!r} {error.reason}") from error
        if read is not None:
            shown = _listed(list(columns))
            aside = f" ({_listed(ignored)} not used)" if ignored else ""
            otherwise = "" if asked else "; --task says otherwise"
            told = f"{table.path}: {target.counted(read[0])} ({candidate}) by {shown}{aside}{otherwise}"
            return candidate, read, [told]
    shown, last = _listed(list(columns)), list(columns)[-1]
    purpose = f"for {asked}" if asked else f"for any of {', '.join(candidates)}"
    raise UserError(
        f"{table.path}: the {shown} cannot be read {purpose}: give one column of classes, one of labels joined by |, "
        f"one of 0 and 1 for each label, or columns of numbers, and take others ({last!r}?) out"
    )


def _listed(names: list[str]) -> str:
    word = "column" if len(names) == 1 else "columns"
    return f"{word} {', '.join(names[:5])}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files(table: Table, column: str, cells: list[str]) -> list[str]:
    """The files by their names, all of which exist, each once."""
    names = [cell.strip() for cell in cells]
    seen: dict[str, int] = {}
    missing: list[int] = []
    for row, name in enumerate(names):
        if not name:
            raise UserError(f"{table.where(row)}: the cell of {column!r} is empty: name an image file, or take it out")
        if name in seen:
            raise UserError(
                f"{table.where(row)}: {name} stands in {table.where(seen[name])} already: a picture has one row, with "
                "its labels joined by |"
            )
        seen[name] = row
        if not (table.path.parent / name).is_file():
            missing.append(row)
    if missing:
        more = f", nor do {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{table.where(missing[0])}: {table.path.parent / names[missing[0]]} does not exist{more}: files are named "
            f"relative to the table's folder, {table.path.parent}"
        )
    return names


def _splits(table: Table) -> list[str]:
    """The split of each row, all "" where there is no such column."""
    rows = len(next(iter(table.columns.values()), []))
    found = table.take(SPLIT_COLUMNS)
    if found is None:
        return [""] * rows
    column, cells = found
    named = [SPLIT_NAMES.get(cell.strip().lower(), "") for cell in cells]
    if "" in named:
        row = named.index("")
        raise UserError(
            f"{table.where(row)}: {cells[row]!r} in {column!r} is no split: write train, val or test in every row"
        )
    return named


def _read_csv(path: Path) -> Table:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; save it as UTF-8") from error
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: cannot be read as a table: {error}") from error
    if len(rows) < 2:
        raise UserError(f"{path} has no rows below its header: a header is needed, then a row for each picture")
    (_, header), *rest = rows
    names = [cell.strip() for cell in header]
    doubled = next((name for place, name in enumerate(names) if name in names[:place] or not name), None)
    if doubled is not None:
        raise UserError(f"{path}: the column name {doubled!r} occurs more than once, or is empty: name each column")
    for number, row in rest:
        if len(row) != len(names):
            raise UserError(f"{path}, line {number}: has {len(row)} cells, but there are {len(names)} columns")
    columns = {name: [row[place] for _, row in rest] for place, name in enumerate(names)}
    return Table(path, columns, [number for number, _ in rest])


def _read_parquet(path: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        read = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not read.num_rows:
        raise UserError(f"{path} has no rows: a row is needed for each picture")
    return Table(path, {name: [_text(cell) for cell in read.column(name).to_pylist()] for name in read.column_names})


def _text(cell: object) -> str:
    """A value as a cell of a .csv file would have it; a list as its parts joined by |."""
    if cell is None:
        return ""
    if isinstance(cell, list):
        return "|".join(map(str, cell))
    return str(cell)
