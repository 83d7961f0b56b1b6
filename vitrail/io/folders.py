"""Writing folders atomically: a folder gets its name only once all its files are written."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitrail.errors import UserError
from vitrail.io.files import Fill, sync, writing

Refuse = Callable[[Path], None]
"""A function that raises UserError if something exists at the path it is given and must not be replaced."""


@contextmanager
def new_folder(path: Path, refuse: Refuse, name: str | Path) -> Iterator[Path]:
    """Writes a folder atomically: yields a temporary folder beside `path`, which is renamed to `path` when the block
    ends and its files are on the disk. If the block raises, `path` stays as it was.

    Args:
        path: The folder to write; its parents are created.
        refuse: Called with `path` before the block runs, so that nothing is computed in vain, and again before it is
            replaced.
        name: What error messages call the path: the path itself, or a flag with it ("--out reports").

    Raises:
        UserError: If `refuse` raises it, or the folder cannot be written.
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
    """Writes a folder that the user named, atomically. Raises UserError if `refuse` does or if it cannot be written.

    fill: writes the files into the temporary folder it is given; an OSError in it becomes a UserError too.
    """
    with writing(path), new_folder(path, refuse, path) as temporary:
        fill(temporary)


@contextmanager
def report_folder(out: Path, ours: frozenset[str]) -> Iterator[Path]:
    """Writes the folder of a report, given by the flag --out, atomically: yields the temporary folder to fill.

    An existing folder is replaced only if every file in it has a name among `ours`, the files that such a report
    consists of; otherwise UserError is raised.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100  keeps links as they are named

    def refuse(path: Path) -> None:
        if not os.path.lexists(path):
            return
        if not path.is_dir() or path.is_symlink():
            raise UserError(f"--out {path}: exists and is not a folder; choose another name")
        if foreign := sorted({entry.name for entry in path.iterdir()} - ours):
            raise UserError(
                f"--out {path}: contains {foreign[0]!r}, which is not a file of a report; choose a new or empty folder"
            )

    with new_folder(out, refuse, f"--out {out}") as folder:
        yield folder


def _put_in_place(temporary: Path, path: Path) -> None:
    """Renames `temporary` to `path`. A folder that has that name is moved aside first, and moved back if the rename
    fails."""
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
