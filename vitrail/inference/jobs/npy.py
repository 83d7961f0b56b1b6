"""Writes vectors as one array, FILE.npy.

Such a file cannot grow, so vectors are collected in a parquet file beside it, which can be resumed and written by
several processes, and become the array at the end.
"""

import os
from pathlib import Path

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.jobs.text_files import csv_line
from vitrail.inference.jobs.writers import parts_folder, processes_folder

ENDING = ".npy"
"""The ending of an array's name."""


def collected_in(out: Path) -> Path:
    """Returns the parquet file from which FILE.npy is made."""
    return out.with_name(f"{out.name}.parquet")


def paths_of(out: Path) -> Path:
    """Returns the file that lists path and error for each row of the array."""
    return out.with_suffix(".paths.csv")


def check_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Raises a UserError if the array exists and may not be replaced; a finished array cannot be resumed."""
    table = collected_in(out)
    going_on = resume and any(each.exists() for each in (table, parts_folder(table), processes_folder(table)))
    for path in (out, paths_of(out)):
        if os.path.lexists(path) and not overwrite and not going_on:
            raise UserError(f"{path}: exists already and is finished; give --overwrite to replace it")


def finish_npy(out: Path) -> None:
    """Makes FILE.npy [pictures, width] and its list of paths from the collected rows; unreadable pictures are rows of
    NaN."""
    from pyarrow.parquet import ParquetFile

    from vitrail.inference.jobs.parquet import vector_column

    table = collected_in(out)
    array, names = (path.with_name(f".{path.name}.{os.getpid()}") for path in (out, paths_of(out)))
    try:
        with ParquetFile(table) as file, names.open("w", encoding="utf-8", newline="") as listed:
            column = vector_column(file.schema_arrow)
            kind = column.type
            shape = file.metadata.num_rows, kind.list_size
            rows = np.lib.format.open_memmap(array, "w+", kind.value_type.to_pandas_dtype(), shape)
            listed.write(csv_line(["path", "error"]))
            done = 0
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group).to_batches():
                    vectors = batch.column(column.name)
                    there = vectors.is_valid().to_numpy(zero_copy_only=False)
                    part = rows[done : done + len(batch)]
                    part[:] = np.nan
                    part[there] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size)
                    for path, error in zip(
                        *(batch.column(name).to_pylist() for name in ("path", "error")), strict=True
                    ):
                        listed.write(csv_line([path, error or ""]))
                    done += len(batch)
            rows.flush()
            del rows
        names.replace(paths_of(out))
        array.replace(out)
        table.unlink()
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        for temporary in (array, names):
            temporary.unlink(missing_ok=True)
