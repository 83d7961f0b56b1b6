"""Where results go: files that are written as rows come, and are safe to resume after any kill.

CSV and JSONL grow in place (`text_files.py`). Parquet cannot grow: its rows are collected in `FILE.parquet.parts/` and
joined at the end (`parquet.py`), and an array is made of a parquet file (`npy.py`). How several processes write one
output is in `process_files.py`.
"""

from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import UserError
from vitrail.inference.jobs import npy
from vitrail.inference.jobs.rows import AnswerColumns, Columns
from vitrail.inference.jobs.text_files import CsvWriter, JsonlWriter
from vitrail.inference.jobs.writers import Writer, prepare


@dataclass(frozen=True)
class OutputFile:
    """A file to write rows into, and what becomes of one that is there. It checks itself when it is made."""

    path: Path
    formats: tuple[str, ...]
    """The endings of files that can hold the rows."""
    resume: bool = False
    """Go on with what is there."""
    overwrite: bool = False
    """Replace what is there."""

    def __post_init__(self) -> None:
        if self.path.suffix.lower() not in self.formats:
            raise UserError(f"--out {self.path}: the name must end in {' or '.join(self.formats)}")
        if self._is_array:
            npy.check_free(self.path, self.resume, self.overwrite)

    @property
    def growing(self) -> Path:
        """The file that rows are written into: an array is made of another one at the end."""
        return npy.collected_in(self.path) if self._is_array else self.path

    def finish(self) -> None:
        """Makes the file of the one that all rows are written into, where it is another."""
        if self._is_array:
            npy.finish(self.path)

    @property
    def _is_array(self) -> bool:
        return self.path.suffix.lower() == npy.ENDING


def open_writer(path: Path, columns: Columns, *, resume: bool = False, overwrite: bool = False) -> Writer:
    """Opens a .csv, .jsonl or .parquet file for rows of these columns."""
    prepare(path, resume, overwrite)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        from vitrail.inference.jobs.parquet import ParquetWriter  # imports pyarrow, which text does without

        return ParquetWriter(path, columns.schema())
    if suffix == ".csv":
        return CsvWriter(path, columns)
    assert suffix == ".jsonl", suffix
    assert isinstance(columns, AnswerColumns), "what is no answer has no JSON"
    return JsonlWriter(path, columns)
