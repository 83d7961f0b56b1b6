"""Sorts pictures into folders by class: DIR/CLASS/NAME, copied or linked.

An existing file is never overwritten, and what was sorted before is not done again.
"""

import errno
import filecmp
import fnmatch
import hashlib
import os
import re
import shutil
import unicodedata
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vitrail.data.decode import BadImage
from vitrail.data.inputs import STDIN, Input
from vitrail.environment import is_distributed, rank
from vitrail.errors import UserError
from vitrail.inference.engine_selection import Say
from vitrail.tasks.answers import UNKNOWN

_Answer = TypeVar("_Answer")

_LONGEST = 200
"""The longest name in bytes: file systems allow 255, and a number may be added."""
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789")}
"""Names that Windows takes for a device, whatever follows the dot."""
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""The errors of file systems that have no hard links."""


def safe_name(name: str) -> str:
    """Returns a name that is valid for one file or folder on every system, stays inside its folder, and is not
    hidden."""
    name = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode("utf-8"))
    name = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]', "_", name).strip().rstrip(". ")
    if not name or name.startswith("."):
        name = f"_{name.lstrip('._')}"
    if name.partition(".")[0].rstrip().casefold() in _RESERVED:
        name = f"_{name}"
    if len(encoded := name.encode()) > _LONGEST:
        stem, suffix = os.path.splitext(name)  # noqa: PTH122  a Path cannot hold every name
        end = f"-{hashlib.blake2b(encoded, digest_size=4).hexdigest()}{suffix if len(suffix) < 8 else ''}"
        name = stem.encode()[: _LONGEST - len(end.encode())].decode("utf-8", "ignore") + end
    return name


def folder_names(labels: Iterable[str]) -> dict[str, str]:
    """Returns a folder name for each label, all different, even on file systems that ignore case.

    The same labels in the same order give the same names.
    """
    found, taken = {UNKNOWN: UNKNOWN}, {UNKNOWN}
    for label in dict.fromkeys(labels):
        if label not in found:
            found[label] = next(each for each in _numbered(safe_name(label)) if each.casefold() not in taken)
            taken.add(found[label].casefold())
    return found


def check_sorting_folder(folder: Path, paths: Iterable[str]) -> None:
    """Raises a UserError if the folder lies inside what is read: its copies would be found as pictures."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--sort-into {folder}: is a file; give a folder")
    own = Path(os.path.realpath(folder)).parts
    for argument in paths:
        if argument == STDIN:
            continue
        parts = Path(os.path.realpath(argument)).parts
        known = os.path.lexists(argument)
        before = parts if known or "**" not in parts else parts[: parts.index("**")]
        pairs = zip(own, before, strict=False)
        if len(own) >= len(before) and all(a == b or (not known and fnmatch.fnmatch(a, b)) for a, b in pairs):
            raise UserError(f"--sort-into {folder}: lies inside {argument}, which is read; give a folder outside of it")


@dataclass(frozen=True)
class Sorting:
    """The folder that pictures are sorted into, and how."""

    folder: Path
    link: bool = False
    """Make symbolic links instead of copies."""
    say: Say = lambda _: None
    """Is called at the end with the number of pictures, unless this is one of several processes, which knows only its
    own."""

    def sort(
        self,
        inputs: Iterable[Input],
        answers: Callable[[Iterable[Input]], Iterable[list[_Answer]]],
        label: Callable[[_Answer], str | None],
        labels: Iterable[str],
    ) -> Iterator[list[_Answer]]:
        """Yields the answers; each is given only after its picture has been sorted, so that what has a row need not be
        sorted again.

        Args:
            inputs: The pictures.
            answers: Yields one answer for each input, in their order, one list for each batch.
            label: Returns the class of an answer; None if the picture has none and stays where it is.
            labels: All classes that there can be.
        """
        sorter = Sorter(self.folder, labels, link=self.link, process=rank())
        waiting: deque[Input] = deque()

        def remembered() -> Iterator[Input]:
            """Yields the inputs, and keeps each until its answer comes."""
            for each in inputs:
                waiting.append(each)
                yield each

        try:
            for batch in answers(remembered()):
                for each in batch:
                    picture, place = waiting.popleft(), label(each)
                    if place is not None:
                        sorter.put(picture, place)
                yield batch
        finally:
            sorter.close()
        if not is_distributed():
            self.say(sorter.summary())


class Sorter:
    """Puts pictures into the folders of their classes; `process` is the rank of the process that does it."""

    def __init__(self, folder: Path, labels: Iterable[str], *, link: bool = False, process: int = 0) -> None:
        self.folder, self.link = folder, link
        self.names = folder_names(labels)
        self.counts: Counter[str] = Counter()
        """Pictures of each label so far."""
        self._temporary = folder / f".sorting-{process}"

    def put(self, picture: Input, label: str) -> Path:
        """Copies or links one picture, or writes out a member of an archive; returns the resulting file."""
        assert picture.path is not None
        member, base = "::" in picture.path and not os.path.lexists(picture.path), base_name(picture.path)
        place = self.folder / self.names[label]
        try:
            place.mkdir(parents=True, exist_ok=True)
            if self.link and not member:
                target = self._linked(place, base, os.path.abspath(picture.path))  # noqa: PTH100  keeps links as named
            else:
                target = self._copied(place, base, picture, member)
        except (OSError, BadImage) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"{picture.path}: cannot be put into {place}: {reason}") from error
        self.counts[label] += 1
        return target

    def close(self) -> None:
        """Removes the temporary file."""
        self._temporary.unlink(missing_ok=True)

    def summary(self) -> str:
        """Returns a line with the number of pictures and classes."""
        unknown = self.counts[UNKNOWN]
        classes = sum(1 for label in self.counts if label != UNKNOWN)
        return (
            f"sorted {self.counts.total() - unknown} pictures into {classes} classes, {unknown} unknown: {self.folder}"
        )

    def _linked(self, place: Path, base: str, source: str) -> Path:
        """Links to `source` under the first free name, or returns the link that already exists."""
        for target in _targets(place, base):
            try:
                target.symlink_to(source)
                return target
            except FileExistsError:
                if target.is_symlink() and os.readlink(target) == source:  # noqa: PTH115  as it was written
                    return target
        raise AssertionError("names do not end")

    def _copied(self, place: Path, base: str, picture: Input, member: bool) -> Path:
        """Copies a picture under a temporary name, then gives it the first free name in one step, so that no file is
        incomplete."""
        assert picture.path is not None
        # After a kill it may be a hard link to a finished file, so it is removed and not written into.
        self._temporary.unlink(missing_ok=True)
        if member:
            content = picture.read()
            assert isinstance(content, bytes)
            self._temporary.write_bytes(content)
        else:
            shutil.copy2(picture.path, self._temporary)
        return put_in_place(self._temporary, place, base)


def base_name(path: str) -> str:
    """Returns the last part of a picture's path, ARCHIVE::MEMBER included."""
    member = "::" in path and not os.path.lexists(path)
    return re.split(r"[/\\]" if member else "/", path.rpartition("::")[2] if member else path)[-1]


def put_in_place(temporary: Path, folder: Path, base: str) -> Path:
    """Gives a complete file the first free name in a folder, in one step, and returns the resulting file.

    A file of the same content, which an earlier job has put there, is taken for it.

    Args:
        temporary: The file, in the same file system.
        folder: The folder.
        base: The name that it should have; it becomes NAME-2, NAME-3 and so on if that is taken.
    """
    for target in _targets(folder, base):
        if _moved(temporary, target):
            return target
        regular = target.is_file() and not target.is_symlink()
        if regular and filecmp.cmp(temporary, target, shallow=False):
            return target
    raise AssertionError("names do not end")


def _targets(place: Path, base: str) -> Iterable[Path]:
    """Yields the names to try for a file."""
    stem, suffix = os.path.splitext(safe_name(base))  # noqa: PTH122
    return (place / name for name in _numbered(stem, suffix))


def _numbered(stem: str, suffix: str = "") -> Iterable[str]:
    """Yields the name, then the name with -2, -3 and so on."""
    yield stem + suffix
    number = 2
    while True:
        yield f"{stem}-{number}{suffix}"
        number += 1


def _moved(temporary: Path, target: Path) -> bool:
    """Gives the file the name `target`; returns False if that name is taken."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        try:  # an empty file claims the name, and is then replaced
            target.touch(exist_ok=False)
        except FileExistsError:
            return False
        temporary.replace(target)
        return True
    temporary.unlink()
    return True
