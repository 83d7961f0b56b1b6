"""A folder that files of samples lie in: of this machine, or behind a URL. Formats see no difference."""

import json
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from vitrail.data.cache import cache_folder, cache_name
from vitrail.data.sources.listing import class_names_in, read_class_names
from vitrail.data.sources.stored import Stored, attempt, fetch, filesystem
from vitrail.errors import UserError

_VERSION = ("ETag", "etag", "blob_id", "md5Hash", "crc32c", "mtime", "LastModified", "updated", "created")
"""What file systems call that which changes with a file."""


class Place(Protocol):
    """Files in it are called by their path below it, with forward slashes."""

    @property
    def remote(self) -> bool: ...

    def listing(self, suffix: str) -> list[str]:
        """Every visible file below whose name ends so, in order."""
        ...

    def where(self, name: str) -> str:
        """Its full name, for messages."""
        ...

    def state(self, name: str) -> tuple[int, str]:
        """Its size, and a text that changes when the file does."""
        ...

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> Stored:  # noqa: A002
        ...

    def small(self, name: str) -> Path | None:
        """A small file as one of this machine, if it is there."""
        ...

    def stream(self, name: str) -> AbstractContextManager[Any]:
        """A file of which only parts are read: a path, or an open file that reads over the network."""
        ...

    def class_names(self) -> tuple[str, ...] | None: ...

    def kept(self) -> Path:
        """Where the cache keeps an index of this place."""
        ...


@dataclass(frozen=True)
class LocalPlace:
    root: Path
    globbed: bool = False
    """Whether it is only what some files have in common, and not a folder that was asked for."""
    remote: bool = False

    def listing(self, suffix: str) -> list[str]:
        files = [file for file in self.root.rglob(f"*{suffix}") if not file.name.startswith(".") and file.is_file()]
        return in_order([file.relative_to(self.root).as_posix() for file in files])

    def where(self, name: str) -> str:
        return str(self.root / name)

    def state(self, name: str) -> tuple[int, str]:
        found = (self.root / name).stat()
        return found.st_size, str(found.st_mtime_ns)

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> Stored:  # noqa: A002
        return Stored(str(self.root / name), bytes, sha256)

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
class RemotePlace:
    url: str
    remote: bool = True
    _known: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """What is known of its files from listing them."""

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def listing(self, suffix: str) -> list[str]:
        system, path = filesystem(self.url)
        found = attempt(self.url, lambda: system.find(path, detail=True))
        return self._note(path, found, suffix)

    def matching(self, pattern: str) -> list[str]:
        """Files whose names fit a pattern such as train-*.tar."""
        system, path = filesystem(self.url)
        found = attempt(self.where(pattern), lambda: system.glob(f"{path.rstrip('/')}/{pattern}", detail=True))
        return self._note(path, found, "")

    def _note(self, path: str, found: dict[str, dict[str, Any]], suffix: str) -> list[str]:
        """The names of the files that were found; what is told of them is remembered."""
        names = {each[len(path.rstrip("/")) :].lstrip("/"): state for each, state in found.items()}
        visible = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
        wanted = in_order([name for name in visible if name.endswith(suffix)])
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
        """Ask for all files at once, where the server can; else each is asked for by its name."""
        system, path = filesystem(self.url)
        with suppress(Exception):
            self._note(path, system.find(path, detail=True), suffix)

    def _look(self, name: str) -> dict[str, Any] | None:
        system, path = filesystem(self.where(name))
        return attempt(self.where(name), lambda: _info(system, path))

    @staticmethod
    def _version(state: dict[str, Any]) -> str:
        told = {key: str(state[key]) for key in _VERSION if state.get(key) is not None}
        return json.dumps({"size": state.get("size"), **told}, sort_keys=True)

    def stored(self, name: str, bytes: int | None = None, sha256: str | None = None) -> Stored:  # noqa: A002
        version = "" if sha256 else self.state(name)[1]
        return Stored(self.where(name), bytes, sha256, version)

    def small(self, name: str) -> Path | None:
        state = self._look(name)
        return None if state is None else fetch(Stored(self.where(name), version=self._version(state)))

    def stream(self, name: str) -> AbstractContextManager[Any]:
        system, path = filesystem(self.where(name))
        return system.open(path, "rb", block_size=1 << 16)  # a column of labels is small: no reading ahead

    def class_names(self) -> tuple[str, ...] | None:
        return read_class_names(self.small("classes.txt"), self.small("classes.json"))

    def kept(self) -> Path:
        return cache_folder("indexes", f"{cache_name(self.url)}.parquet")


def in_order(names: list[str]) -> list[str]:
    """Sorted folder by folder, the same here and elsewhere."""
    return sorted(names, key=lambda name: name.split("/"))


def _info(system: Any, path: str) -> dict[str, Any] | None:
    try:
        return system.info(path)
    except FileNotFoundError:  # an answer, not a failure
        return None
