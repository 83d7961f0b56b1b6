"""Writes any source as tar shards that `sources/shards.py` and WebDataset read."""

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import Image

from vitrail.data.decode import BadImage, open_header
from vitrail.data.doctor import printable
from vitrail.data.sources import UNLABELLED, Source, Split
from vitrail.data.sources.shard_index import BLOCK, INDEX, Index, Rows, Shard, write_index
from vitrail.data.sources.tar_scan import WRITTEN
from vitrail.errors import UserError
from vitrail.tasks import task

_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "JPEG2000": "jp2"}


def write_shards(
    source: Source,
    out: Path,
    *,
    shard_bytes: int = 256_000_000,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Every split as `SPLIT-000000.tar`, `SPLIT-000001.tar` ..., their index, and the class names as classes.txt.

    A sample's class stands beside it as .cls; what other tasks answer stands there as .json by name, and with the
    sample's id in the index.

    The same source gives the same bytes. The folder appears under its name once all of it is written. What cannot be
    read is left out and listed in the result.
    """
    if any("\n" in name or name != name.strip() for name in source.classes):
        raise UserError("a class name has line breaks or spaces at its ends: classes.txt cannot hold it")
    try:
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out} is not empty: give a new folder, so that old shards are not mixed with new ones")
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            writer = _Writer(partial, shard_bytes, source, progress)
            counts = {name: writer.write(split) for name, split in source.splits.items()}
            (partial / "classes.txt").write_text("".join(f"{name}\n" for name in source.classes), "utf-8")
            write_index(partial / INDEX, writer.index())
            partial.chmod(0o755)
            partial.replace(out)  # takes the place of an empty folder, and of nothing else
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"the shards cannot be written to {out}: {error.strerror or error}") from error
    return {"out": str(out), "splits": counts, "shards": len(writer.shards), "skipped": writer.skipped}


@dataclass(frozen=True)
class _Sample:
    """A sample to be written: its place in its split, how it is stored, and its target."""

    row: int
    id: str
    ending: str
    content: bytes
    target: np.ndarray


class _Writer:
    """Writes split after split, and notes where each sample went."""

    def __init__(self, folder: Path, shard_bytes: int, source: Source, progress: Callable[[int], None]) -> None:
        self.folder, self.shard_bytes, self.progress = folder, shard_bytes, progress
        self.source, self.target = source, task(source.task).target
        self.targets: list[tuple[str, str]] = []  # target as JSON, id; empty where there are classes
        self.shards: list[Shard] = []
        self.samples: list[tuple[int, str, int, int, int, bytes]] = []  # shard, key, offset, size, label, digest
        self.skipped: list[dict[str, str]] = []

    def write(self, split: Split) -> int:
        samples = self._samples(split)
        before, number, waiting = len(self.samples), 0, next(samples, None)
        while waiting is not None:
            name = f"{split.name}-{number:06d}.tar"
            with (self.folder / name).open("wb") as file:
                hashed = _Hashed(file)
                with tarfile.TarFile(fileobj=cast(Any, hashed), mode="w") as archive:  # all it needs to write
                    while waiting is not None and (archive.offset == 0 or archive.offset < self.shard_bytes):
                        self._add(archive, waiting)
                        waiting = next(samples, None)
                file.flush()
                os.fsync(file.fileno())
                self.shards.append(Shard(name, file.tell(), hashed.digest.hexdigest()))
            number += 1
        return len(self.samples) - before

    def index(self) -> Index:
        """The index of what was written."""
        rows = self._rows()
        if self.target.single_class:
            return Index(tuple(self.shards), rows, written=True)
        targets, ids = [each for each, _ in self.targets], [each for _, each in self.targets]
        rows = replace(rows, target=targets, id=ids)
        return Index(tuple(self.shards), rows, True, self.source.task, self.source.classes)

    def _rows(self) -> Rows:
        shard, key, offset, size, label, digest = zip(*self.samples, strict=True) if self.samples else [()] * 6
        return Rows(
            np.array(shard, dtype=np.int32),
            list(key),
            np.array(offset, dtype=np.int64),
            np.array(size, dtype=np.int64),
            np.array(label, dtype=np.int64),
            sha256=np.frombuffer(b"".join(digest), np.uint8).reshape(-1, 32),
        )

    def _add(self, archive: tarfile.TarFile, sample: _Sample) -> None:
        key, content, label = f"{sample.row:08d}", sample.content, UNLABELLED
        _add_member(archive, f"{key}.{sample.ending}", content)
        padded = -(-len(content) // BLOCK) * BLOCK
        digest = hashlib.sha256(content).digest()
        offset = archive.offset - padded
        if self.target.single_class:
            label = int(sample.target)
            if label != UNLABELLED:
                _add_member(archive, f"{key}.cls", str(label).encode())
        else:
            document = {WRITTEN: self.source.task, "id": sample.id}
            document.update(self.target.document(sample.target, self.source.classes))
            _add_member(archive, f"{key}.json", json.dumps(document, ensure_ascii=False).encode())
            self.targets.append((json.dumps(self.target.stored(sample.target)), sample.id))
        self.samples.append((len(self.shards), key, offset, len(content), label, digest))

    def _samples(self, split: Split) -> Iterator[_Sample]:
        for index in range(len(split)):
            self.progress(1)
            try:
                ending, content = _encoded(split.read(index))
            except BadImage as error:
                self.skipped.append({"id": printable(split.ids[index]), "reason": str(error)})
                continue
            yield _Sample(index, printable(split.ids[index]), ending, content, split.targets[index])


class _Hashed:
    """A file that knows the SHA-256 of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        return self.file.write(content)

    def tell(self) -> int:
        return self.file.tell()


def _add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _encoded(content: bytes | np.ndarray) -> tuple[str, bytes]:
    """How a sample is stored: its ending and its bytes."""
    stream = io.BytesIO()
    if isinstance(content, bytes):
        if content[:6] == b"\x93NUMPY":
            return "npy", content
        try:
            kind = open_header(content).format or ""
        except BadImage:
            raise
        except Exception as error:
            raise BadImage("is not an image in any known format") from error
        return _ENDINGS.get(kind, kind.lower()), content
    if content.shape[2] not in (1, 3):
        np.save(stream, content)
        return "npy", stream.getvalue()
    Image.fromarray(content if content.shape[2] == 3 else content[:, :, 0]).save(stream, "PNG")
    return "png", stream.getvalue()
