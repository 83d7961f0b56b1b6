"""Folders with files of samples, on this machine or behind a URL, with one interface for both."""

import json
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from vitrail.data.cache import cache_folder, cache_name
from vitrail.data.sources.listing import class_names_in, read_class_names
from vitrail.data.sources.storage.files import StoredFile, attempt, fetch_file, filesystem
from vitrail.errors import UserError

_VERSION = ("ETag", "etag", "blob_id", "md5Hash", "crc32c", "mtime", "LastModified", "updated", "created")
"""The keys under which fsspec's file systems state what changes when a file does."""


class StorageFolder(Protocol):
    """A folder. The name of a file in it is its path below the folder, with forward slashes."""

    @property
    def remote(self) -> bool:
        """Tells whether the folder is behind a URL."""
        ...

    def listing(self, suffix: str) -> list[str]:
        """Lists every file below the folder whose name ends in `suffix`, sorted, without hidden ones."""
        ...

    def where(self, name: str) -> str:
        """Returns the full path or URL of a file."""
        ...

    def state(self, name: str) -> tuple[int, str]:
        """Returns the size of a file in bytes and a text that changes when the file does.

        Raises OSError or UserError if there is no such file.
        """
        ...

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> StoredFile:  # noqa: A002
        """Returns a file, with the size and SHA-256 that an index states."""
        ...

    def small(self, name: str) -> Path | None:
        """Returns a path on this machine to a small file, downloaded first if it is remote; None if there is none."""
        ...

    def stream(self, name: str) -> AbstractContextManager[Any]:
        """Opens a file to read parts of it: the context is a path, or a file object that reads over the network."""
        ...

    def class_names(self) -> tuple[str, ...] | None:
        """Reads the class names from classes.txt or classes.json in the folder; None if there are none."""
        ...

    def kept(self) -> Path:
        """Returns the path in the cache for an index of this folder."""
        ...


@dataclass(frozen=True)
class LocalFolder(StorageFolder):
    """A folder on this machine."""

    root: Path
    globbed: bool = False
    """True if it is the common parent of files that the user gave, and not a folder that the user named."""

    @property
    def remote(self) -> bool:
        return False

    def listing(self, suffix: str) -> list[str]:
        files = [file for file in self.root.rglob(f"*{suffix}") if not file.name.startswith(".") and file.is_file()]
        return sorted_by_folder([file.relative_to(self.root).as_posix() for file in files])

    def where(self, name: str) -> str:
        return str(self.root / name)

    def state(self, name: str) -> tuple[int, str]:
        found = (self.root / name).stat()
        return found.st_size, str(found.st_mtime_ns)

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> StoredFile:  # noqa: A002
        return StoredFile(str(self.root / name), bytes, sha256)

    def small(self, name: str) -> Path | None:
        path = self.root / name
        return path if path.is_file() else None

    def stream(self, name: str) -> AbstractContextManager[Any]:
        return nullcontext(self.root / name)

    def class_names(self) -> tuple[str, ...] | None:
        return class_names_in(self.root)

    def kept(self) -> Path:
        return cache_folder("indexes", f"{cache_name(os.path.abspath(self.root))}.parquet")  # noqa: PTH100


@dataclass(frozen=True)
class RemoteFolder(StorageFolder):
    """A folder behind a URL."""

    url: str
    _known: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """What fsspec stated about each file when the folder was listed."""

    @property
    def remote(self) -> bool:
        return True

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def listing(self, suffix: str) -> list[str]:
        system, path = filesystem(self.url)
        found = attempt(self.url, lambda: system.find(path, detail=True))
        return self._note(path, found, suffix)

    def matching(self, pattern: str) -> list[str]:
        """Lists the files whose names match a pattern such as train-*.tar, sorted."""
        system, path = filesystem(self.url)
        found = attempt(self.where(pattern), lambda: system.glob(f"{path.rstrip('/')}/{pattern}", detail=True))
        return self._note(path, found, "")

    def _note(self, path: str, found: dict[str, dict[str, Any]], suffix: str) -> list[str]:
        """Returns the names of the files found, sorted, and keeps what was stated about them.

        path: the path of the folder in its file system; found: the statements by path.
        """
        names = {file[len(path.rstrip("/")) :].lstrip("/"): state for file, state in found.items()}
        visible = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
        wanted = sorted_by_folder([name for name in visible if name.endswith(suffix)])
        self._known.update({name: names[name] for name in wanted})
        return wanted

    def state(self, name: str) -> tuple[int, str]:
        if not self._known:
            self._list_quietly(PurePosixPath(name).suffix)
        state = self._known.get(name) or self._look(name)
        if state is None:
            raise UserError(f"{self.where(name)} cannot be read: there is no such file")
        return int(state.get("size") or 0), self._version(state)

    def _list_quietly(self, suffix: str) -> None:
        """Lists all files at once, if the server can do that; otherwise each file is asked about by its name."""
        system, path = filesystem(self.url)
        with suppress(Exception):
            self._note(path, system.find(path, detail=True), suffix)

    def _look(self, name: str) -> dict[str, Any] | None:
        """Asks the server about one file; None if there is none."""
        system, path = filesystem(self.where(name))
        return attempt(self.where(name), lambda: _info(system, path))

    @staticmethod
    def _version(state: dict[str, Any]) -> str:
        """Makes the text that changes when a file does."""
        stated = {key: str(state[key]) for key in _VERSION if state.get(key) is not None}
        return json.dumps({"size": state.get("size"), **stated}, sort_keys=True)

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> StoredFile:  # noqa: A002
        version = "" if sha256 else self.state(name)[1]
        return StoredFile(self.where(name), bytes, sha256, version)

    def small(self, name: str) -> Path | None:
        state = self._look(name)
        return None if state is None else fetch_file(StoredFile(self.where(name), version=self._version(state)))

    def stream(self, name: str) -> AbstractContextManager[Any]:
        system, path = filesystem(self.where(name))
        return system.open(path, "rb", block_size=1 << 16)  # small blocks, since a column of labels is small

    def class_names(self) -> tuple[str, ...] | None:
        return read_class_names(self.small("classes.txt"), self.small("classes.json"))

    def kept(self) -> Path:
        return cache_folder("indexes", f"{cache_name(self.url)}.parquet")


def sorted_by_folder(names: list[str]) -> list[str]:
    """Sorts names by their folders first, so that local and remote folders give the same order."""
    return sorted(names, key=lambda name: name.split("/"))


def _info(system: Any, path: str) -> dict[str, Any] | None:
    """Returns what a file system states about a file; None if there is none."""
    try:
        return system.info(path)
    except FileNotFoundError:  # handled here so that `attempt` does not take it for a failure
        return None
