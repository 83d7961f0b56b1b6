"""Writing any source as tar shards, which `sources/shards.py` and WebDataset read."""

import csv
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from PIL import Image

from vitrail.data.check import valid_unicode
from vitrail.data.decode import BadImage, open_header
from vitrail.data.sources import UNLABELLED, Source, Split
from vitrail.data.sources.annotation_index import AnnotationTable
from vitrail.data.sources.shard_index import BLOCK, INDEX, Index, SampleTable, Shard, write_index
from vitrail.data.sources.tar_scan import WRITTEN
from vitrail.errors import UserError
from vitrail.tasks import task

_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "JPEG2000": "jp2"}
"""The endings of files in shards by Pillow's format; any other format's is its name in lower case."""


def write_shards(
    source: Source,
    out: Path,
    *,
    shard_bytes: int = 256_000_000,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Writes every split of a source as `SPLIT-000000.tar`, `SPLIT-000001.tar` ..., with an index and classes.txt.

    Beside the image of a sample, its shard has its class as .cls, or its mask as .seg.png, whose ids are places among
    the classes; for other tasks its target as .json, which is in the index too. Equal sources give equal bytes. The
    folder is written as a whole or not at all.

    Args:
        source: The data.
        out: The folder, which must be new or empty.
        shard_bytes: A shard ends with the sample that brings it to this size.
        progress: Called with the number of samples newly written.

    Returns:
        {out, splits: the number of samples by split, shards: their number, skipped: {id, reason} of each sample that
        cannot be read and is left out}.

    Raises:
        UserError: If the folder is not empty or cannot be written, or a class name does not fit on a line.
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
            if task(source.task).target.in_pixels:
                (partial / "classes.csv").write_text(_class_table(source.classes), "utf-8")
            write_index(partial / INDEX, writer.index())
            partial.chmod(0o755)
            partial.replace(out)  # replaces an empty folder; anything else raises OSError
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"the shards cannot be written to {out}: {error.strerror or error}") from error
    return {"out": str(out), "splits": counts, "shards": len(writer.shards), "skipped": writer.skipped}


@dataclass(frozen=True)
class _Sample:
    """A sample to be written."""

    row: int
    """Its place in its split."""
    id: str
    ending: str
    """The ending of its file in the shard."""
    content: bytes
    """The bytes of that file."""
    target: np.ndarray
    annotation: tuple[str, bytes] | None = None
    """The ending and the bytes of the file that holds its right answer, for answers in pixels."""
    stated_size: int = -1
    """The size that its source states, which is part of the source's fingerprint."""


class _Writer:
    """Writes the splits one after the other and records where each sample is, for the index."""

    def __init__(self, folder: Path, shard_bytes: int, source: Source, progress: Callable[[int], None]) -> None:
        self.folder, self.shard_bytes, self.progress = folder, shard_bytes, progress
        self.source, self.target = source, task(source.task).target
        self.targets: list[tuple[str, str]] = []
        """(target as JSON, id) of each sample; empty if each has a single class."""
        self.shards: list[Shard] = []
        self.samples: list[tuple[int, str, int, int, int, bytes]] = []
        """(number of the shard, key, offset in it, size, label, SHA-256) of each sample."""
        self.annotations: list[tuple[int, int, int, bytes]] = []
        """(offset, size, size stated by the source, SHA-256) of the file of each right answer in pixels."""
        self.skipped: list[dict[str, str]] = []
        """{id, reason} of each sample that cannot be read."""

    def write(self, split: Split) -> int:
        """Writes the shards of a split and returns the number of samples in them."""
        samples = self._samples(split)
        before, number, waiting = len(self.samples), 0, next(samples, None)
        while waiting is not None:
            name = f"{split.name}-{number:06d}.tar"
            with (self.folder / name).open("wb") as file:
                hashed = _Hashed(file)
                with tarfile.TarFile(fileobj=cast(Any, hashed), mode="w") as archive:  # it needs write and tell only
                    while waiting is not None and (archive.offset == 0 or archive.offset < self.shard_bytes):
                        self._add(archive, waiting)
                        waiting = next(samples, None)
                file.flush()
                os.fsync(file.fileno())
                self.shards.append(Shard(name, file.tell(), hashed.digest.hexdigest()))
            number += 1
        return len(self.samples) - before

    def index(self) -> Index:
        """Returns the index of all shards written so far."""
        rows = self._rows()
        if self.target.single_class:
            return Index(tuple(self.shards), rows, written=True)
        targets, ids = [target for target, _ in self.targets], [name for _, name in self.targets]
        rows = replace(rows, target=targets, id=ids)
        return Index(tuple(self.shards), rows, True, self.source.task, self.source.classes)

    def _rows(self) -> SampleTable:
        """Returns the columns of the index for all samples."""
        annotation = None
        if self.target.in_pixels:
            places = np.array([each[:3] for each in self.annotations], dtype=np.int64).reshape(-1, 3).T
            digests = np.frombuffer(b"".join(each[3] for each in self.annotations), np.uint8).reshape(-1, 32)
            annotation = AnnotationTable(places[0], places[1], places[2], digests)
        shard, key, offset, size, label, digest = zip(*self.samples, strict=True) if self.samples else [()] * 6
        return SampleTable(
            np.array(shard, dtype=np.int32),
            list(key),
            np.array(offset, dtype=np.int64),
            np.array(size, dtype=np.int64),
            np.array(label, dtype=np.int64),
            sha256=np.frombuffer(b"".join(digest), np.uint8).reshape(-1, 32),
            annotation=annotation,
        )

    def _add(self, archive: tarfile.TarFile, sample: _Sample) -> None:
        """Adds a sample and its target to an archive and records where it is."""
        key, content, label = f"{sample.row:08d}", sample.content, UNLABELLED
        offset = _add_member(archive, f"{key}.{sample.ending}", content)
        digest = hashlib.sha256(content).digest()
        if self.target.single_class:
            label = int(sample.target)
            if label != UNLABELLED:
                _add_member(archive, f"{key}.cls", str(label).encode())
        elif self.target.in_pixels:
            self.annotations.append(self._add_annotation(archive, key, sample))
            self.targets.append((json.dumps(self.target.stored(sample.target)), sample.id))
        else:
            document = {WRITTEN: self.source.task, "id": sample.id}
            document.update(self.target.document(sample.target, self.source.classes))
            _add_member(archive, f"{key}.json", json.dumps(document, ensure_ascii=False).encode())
            self.targets.append((json.dumps(self.target.stored(sample.target)), sample.id))
        self.samples.append((len(self.shards), key, offset, len(content), label, digest))

    def _add_annotation(self, archive: tarfile.TarFile, key: str, sample: _Sample) -> tuple[int, int, int, bytes]:
        """Adds the file of a right answer, if there is one, and returns its entry of `annotations`."""
        if sample.annotation is None:
            return -1, 0, sample.stated_size, hashlib.sha256().digest()
        ending, content = sample.annotation
        offset = _add_member(archive, f"{key}.{ending}", content)
        return offset, len(content), sample.stated_size, hashlib.sha256(content).digest()

    def _samples(self, split: Split) -> Iterator[_Sample]:
        """Yields the samples of a split that can be read, and records the others."""
        for index in range(len(split)):
            self.progress(1)
            try:
                ending, content = _encoded(split.read(index))
                annotation = split.annotation(index) if self.target.in_pixels else None
            except BadImage as error:
                self.skipped.append({"id": valid_unicode(split.ids[index]), "reason": str(error)})
                continue
            sample = _Sample(index, valid_unicode(split.ids[index]), ending, content, split.targets[index])
            if self.target.in_pixels:
                file = None if annotation is None else self.target.encoded(annotation, self.source.classes)
                sample = replace(sample, annotation=file, stated_size=split.size(index))
            yield sample


def _class_table(names: Sequence[str]) -> str:
    """Writes the classes with their ids, so that a name that begins with a number cannot be taken for an id."""
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    stream.write("id,name\n")
    writer.writerows(enumerate(names))
    return stream.getvalue()


class _Hashed:
    """A file to write to, which computes the SHA-256 of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def write(self, content: bytes) -> int:
        """Writes bytes and adds them to the digest."""
        self.digest.update(content)
        return self.file.write(content)

    def tell(self) -> int:
        """Returns the position in the file."""
        return self.file.tell()


def _add_member(archive: tarfile.TarFile, name: str, content: bytes) -> int:
    """Adds a file to an archive and returns the position of its bytes there."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
    return archive.offset - -(-len(content) // BLOCK) * BLOCK


def _encoded(content: bytes | np.ndarray) -> tuple[str, bytes]:
    """Returns the ending and the bytes of the file that a sample is stored as.

    Image files stay as they are; arrays become PNG, or .npy with other than 1 or 3 channels. Raises BadImage if the
    bytes are not an image.
    """
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
