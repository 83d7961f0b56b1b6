"""Opens the files that results are written to as they come, and that can be resumed after any kill.

CSV and JSONL grow in place (`text_files.py`). Parquet cannot grow: its rows are collected in `FILE.parquet.parts/` and
joined at the end (`parquet.py`). An array is made from a parquet file at the end (`npy.py`). `process_files.py` lets
several processes write one output.
"""

from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import UserError
from vitrail.inference.jobs import npy
from vitrail.inference.jobs.rows import AnswerColumns, TableColumns
from vitrail.inference.jobs.text_files import CsvWriter, JsonlWriter
from vitrail.inference.jobs.writers import RowWriter, prepare_output


@dataclass(frozen=True)
class OutputFile:
    """A file to write rows to, and what to do if it exists. It checks itself when it is made."""

    path: Path
    formats: tuple[str, ...]
    """The endings of files that can hold these rows."""
    resume: bool = False
    """Continue the file if it exists."""
    overwrite: bool = False
    """Replace the file if it exists."""

    def __post_init__(self) -> None:
        if self.path.suffix.lower() not in self.formats:
            raise UserError(f"--out {self.path}: the name must end in {' or '.join(self.formats)}")
        if self._is_array:
            npy.check_free(self.path, self.resume, self.overwrite)

    @property
    def growing(self) -> Path:
        """Returns the file that rows are written to; for an array that is a parquet file, from which it is made at the
        end."""
        return npy.collected_in(self.path) if self._is_array else self.path

    def finish(self) -> None:
        """Makes the array from the file that all rows were written to; other files are finished already."""
        if self._is_array:
            npy.finish_npy(self.path)

    @property
    def _is_array(self) -> bool:
        """Tells whether the output is an array (.npy)."""
        return self.path.suffix.lower() == npy.ENDING


def open_writer(path: Path, columns: TableColumns, *, resume: bool = False, overwrite: bool = False) -> RowWriter:
    """Opens a .csv, .jsonl or .parquet file for rows of these columns."""
    prepare_output(path, resume, overwrite)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        from vitrail.inference.jobs.parquet import ParquetWriter  # imports pyarrow, which text files do not need

        return ParquetWriter(path, columns.schema())
    if suffix == ".csv":
        return CsvWriter(path, columns)
    assert suffix == ".jsonl", suffix
    assert isinstance(columns, AnswerColumns), "only answers can be written as JSON"
    return JsonlWriter(path, columns)
