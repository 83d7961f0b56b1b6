"""Puts pictures into folders by class: DIR/CLASS/NAME, copied or linked. Nothing that is there is ever written over,
and what was done before is not done again."""

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
from vitrail.errors import UserError
from vitrail.inference.choose import Say
from vitrail.launched import rank, started_together
from vitrail.tasks.base import UNKNOWN

_Answer = TypeVar("_Answer")

_LONGEST = 200
"""Bytes of a name: file systems take 255, and a clash adds a number."""
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789")}
"""What Windows takes for a device, whatever stands behind the dot."""
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def safe_name(name: str) -> str:
    """A name that is one file or folder on every system, inside the folder it is put into, and not hidden."""
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
    """A folder's name for each label, all different, on file systems too that do not tell capitals from small letters.
    The same labels in the same order give the same names."""
    found, taken = {UNKNOWN: UNKNOWN}, {UNKNOWN}
    for label in dict.fromkeys(labels):
        if label not in found:
            found[label] = next(each for each in _numbered(safe_name(label)) if each.casefold() not in taken)
            taken.add(found[label].casefold())
    return found


def check_folder(folder: Path, paths: Iterable[str]) -> None:
    """Refuse a folder inside what is read: its copies would be found as pictures."""
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
    """Which folder pictures are put into, and how."""

    folder: Path
    link: bool = False
    """Symbolic links in place of copies."""
    say: Say = lambda _: None
    """Is told at the end how many there were, unless there are other processes that know of more."""

    def sort(
        self,
        inputs: Iterable[Input],
        answers: Callable[[Iterable[Input]], Iterable[list[_Answer]]],
        label: Callable[[_Answer], str | None],
        labels: Iterable[str],
    ) -> Iterator[list[_Answer]]:
        """Gives the answers, each of a picture that is in its folder already: what has a row need not be sorted again.

        answers: gives one for each input, in their order. label: whose folder a picture goes into; None for one that
        has no class, which stays where it is. labels: all that there can be.
        """
        sorter = Sorter(self.folder, labels, link=self.link, process=rank())
        waiting: deque[Input] = deque()

        def remembered() -> Iterator[Input]:
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
        if not started_together():
            self.say(sorter.summary())


class Sorter:
    """Puts pictures into the folders of their classes. `process`: which of several this is."""

    def __init__(self, folder: Path, labels: Iterable[str], *, link: bool = False, process: int = 0) -> None:
        self.folder, self.link = folder, link
        self.names = folder_names(labels)
        self.counts: Counter[str] = Counter()
        """Pictures of each label so far."""
        self._temporary = folder / f".sorting-{process}"

    def put(self, picture: Input, label: str) -> Path:
        """Copy or link one picture; a member of an archive is written out. Returns the file it is."""
        assert picture.path is not None
        member = "::" in picture.path and not os.path.lexists(picture.path)
        base = re.split(r"[/\\]" if member else "/", picture.path.rpartition("::")[2] if member else picture.path)[-1]
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
        self._temporary.unlink(missing_ok=True)

    def summary(self) -> str:
        unknown = self.counts[UNKNOWN]
        classes = sum(1 for label in self.counts if label != UNKNOWN)
        return (
            f"sorted {self.counts.total() - unknown} pictures into {classes} classes, {unknown} unknown: {self.folder}"
        )

    def _linked(self, place: Path, base: str, source: str) -> Path:
        for target in _targets(place, base):
            try:
                target.symlink_to(source)
                return target
            except FileExistsError:
                if target.is_symlink() and os.readlink(target) == source:  # noqa: PTH115  as it was written
                    return target
        raise AssertionError("names do not end")

    def _copied(self, place: Path, base: str, picture: Input, member: bool) -> Path:
        """Written under another name first, then given its own in one step: a file is whole or not there."""
        assert picture.path is not None
        # Left by a kill it may be the same file as one that has its name already: never written into.
        self._temporary.unlink(missing_ok=True)
        if member:
            content = picture.read()
            assert isinstance(content, bytes)
            self._temporary.write_bytes(content)
        else:
            shutil.copy2(picture.path, self._temporary)
        for target in _targets(place, base):
            if _moved(self._temporary, target):
                return target
            regular = target.is_file() and not target.is_symlink()
            if regular and filecmp.cmp(self._temporary, target, shallow=False):
                return target  # it is there already
        raise AssertionError("names do not end")


def _targets(place: Path, base: str) -> Iterable[Path]:
    stem, suffix = os.path.splitext(safe_name(base))  # noqa: PTH122
    return (place / name for name in _numbered(stem, suffix))


def _numbered(stem: str, suffix: str = "") -> Iterable[str]:
    yield stem + suffix
    number = 2
    while True:
        yield f"{stem}-{number}{suffix}"
        number += 1


def _moved(temporary: Path, target: Path) -> bool:
    """Whether the file could be given a name that nothing has."""
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        try:  # claimed by an empty file, which the rename then replaces
            target.touch(exist_ok=False)
        except FileExistsError:
            return False
        temporary.replace(target)
        return True
    temporary.unlink()
    return True
