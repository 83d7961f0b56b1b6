"""The output folder: all of it under its name, or nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.checkpoints.files import sync
from vitrail.errors import UserError


@contextmanager
def new_folder(path: Path, ours: frozenset[str]) -> Iterator[Path]:
    """A folder to write to, which takes its name when the block is done.

    One that is there is replaced if it is empty or holds nothing but `ours`, what an earlier report left; anything
    else is refused before any work is done, and so is a place that cannot be written to.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  keeps links as they are named
    try:
        if path.exists() or path.is_symlink():
            _refuse_foreign(path, ours)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written: {error.strerror or error}") from error
    try:
        yield temporary
        try:
            for file in (*temporary.iterdir(), temporary):
                sync(file)
            temporary.chmod(0o755)
            _replace(path, temporary, ours)
            sync(path.parent)
        except OSError as error:
            raise UserError(f"--out {path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _refuse_foreign(path: Path, ours: frozenset[str]) -> None:
    if not path.is_dir() or path.is_symlink():
        raise UserError(f"--out {path}: is there and is no folder; choose another name")
    foreign = sorted({each.name for each in path.iterdir()} - ours)
    if foreign:
        raise UserError(
            f"--out {path}: holds {foreign[0]!r}, which no report of ours left; choose a new or an empty folder"
        )


def _replace(path: Path, temporary: Path, ours: frozenset[str]) -> None:
    """The old one is put aside until the new one has its name."""
    if not path.exists():
        temporary.rename(path)
        return
    _refuse_foreign(path, ours)  # it may have been filled meanwhile
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(aside / "old")
        try:
            temporary.rename(path)
        except BaseException:
            (aside / "old").rename(path)
            raise
    finally:
        with suppress(OSError):
            shutil.rmtree(aside)
