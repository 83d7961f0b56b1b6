"""Pictures as they are given: files, folders, globs, a list on stdin, archives, or in memory, one after the other.

Everything is a generator, so a million inputs take no memory. What is wrong with one input becomes the error of its
row; only what was asked for by name and is not there at all is a UserError, before anything starts.
"""

import glob
import os
import stat
import sys
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from vitrail.data.decode import EXTENSIONS, BadImage
from vitrail.data.sources.base import MAX_SAMPLE_BYTES
from vitrail.errors import UserError

STDIN = "-"
MAX_MEMBER_BYTES = 128 << 20
"""A larger member of an archive is refused: several of them wait in memory."""
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_ZIPS = (".zip",)
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, KeyError)
"""What damaged archives raise: RuntimeError for encrypted members, NotImplementedError (one of them) for odd ones."""


class Prepared:
    """What a model takes, where it is made already: floats (channels, rows, columns), or a batch of these.

    A tensor or an array by itself means pixels. Nothing is done to prepared values but that they become float32.
    """

    def __init__(self, values: Any) -> None:
        array = _from_tensor(values) if hasattr(values, "detach") else values
        if not isinstance(array, np.ndarray):
            raise UserError(f"vitrail.Prepared takes a tensor or an array, not a {type(values).__name__}")
        if array.ndim not in (3, 4):
            raise UserError(f"vitrail.Prepared takes (channels, rows, columns) or a batch of these, not {array.shape}")
        if not np.issubdtype(array.dtype, np.floating):
            raise UserError(
                f"vitrail.Prepared takes floats that are normalised already, not {array.dtype}; give pixels as they are"
            )
        self.values = array.astype(np.float32, copy=False)


Content = bytes | np.ndarray | Image.Image | Prepared


@dataclass(frozen=True)
class Input:
    """One picture to come. `read` may raise BadImage; it is called by the thread that decodes."""

    path: str | None
    read: Callable[[], Content]


def find(paths: Iterable[str | Path], stdin: IO[bytes] | None = None) -> Iterator[Input]:
    """The inputs that command-line arguments mean. Arguments are checked at once, their contents lazily."""
    arguments = [os.fspath(path) for path in paths]
    for argument in arguments:
        if (argument == STDIN and stdin is not None) or os.path.lexists(argument):
            continue
        if not _is_pattern(argument):
            raise UserError(f"{argument}: there is no such file or folder")
        if next(_matches(argument), None) is None:
            raise UserError(f"nothing matches {argument!r}")
    return (found for argument in arguments for found in _argument(argument, stdin))


def writable(path: str) -> str:
    """Returns a path as text that every format can hold: bytes of a name that are no UTF-8 become escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def from_memory(images: Any, *, required: bool = False) -> Iterator[Input]:
    """The inputs that a Python caller means: a picture of any kind, or a list of them.

    Paths (files, folders, globs, archives), bytes of an image file, Pillow images, arrays [rows, columns, channels],
    tensors [channels, rows, columns]; an array or tensor with one dimension more is a batch. They are pixels: uint8, or
    floats from 0 to 1. `Prepared` is what is no longer pixels. `required`: each path must be there and have a picture
    in it, also where it is one of many.
    """
    if isinstance(images, (str, Path)):
        found = find([images])
        yield from _at_least_one(found, images) if required else found
    elif isinstance(images, Input):
        yield images
    elif isinstance(images, Prepared):
        for values in images.values if images.values.ndim == 4 else [images.values]:
            yield Input(None, lambda values=values: Prepared(values))
    elif isinstance(images, (bytes, bytearray, memoryview)):
        content = bytes(images)
        yield Input(None, lambda: content)
    elif isinstance(images, Image.Image):
        yield Input(getattr(images, "filename", None) or None, lambda: images)
    elif isinstance(images, np.ndarray):
        for picture in images if images.ndim == 4 else [images]:
            yield Input(None, lambda picture=picture: picture)
    elif hasattr(images, "detach"):  # a tensor, told without importing torch
        array = _from_tensor(images)
        if array.ndim not in (2, 3, 4):
            raise UserError(f"a tensor of shape {array.shape} is no picture: (channels, rows, columns) is")
        yield from from_memory(array if array.ndim == 2 else np.moveaxis(array, -3, -1))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping):
        for image in images:
            # One of many that is not there gets a row that says so.
            named = not required and isinstance(image, (str, Path)) and not _is_pattern(os.fspath(image))
            yield from _named(os.fspath(image)) if named else from_memory(image, required=required)
    else:
        raise UserError(f"a {type(images).__name__} is no picture; give a path, bytes, a Pillow image or an array")


@dataclass(frozen=True)
class Pictures:
    """The pictures of a job, which are found when it begins."""

    found: Callable[[], Iterator[Input]]
    where: str
    """What they are looked for in, as a person would say it."""
    piped: bool = False
    """Whether they are listed by a pipe: one process alone can read it, and its next line may be long in coming."""

    @classmethod
    def of_arguments(cls, paths: Sequence[str]) -> "Pictures":
        """Of a command line, as `find` reads it."""
        piped = STDIN in paths
        return cls(lambda: find(paths, sys.stdin.buffer if piped else None), ", ".join(paths), piped)

    @classmethod
    def of_caller(cls, images: Any) -> "Pictures":
        """Of a Python caller, as `from_memory` reads them; each must have a path, by which its row is known."""

        def found() -> Iterator[Input]:
            for place, each in enumerate(from_memory(images)):
                if each.path is None:
                    raise UserError(
                        f"picture {place} comes from memory and has no path, so its row in a file could not be told; "
                        "give paths, folders, globs or archives, or leave out=FILE away to get the answers themselves"
                    )
                yield each

        return cls(found, str(images) if isinstance(images, (str, Path)) else f"the {type(images).__name__} given")


def several(images: Any) -> bool:
    """Whether they are more than one picture, or may be."""
    if isinstance(images, (str, Path)):
        return not Path(images).is_file() or str(images).lower().endswith((*_TARS, *_ZIPS))
    if isinstance(images, (bytes, bytearray, memoryview, Image.Image, Input)):
        return False
    if isinstance(images, Prepared):
        return several(images.values)
    if isinstance(images, np.ndarray) or hasattr(images, "detach"):
        return images.ndim == 4 and len(images) > 1
    return not isinstance(images, Sized) or len(images) > 1


def _from_tensor(tensor: Any) -> np.ndarray:
    """The values of a tensor, told without importing torch."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # NumPy has no bfloat16


def _at_least_one(found: Iterator[Input], path: str | Path) -> Iterator[Input]:
    first = next(found, None)
    if first is None:
        raise UserError(f"there is no picture in {path}")
    yield first
    yield from found


def put_back(taken: Iterable[Input], rest: Iterable[Input]) -> Iterator[Input]:
    """Inputs that were taken to see what comes, and then the others. Each is let go of: it may hold a file's bytes."""
    waiting = deque(taken)
    while waiting:
        yield waiting.popleft()
    yield from rest


def _argument(argument: str, stdin: IO[bytes] | None) -> Iterator[Input]:
    if argument == STDIN and stdin is not None:
        for line in stdin:
            if name := os.fsdecode(line.rstrip(b"\r\n")):
                yield from _named(name)
    elif os.path.lexists(argument):
        yield from _named(argument)
    else:
        deep = "**" in argument  # which matches what is in a folder too
        for name in sorted(_matches(argument)):
            wanted = not deep if Path(name).is_dir() else name.lower().endswith((*EXTENSIONS, *_TARS, *_ZIPS))
            if wanted:
                yield from _named(name)


def _named(name: str) -> Iterator[Input]:
    """A file, a folder or an archive that exists, or whose row will say that it does not."""
    lower = name.lower()
    if Path(name).is_dir():
        yield from _folder(name)
    elif lower.endswith(_TARS):
        yield from _tar(name)
    elif lower.endswith(_ZIPS):
        yield from _zip(name)
    else:
        yield Input(name, lambda: _read_file(name))


def _folder(folder: str) -> Iterator[Input]:
    """Every visible image below a folder, sorted; links to folders are not followed, so loops cannot happen."""
    try:
        with os.scandir(folder) as entries:
            # Names alone, not entries: a folder may hold a million files.
            names, folders = [], set()
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.add(entry.name)
                    names.append(entry.name)
                elif entry.name.lower().endswith(tuple(EXTENSIONS)):
                    names.append(entry.name)
    except OSError as error:
        yield _broken(folder, f"cannot be read: {error.strerror or error}")
        return
    names.sort()
    for name in names:
        path = os.path.join(folder, name)  # noqa: PTH118  a Path for each of a million names is slow
        if name in folders:
            yield from _folder(path)
        else:
            yield Input(path, lambda path=path: _read_file(path))


def _read_file(path: str) -> bytes:
    try:
        # A pipe that nobody writes to would be waited for without end.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise BadImage("is not a regular file")
            content = stream.read(MAX_SAMPLE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise BadImage(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > MAX_SAMPLE_BYTES:
        raise BadImage(f"is larger than {MAX_SAMPLE_BYTES >> 20} MB")
    return content


def _tar(archive: str) -> Iterator[Input]:
    """The images of a tar file in the order they lie there, read as a stream and never written to disk."""
    try:
        with tarfile.open(archive, "r|*") as stream:
            seen: list[tarfile.TarInfo] = getattr(stream, "members")  # noqa: B009  not in the type stubs
            for info in stream:
                if info.isreg() and _is_image(info.name):
                    yield _member(archive, info.name, info.size, lambda info=info: _extract(stream, info))
                seen.clear()  # it would grow with the archive
    except _BROKEN as error:
        yield _broken(archive, f"cannot be read as an archive, or not to its end: {error}")


def _extract(stream: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = stream.extractfile(info)
    assert file is not None
    content = file.read(MAX_MEMBER_BYTES + 1)
    if len(content) < info.size:
        raise BadImage("lies beyond the end of its archive, which is cut off")
    return content


def _zip(archive: str) -> Iterator[Input]:
    try:
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if not info.is_dir() and _is_image(info.filename):
                    yield _member(archive, info.filename, info.file_size, lambda info=info: _unzip(opened, info))
    except _BROKEN as error:
        yield _broken(archive, f"cannot be read as an archive: {error}")


def _unzip(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with opened.open(info) as file:
        return file.read(MAX_MEMBER_BYTES + 1)


def _member(archive: str, name: str, claimed: int, read: Callable[[], bytes]) -> Input:
    """A member's bytes are read now, in order; a header that lies about their number gains nothing."""
    path = f"{archive}::{name}"
    too_large = f"is larger than {MAX_MEMBER_BYTES >> 20} MB, the limit inside archives"
    if claimed > MAX_MEMBER_BYTES:
        return _broken(path, too_large)
    try:
        content = read()
    except BadImage as error:
        return _broken(path, str(error))
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:  # this member's fault alone
        return _broken(path, f"cannot be unpacked: {error}")
    return _broken(path, too_large) if len(content) > MAX_MEMBER_BYTES else Input(path, lambda: content)


def _broken(path: str, reason: str) -> Input:
    def read() -> Content:
        raise BadImage(reason)

    return Input(path, read)


def _is_image(name: str) -> bool:
    base = name.rpartition("/")[2]
    return not base.startswith(".") and base.lower().endswith(tuple(EXTENSIONS))


def _matches(pattern: str) -> Iterator[str]:
    return glob.iglob(pattern, recursive=True)  # noqa: PTH207  Path.glob takes no absolute patterns


def _is_pattern(argument: str) -> bool:
    return any(mark in argument for mark in "*?[")
