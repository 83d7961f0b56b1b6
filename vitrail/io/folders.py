"""Folders that appear under their name when they are complete."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.errors import UserError
from vitrail.io.files import Fill, sync, writing

Refuse = Callable[[Path], None]
"""Raises UserError if what is at a path, where something is, must not be replaced."""


@contextmanager
def new_folder(path: Path, refuse: Refuse, name: str | Path) -> Iterator[Path]:
    """Gives a folder to write to, which takes the place of `path` when the block is done and its files are on the disk.

    What `refuse` objects to is refused before any work is done, and again before it would be replaced; so is a place
    that cannot be written to. `name` is what messages call the path. If the block fails, `path` is what it was.
    """
    with writing(name):
        refuse(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        with writing(name):
            for file in (*temporary.iterdir(), temporary):
                sync(file)
            temporary.chmod(0o755)
            refuse(path)  # it may have been filled meanwhile
            _put_in_place(temporary, path)
            sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_folder(path: Path, fill: Fill, refuse: Refuse) -> None:
    """Writes a folder that the user named, whole or not at all; what `fill` cannot write is a UserError too."""
    with writing(path), new_folder(path, refuse, path) as temporary:
        fill(temporary)


@contextmanager
def report_folder(out: Path, ours: frozenset[str]) -> Iterator[Path]:
    """Gives the `new_folder` of a report, named by --out. One that is there is replaced if it is empty or holds nothing
    but `ours`, what an earlier report left."""
    out = Path(os.path.abspath(out))  # noqa: PTH100  keeps links as they are named

    def refuse(path: Path) -> None:
        if not os.path.lexists(path):
            return
        if not path.is_dir() or path.is_symlink():
            raise UserError(f"--out {path}: is there and is no folder; choose another name")
        if foreign := sorted({each.name for each in path.iterdir()} - ours):
            raise UserError(
                f"--out {path}: holds {foreign[0]!r}, which no report of ours left; choose a new or an empty folder"
            )

    with new_folder(out, refuse, f"--out {out}") as folder:
        yield folder


def _put_in_place(temporary: Path, path: Path) -> None:
    """Renames a folder, after putting aside what has its name; that comes back if the rename fails."""
    if not path.exists():
        temporary.rename(path)
        return
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
