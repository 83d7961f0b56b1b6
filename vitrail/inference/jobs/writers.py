"""Defines what all writers of rows share: the paths that already have a row, and what happens to an existing file."""

import array
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.jobs.rows import Row


class RowWriter(Protocol):
    """Takes rows and knows which paths an earlier, interrupted job has written."""

    seen: "Seen"
    """The paths that already have a row."""
    count: int
    """The number of rows that already exist."""

    def write(self, rows: Sequence[Row]) -> None:
        """Adds rows."""
        ...

    def close(self, finished: bool) -> None:
        """Ends writing: `finished`, or interrupted so that more rows may come later."""
        ...


class Seen:
    """A set of the paths that have a row. It takes eight bytes a path, so that a million fit beside a model."""

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
        """Tells whether every path of this one is in the other."""
        return bool(np.isin(self._numbers, other._numbers).all())


def _number(path: str) -> int:
    """Returns the first eight bytes of a path's hash."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8"), digest_size=8).digest(), "big")


def parts_folder(path: Path) -> Path:
    """Returns where the parts of a parquet file are collected."""
    return path.with_name(f"{path.name}.parts")


def processes_folder(path: Path) -> Path:
    """Returns where several processes write one file each."""
    return path.with_name(f"{path.name}.processes")


def prepare_output(out: Path, resume: bool, overwrite: bool) -> None:
    """Makes the folder of an output. An existing output is kept to be resumed, or removed, or is a UserError."""
    folders = parts_folder(out), processes_folder(out)
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
