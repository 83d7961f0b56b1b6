"""Finding the pictures that a user gives: files, folders, globs, a list on stdin, archives, or pictures in memory.

They are found one after the other by generators, so a million inputs take no memory. What is wrong with one input is
reported in its row of the result. Only a path that does not exist is a UserError, raised before the work begins.
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
"""The argument that stands for a list of paths on stdin."""
MAX_MEMBER_BYTES = 128 << 20
"""The largest member of an archive that is read, in bytes. Several members are in memory at a time."""
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_ZIPS = (".zip",)
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, KeyError)
"""The exceptions of damaged archives; RuntimeError is also that of encrypted members and unknown compressions."""


class Prepared:
    """Input for a model that is already resized, cropped and normalised.

    `predict`, `embed` and `inspect` take a tensor or an array for pixels. Wrapped in this class, its values go to the
    model as they are, converted to float32 only.
    """

    def __init__(self, values: Any) -> None:
        """Wraps a prepared picture or a batch of them.

        Args:
            values: A tensor or array of floats (channels, rows, columns) or (batch, channels, rows, columns), of the
                size that the model takes.

        Raises:
            UserError: If it is not a tensor or array, or has another number of dimensions or another type.
        """
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


PictureContent = bytes | np.ndarray | Image.Image | Prepared
"""A picture that is not decoded yet: the bytes of an image file, pixels [rows, columns, channels] or [rows, columns], a
Pillow image, or prepared values."""


@dataclass(frozen=True)
class Input:
    """One picture that is to be read."""

    path: str | None
    """Its path, "ARCHIVE::MEMBER" in an archive; None for a picture in memory."""
    read: Callable[[], PictureContent]
    """Reads it, or raises BadImage. It is called in the thread that decodes."""


def find_pictures(paths: Iterable[str | Path], stdin: IO[bytes] | None = None) -> Iterator[Input]:
    """Finds the pictures that command-line arguments mean.

    Args:
        paths: Files, folders, globs, archives, or `STDIN`.
        stdin: The stream to read a list of paths from, one on each line; None if `STDIN` is a path like any other.

    Returns:
        An iterator over the pictures, which looks into folders and archives only as it goes.

    Raises:
        UserError: At once, if a path does not exist or a glob matches nothing.
    """
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
    """Converts a path to text that every output format can hold: bytes that are not UTF-8 become escapes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def from_memory(images: Any, *, required: bool = False) -> Iterator[Input]:
    """Finds the pictures that a Python caller means.

    Args:
        images: A picture or an iterable of pictures: paths (files, folders, globs, archives), bytes of an image file,
            Pillow images, arrays [rows, columns, channels], tensors [channels, rows, columns]. An array or tensor with
            one more dimension is a batch. Their values are pixels: uint8, or floats from 0 to 1; values that are no
            pixels any more are given as `Prepared`.
        required: Whether a path in a list must exist and contain a picture; otherwise one that does not exist becomes
            an Input that cannot be read, as one row of many.

    Raises:
        UserError: While iterating, for what is not a picture, and for paths that must exist and do not.
    """
    if isinstance(images, (str, Path)):
        found = find_pictures([images])
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
    elif hasattr(images, "detach"):  # a tensor, recognised without importing torch
        array = _from_tensor(images)
        if array.ndim not in (2, 3, 4):
            raise UserError(f"a tensor of shape {array.shape} is not a picture; give (channels, rows, columns)")
        yield from from_memory(array if array.ndim == 2 else np.moveaxis(array, -3, -1))
    elif isinstance(images, Iterable) and not isinstance(images, Mapping):
        for image in images:
            # A missing file among many gets a row that says so, and does not end the work.
            named = not required and isinstance(image, (str, Path)) and not _is_pattern(os.fspath(image))
            yield from _named(os.fspath(image)) if named else from_memory(image, required=required)
    else:
        raise UserError(f"a {type(images).__name__} is not a picture; give a path, bytes, a Pillow image or an array")


@dataclass(frozen=True)
class Pictures:
    """The pictures of a job, which are looked for only when it begins."""

    found: Callable[[], Iterator[Input]]
    """Starts the search and returns the pictures."""
    where: str
    """The words for where they are looked for, for messages: the paths, or "the list given"."""
    piped: bool = False
    """True if they are listed on stdin, which only one process can read and where the next line may come late."""

    @classmethod
    def of_arguments(cls, paths: Sequence[str]) -> "Pictures":
        """Takes the arguments of a command line, as `find` does."""
        piped = STDIN in paths
        return cls(lambda: find_pictures(paths, sys.stdin.buffer if piped else None), ", ".join(paths), piped)

    @classmethod
    def of_caller(cls, images: Any) -> "Pictures":
        """Takes the pictures of a Python caller, as `from_memory` does.

        Each must have a path, which identifies its row in the file that the job writes; one without raises UserError.
        """

        def found() -> Iterator[Input]:
            for index, picture in enumerate(from_memory(images)):
                if picture.path is None:
                    raise UserError(
                        f"picture {index} comes from memory and has no path to name its row in the file by; "
                        "give paths, folders, globs or archives, or leave out=FILE away to get the answers themselves"
                    )
                yield picture

        return cls(found, str(images) if isinstance(images, (str, Path)) else f"the {type(images).__name__} given")


def several(images: Any) -> bool:
    """Tells whether what a Python caller gave is, or may be, more than one picture."""
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
    """Returns the values of a tensor as an array, without importing torch."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # NumPy has no bfloat16


def _at_least_one(found: Iterator[Input], path: str | Path) -> Iterator[Input]:
    """Yields the pictures. Raises UserError if there are none."""
    first = next(found, None)
    if first is None:
        raise UserError(f"there is no picture in {path}")
    yield first
    yield from found


def put_back(taken: Iterable[Input], rest: Iterable[Input]) -> Iterator[Input]:
    """Yields inputs that were taken from an iterator to look ahead, and then the rest of it.

    It keeps no reference to an input that it has yielded, since one may hold the bytes of a file.
    """
    waiting = deque(taken)
    while waiting:
        yield waiting.popleft()
    yield from rest


def _argument(argument: str, stdin: IO[bytes] | None) -> Iterator[Input]:
    """Finds the pictures of one command-line argument."""
    if argument == STDIN and stdin is not None:
        for line in stdin:
            if name := os.fsdecode(line.rstrip(b"\r\n")):
                yield from _named(name)
    elif os.path.lexists(argument):
        yield from _named(argument)
    else:
        deep = "**" in argument  # such a glob matches the files in a folder besides the folder itself
        for name in sorted(_matches(argument)):
            wanted = not deep if Path(name).is_dir() else name.lower().endswith((*EXTENSIONS, *_TARS, *_ZIPS))
            if wanted:
                yield from _named(name)


def _named(name: str) -> Iterator[Input]:
    """Finds the pictures of a path: a folder, an archive, or a file, which becomes an unreadable Input if missing."""
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
    """Finds every image below a folder, in sorted order, without hidden files and folders.

    Links to folders are not followed, so that a circle of links cannot make it endless.
    """
    try:
        with os.scandir(folder) as entries:
            # Names take less memory than entries, and a folder may hold a million files.
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
    """Reads a regular file of at most MAX_SAMPLE_BYTES. Raises BadImage if it is something else."""
    try:
        # Without O_NONBLOCK, opening a named pipe that nobody writes to would never return.
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
    """Finds the images of a tar file in the order in which they are stored; it is read as a stream."""
    try:
        with tarfile.open(archive, "r|*") as stream:
            seen: list[tarfile.TarInfo] = getattr(stream, "members")  # noqa: B009  not in the type stubs
            for info in stream:
                if info.isreg() and _is_image(info.name):
                    yield _member(archive, info.name, info.size, lambda info=info: _extract(stream, info))
                seen.clear()  # tarfile keeps a list of all members, which would grow with the archive
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
    """Finds the images of a zip file."""
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
    """Reads a member of an archive at once and returns it as an Input.

    claimed: its size as its header states it; the size that is really read is checked too. Members are read here and
    not later by another thread, since a stream can only be read in order.
    """
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
    """Returns an Input that raises BadImage with this reason when it is read."""

    def read() -> PictureContent:
        raise BadImage(reason)

    return Input(path, read)


def _is_image(name: str) -> bool:
    """Tells whether the name of a member is that of an image and not hidden."""
    base = name.rpartition("/")[2]
    return not base.startswith(".") and base.lower().endswith(tuple(EXTENSIONS))


def _matches(pattern: str) -> Iterator[str]:
    return glob.iglob(pattern, recursive=True)  # noqa: PTH207  Path.glob takes no absolute patterns


def _is_pattern(argument: str) -> bool:
    return any(mark in argument for mark in "*?[")
