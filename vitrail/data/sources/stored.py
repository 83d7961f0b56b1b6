"""Files that samples lie in, here or elsewhere. What lies elsewhere is fetched whole, once, into the cache."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitrail.data.cache import cache_folder, cache_name, make_room, used
from vitrail.errors import UserError
from vitrail.io.checksums import file_sha256

_PAUSES = (0.5, 2.0, 8.0)
"""Seconds to wait before a fetch is tried again; after the last it is given up."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}

_Result = TypeVar("_Result")


def is_url(text: str) -> bool:
    return "://" in text


@dataclass(frozen=True)
class Stored:
    """One file: a path on this machine, or a URL."""

    place: str
    bytes: int | None = None
    """Its size, where an index tells."""
    sha256: str | None = None
    version: str = ""
    """Tells one state of a remote file from another, where no digest does."""

    @property
    def remote(self) -> bool:
        return is_url(self.place)

    def local(self) -> Path:
        """Where the file can be read; fetched first if it has to be."""
        return fetch(self) if self.remote else Path(self.place)

    def descriptor(self) -> int:
        """The file, opened for reading."""
        for _ in range(3):
            try:
                return os.open(self.local(), os.O_RDONLY)
            except FileNotFoundError:
                if not self.remote:
                    raise  # a cached file can be gone again before it is opened: then it is fetched again
        raise OSError(f"the cache, {cache_folder()}, loses files as they arrive: raise VITRAIL_CACHE_SIZE")


def filesystem(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it."""
    import fsspec

    protocol = url.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _INSTALL.get(protocol) or error.name or f"an fsspec file system for {protocol}"
        raise UserError(f"{url}: {protocol}:// needs the package {package}: pip install {package}") from error
    except Exception as error:
        raise UserError(f"{url} cannot be opened: {_reason(error)}") from error


def attempt(url: str, action: Callable[[], _Result]) -> _Result:
    """The result of something done over a network, tried again a few times before it is given up."""
    for pause in (*_PAUSES, None):
        try:
            return action()
        except UserError:
            raise
        except _FINAL as error:
            raise UserError(f"{url} cannot be read: {_reason(error)}") from error
        except Exception as error:  # every file system has its own
            if pause is None:
                tries = len(_PAUSES) + 1
                raise UserError(f"{url} cannot be read, in {tries} attempts: {_reason(error)}") from error
            time.sleep(pause)
    raise AssertionError


def fetch(file: Stored) -> Path:
    """The local copy of a remote file, whole and, where its digest is known, checked."""
    from filelock import FileLock

    name = file.place.rstrip("/").rpartition("/")[2][-80:]
    target = cache_folder("files") / f"{cache_name(file.place, file.sha256 or file.version)}-{name}"
    if used(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # One process fetches and the others wait; a lock of the operating system ends with the process that has it.
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not used(target):
                attempt(file.place, lambda: _download(file, target))
                make_room(target.parent, keep=target)
    except OSError as error:
        raise UserError(f"the cache {target.parent} cannot be written: {error.strerror or error}") from error
    return target


class Fetcher:
    """Fetches in the background. What fails is met again, and told, when it is read."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, files: list[Stored]) -> None:
        """Fetch these in turn, unless the last ones are still on their way."""
        if (self._thread is None or not self._thread.is_alive()) and any(file.remote for file in files):
            self._thread = threading.Thread(target=self._run, args=(files,), name="vitrail-fetch", daemon=True)
            self._thread.start()

    def _run(self, files: list[Stored]) -> None:
        for file in files:
            try:
                file.local()
            except UserError:
                return


def _download(file: Stored, target: Path) -> None:
    system, path = filesystem(file.place)
    partial = target.with_name(f".{target.name}.part")
    try:
        system.get_file(path, str(partial))
        size = partial.stat().st_size
        if file.bytes is not None and size != file.bytes:
            raise OSError(f"{size} bytes arrived where its index says {file.bytes}")
        if file.sha256 is not None and file_sha256(partial) != file.sha256:
            raise OSError("what arrived does not match its SHA-256 in the index")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return " ".join(str(error).split())[:300] or type(error).__name__
