"""Tables of image files and their targets: .csv, or .parquet with a column of file names.

The columns of files and of splits are read here; those of targets are read by each task (`Target.from_columns`).
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.sources.base import OpenOptions, Source, SourceKind, Split, SplitRule, build_source
from vitrail.data.sources.folder import FilesReader
from vitrail.data.sources.image_columns import holds_bytes
from vitrail.data.sources.splits import SPLIT_NAMES
from vitrail.errors import UserError
from vitrail.tasks import task, task_names
from vitrail.tasks.base import BadCell, ReadColumns

# The names of columns, in lower case; the case in a table does not matter.
FILE_NAMES = ("file", "path", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img", "photo")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
TARGET_NAMES = ("label", "labels", "class", "class_name", "category", "tags", "target", "cls", "y")
"""A column with one of these names has the targets, and no other column is used."""


@dataclass(frozen=True)
class Table:
    """A table that has been read."""

    path: Path
    columns: dict[str, list[str]]
    """The cells of each column as text, "" for an empty cell."""
    lines: Sequence[int] = ()
    """The number of the line in the file where each row ends; empty for a file without lines."""

    def where(self, row: int) -> str:
        """Returns the name of a row for messages: its line or, if the file has no lines, its number from 1."""
        return f"{self.path}, " + (f"line {self.lines[row]}" if self.lines else f"row {row + 1}")

    def take(self, names: Sequence[str]) -> tuple[str, list[str]] | None:
        """Removes the first of these columns that exists, and returns its name and cells; None if none exists."""
        found = {column.strip().lower(): column for column in reversed(self.columns)}
        name = next((found[wanted] for wanted in names if wanted in found), None)
        return None if name is None else (name, self.columns.pop(name))


class TableFile(SourceKind):
    """A table of image files."""

    words = "a .csv or .parquet table of image files"

    def recognises(self, path: Path) -> bool:
        return path.is_file() and is_table(path)

    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        return open_table(path, rule, asked.task)


def is_table(path: Path) -> bool:
    """Tells whether a file is a table of image files; a .parquet with the images in it is not."""
    if path.suffix.lower() == ".csv":
        return True
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException):
        return False  # opening it as images in parquet will raise the error
    text = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    names = [field.name.lower() for field in schema if any(is_text(field.type) for is_text in text)]
    return any(name in FILE_NAMES for name in names) and not any(holds_bytes(field.type) for field in schema)


def open_table(path: Path, rule: SplitRule, asked: str | None = None) -> Source:
    """Opens a table. Files are named relative to its folder; their names are the ids of the samples.

    Args:
        path: The table.
        rule: How to make the splits that it does not have.
        asked: The task to read its columns for; None for the first task that can read them.

    Raises:
        UserError: If the table is damaged, files are missing, or no task can read its columns.
    """
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
        rows = np.array([row for row, split in enumerate(splits) if split == name], dtype=np.int64)
        found[name] = Split(name, [names[row] for row in rows], targets[rows], reader, rows, chosen)
    return build_source(str(path), classes, found, rule, notes)


def _targets(table: Table, asked: str | None) -> tuple[str, ReadColumns, list[str]]:
    """Returns the task, its class names and targets read from the columns that are left, and a note on both."""
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
            unused = f" ({_listed(ignored)} not used)" if ignored else ""
            remedy = "" if asked else "; --task NAME reads it for another task"
            note = f"{table.path}: {target.counted(read[0])} ({candidate}) by {shown}{unused}{remedy}"
            return candidate, read, [note]
    shown, last = _listed(list(columns)), list(columns)[-1]
    purpose = f"for {asked}" if asked else f"for any of {', '.join(candidates)}"
    raise UserError(
        f"{table.path}: the {shown} cannot be read {purpose}: give one column of classes, one of labels joined by |, "
        f"one of 0 and 1 for each label, or columns of numbers, and take others ({last!r}?) out"
    )


def _listed(names: list[str]) -> str:
    """Lists the names of columns for a message."""
    word = "column" if len(names) == 1 else "columns"
    return f"{word} {', '.join(names[:5])}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files(table: Table, column: str, cells: list[str]) -> list[str]:
    """Returns the names of the files. Raises UserError if one is empty, occurs twice or does not exist."""
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
    """Returns the split of each row, "" for all if there is no column of splits. Raises UserError for unknown ones."""
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
    """Reads a .csv file separated by commas, semicolons or tabs. Raises UserError if it is not a table."""
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
    doubled = next((name for column, name in enumerate(names) if name in names[:column] or not name), None)
    if doubled is not None:
        raise UserError(f"{path}: the column name {doubled!r} occurs more than once, or is empty: name each column")
    for number, row in rest:
        if len(row) != len(names):
            raise UserError(f"{path}, line {number}: has {len(row)} cells, but there are {len(names)} columns")
    columns = {name: [row[column] for _, row in rest] for column, name in enumerate(names)}
    return Table(path, columns, [number for number, _ in rest])


def _read_parquet(path: Path) -> Table:
    """Reads a .parquet file as text. Raises UserError if it cannot be read or has no rows."""
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
    """Formats a value as a .csv file would have it; the parts of a list are joined by |."""
    if cell is None:
        return ""
    if isinstance(cell, list):
        return "|".join(map(str, cell))
    return str(cell)
