"""Files with samples, on this machine or behind a URL. A file behind a URL is downloaded once, as a whole, to the
cache."""

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
"""The seconds to wait before each further attempt to download a file; after the last it is given up."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
"""The exceptions after which another attempt would be of no use."""
# The package that fsspec needs by the protocol of a URL.
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}

_Result = TypeVar("_Result")


def is_url(text: str) -> bool:
    """Tells whether a text is a URL and not a path."""
    return "://" in text


@dataclass(frozen=True)
class StoredFile:
    """A file on this machine or behind a URL."""

    place: str
    """The path or the URL."""
    bytes: int | None = None
    """The size, if an index states it."""
    sha256: str | None = None
    """The SHA-256, if an index states it."""
    version: str = ""
    """A text that changes when a remote file does, for files without a SHA-256."""

    @property
    def remote(self) -> bool:
        """Tells whether the file is behind a URL."""
        return is_url(self.place)

    def local(self) -> Path:
        """Returns a path on this machine where the file can be read; a remote file is downloaded first."""
        return fetch_file(self) if self.remote else Path(self.place)

    def descriptor(self) -> int:
        """Opens the file for reading and returns the descriptor."""
        for _ in range(3):
            try:
                return os.open(self.local(), os.O_RDONLY)
            except FileNotFoundError:
                if not self.remote:
                    raise  # a remote file may have been deleted from the cache again: download it once more
        raise OSError(f"the cache, {cache_folder()}, loses files as they arrive: raise VITRAIL_CACHE_SIZE")


def filesystem(url: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URL, and the path in it.

    Raises UserError if the package for such URLs is not installed, or the URL is not valid.
    """
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
    """Runs an action that uses the network and returns its result; if it fails, it is repeated a few times.

    url: the file, for messages. Raises UserError if the last attempt fails.
    """
    for pause in (*_PAUSES, None):
        try:
            return action()
        except UserError:
            raise
        except _FINAL as error:
            raise UserError(f"{url} cannot be read: {_reason(error)}") from error
        except Exception as error:  # every file system has exceptions of its own
            if pause is None:
                tries = len(_PAUSES) + 1
                raise UserError(f"{url} cannot be read, in {tries} attempts: {_reason(error)}") from error
            time.sleep(pause)
    raise AssertionError


def fetch_file(file: StoredFile) -> Path:
    """Downloads a remote file to the cache, unless it is there, and returns its path in the cache.

    Its size and SHA-256 are compared if they are known. Raises UserError if it cannot be downloaded.
    """
    from filelock import FileLock

    name = file.place.rstrip("/").rpartition("/")[2][-80:]
    target = cache_folder("files") / f"{cache_name(file.place, file.sha256 or file.version)}-{name}"
    if used(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # One process downloads and the others wait. The operating system frees the lock if that process is killed.
        with FileLock(target.with_name(f".{target.name}.lock")):
            if not used(target):
                attempt(file.place, lambda: _download(file, target))
                make_room(target.parent, keep=target)
    except OSError as error:
        raise UserError(f"the cache {target.parent} cannot be written: {error.strerror or error}") from error
    return target


class Fetcher:
    """Downloads files in a background thread. An error is not reported here but when the file is read."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, files: list[StoredFile]) -> None:
        """Begins to download these files one after the other, unless earlier ones are still being downloaded."""
        if (self._thread is None or not self._thread.is_alive()) and any(file.remote for file in files):
            self._thread = threading.Thread(target=self._run, args=(files,), name="vitrail-fetch", daemon=True)
            self._thread.start()

    def _run(self, files: list[StoredFile]) -> None:
        for file in files:
            try:
                file.local()
            except UserError:
                return


def _download(file: StoredFile, target: Path) -> None:
    """Downloads a file to `target` atomically. Raises OSError if its size or SHA-256 is not as stated."""
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
    """Returns an exception's message as one line."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return " ".join(str(error).split())[:300] or type(error).__name__
