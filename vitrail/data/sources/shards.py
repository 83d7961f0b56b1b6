"""Tar shards as WebDataset writes them: members whose names are equal up to the first dot are one sample.

Samples are read at random: the index (`shard_index.py`) has the position of each image in its shard.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources import paired_masks
from vitrail.data.sources.base import (
    MAX_SAMPLE_BYTES,
    OpenOptions,
    ShardedReader,
    Source,
    Split,
    SplitRule,
    build_source,
)
from vitrail.data.sources.classes import labels_by_name, numbered_classes
from vitrail.data.sources.indexing import find_index
from vitrail.data.sources.mask_reading import MASK_TASK
from vitrail.data.sources.shard_index import INDEX, Index, SampleTable, refusing, sample_ids
from vitrail.data.sources.splits import files_by_split
from vitrail.data.sources.storage.files import Fetcher, StoredFile
from vitrail.data.sources.storage.folders import StorageFolder
from vitrail.errors import UserError
from vitrail.io.checksums import file_sha256
from vitrail.io.documents import parse_json
from vitrail.tasks import DEFAULT, task

_OPEN = 64
"""The number of shards that are kept open, far below the number of files that a process may open."""


class _Handle:
    """An open file, which is closed when no thread refers to it any more; one may still be reading when it leaves the
    list of open files."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # `close` is an argument because at the end of the program `os` may be gone already


@dataclass
class TarReader(ShardedReader):
    """Reads images from tar files by their position. Threads share the open files, since `pread` moves no position."""

    files: tuple[StoredFile, ...]
    members: np.ndarray
    """The number of each sample's file, integers [samples]."""
    offsets: np.ndarray
    """The position of each image in its file, in bytes, integers [samples]."""
    sizes: np.ndarray
    """The size of each image in bytes, integers [samples]."""
    digests: np.ndarray | None = None
    """The SHA-256 of each image, uint8 [samples, 32], if the index has them."""
    _handles: dict[int, _Handle] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)
    _fetching: Fetcher = field(default_factory=Fetcher, repr=False)

    def read(self, row: int) -> bytes:
        size = int(self.sizes[row])
        if size > MAX_SAMPLE_BYTES:
            raise BadImage(f"is larger than {MAX_SAMPLE_BYTES >> 20} MB")
        try:
            member = int(self.members[row])
            handle = self._handles.get(member) or self._open(member)
            content = os.pread(handle.descriptor, size, int(self.offsets[row]))
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror or error}") from error
        if len(content) < size:
            raise BadImage("lies beyond the end of its shard, which is cut off")
        if self.digests is not None and hashlib.sha256(content).digest() != self.digests[row].tobytes():
            raise BadImage("does not match its SHA-256 in the index: the shard is damaged")
        return content

    def size(self, row: int) -> int:
        return int(self.sizes[row])

    @property
    def remote(self) -> bool:
        return any(file.remote for file in self.files)

    def shards(self, rows: np.ndarray) -> np.ndarray:
        return self.members[rows]

    def prepare(self, rows: np.ndarray) -> None:
        self._fetching.start([self.files[member] for member in dict.fromkeys(self.members[rows].tolist())])

    def _open(self, member: int) -> _Handle:
        """Opens a file, and lets go of another if too many are open."""
        handle = _Handle(self.files[member].descriptor())
        with self._lock:
            while len(self._handles) >= _OPEN:
                del self._handles[next(iter(self._handles))]
            return self._handles.setdefault(member, handle)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_lock": None, "_fetching": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_lock": threading.Lock(), "_fetching": Fetcher()})


def open_shards(
    name: str, place: StorageFolder, names: list[str] | None, rule: SplitRule, asked: OpenOptions
) -> Source:
    """Opens tar shards as one source. Splits are recognised by file names such as train-000001.tar.

    Args:
        name: The name of the source.
        place: The folder of the shards.
        names: The names of the shards; None for all in the folder.
        rule: How to make the splits that it does not have.
        asked: What the user asked of it besides.

    Raises:
        UserError: If shards or their index are damaged, or have no images.
    """
    index, names, notes = find_index(place, names)
    groups = files_by_split(name, map(PurePosixPath, names), PurePosixPath())
    numbers = {shard.name: number for number, shard in enumerate(index.shards)}
    parts = {split: _part(index, [numbers[str(file)] for file in files]) for split, files in groups.items()}
    if not any(len(rows) for rows, _ in parts.values()):
        raise UserError(f"{name}: no images in {len(names)} tar file(s)")
    masks = _has_masks(index, [rows for rows, _ in parts.values()], asked)
    chosen = MASK_TASK if masks else index.task or DEFAULT
    classes, targets = ((), None) if masks else _targets(name, index, [rows for rows, _ in parts.values()], place)
    found, start = {}, 0
    for split, (rows, members) in parts.items():
        listed = [index.shards[numbers[str(file)]] for file in groups[split]]
        files = tuple(place.stored(shard.name, shard.bytes, shard.sha256) for shard in listed)
        ids = sample_ids(index, rows)
        if len(set(ids)) < len(ids):
            raise UserError(f"{name}: two samples have one name; write the shards again, or delete their index")
        reader = TarReader(files, members, rows.offset, rows.size, rows.sha256)
        own_targets = _with_mask(rows) if targets is None else targets[start : start + len(ids)]
        reader = _paired(reader, rows) if masks else reader
        found[split] = Split(split, ids, own_targets, reader, np.arange(len(ids), dtype=np.int64), chosen)
        start += len(ids)
    if masks:
        states = "\n".join(f"{place.where(shard.name)} {shard.bytes} {shard.version}" for shard in index.shards)
        known = paired_masks.classes_in(place, asked.ignore)
        if index.task is not None:
            known = paired_masks.classes_by_index(index.names, INDEX, asked.ignore)
        return paired_masks.masked_source(name, found, paired_masks.MaskOrigin(rule, asked, known, states, notes))
    return build_source(name, classes, found, rule, notes)


def _has_masks(index: Index, parts: Sequence[SampleTable], asked: OpenOptions) -> bool:
    """Tells whether the targets of shards are their masks: they are if no label says something else, or if the task
    that is asked for has its right answers in pixels."""
    if index.rows.annotation is None:
        return False
    wanted = index.task or asked.task
    if wanted is not None:
        return task(wanted).target.in_pixels
    return all((rows.label < 0).all() and not any(rows.name or ()) for rows in parts)


def _with_mask(rows: SampleTable) -> np.ndarray:
    """Returns which samples have a mask, as targets: int8 [samples]."""
    assert rows.annotation is not None
    return rows.annotation.present.astype(np.int8)


def _paired(reader: TarReader, rows: SampleTable) -> paired_masks.ShardedPairedReader:
    """Adds the masks of samples to the reader of their pictures."""
    places = rows.annotation
    assert places is not None
    masks = TarReader(reader.files, reader.members, places.offset, places.size, places.sha256)
    sizes = places.stated_size if (places.stated_size >= 0).all() else None
    return paired_masks.ShardedPairedReader(reader, masks, places.present, "the .seg.png of sample", sizes=sizes)


def _part(index: Index, chosen: Sequence[int]) -> tuple[SampleTable, np.ndarray]:
    """Returns the samples of some shards, sorted by shard, and for each the position of its shard in `chosen`.

    chosen: the numbers of the shards, in the wanted order.
    """
    position = np.full(len(index.shards), -1, dtype=np.int64)
    position[chosen] = np.arange(len(chosen))
    members = position[index.rows.shard]
    if len(members) and members[0] >= 0 and (members[:-1] <= members[1:]).all():  # already in this order
        return index.rows, members
    order = np.argsort(members, kind="stable")
    order = order[np.searchsorted(members[order], 0) :]
    return index.rows.take(order), members[order]


def _targets(
    name: str, index: Index, parts: list[SampleTable], place: StorageFolder
) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the names that targets refer to, and the targets of the samples in all parts, [samples, ...].

    They are those that the index has, or else made of the labels. place: the folder, which may have class names.
    """
    if index.task is None:
        return _classes(name, parts, place)
    with refusing(place.where(INDEX)):
        stored = [parse_json(text, "a target") for rows in parts for text in rows.target or ()]
        return index.names, task(index.task).target.restored(stored, len(index.names))


def _classes(name: str, parts: list[SampleTable], place: StorageFolder) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the class names and the label of each sample. Raises UserError if some labels are names and some not."""
    numbers = np.concatenate([rows.label for rows in parts])
    texts = [text for rows in parts for text in rows.name or [None] * len(rows)]
    named = next((text for text in texts if text is not None), None)
    if named is None:
        return numbered_classes(name, numbers, place.class_names()), numbers
    if (numbers != -1).any():
        number = numbers[numbers != -1][0]
        raise UserError(f"{name}: some labels are numbers ({number}) and some are names ({named!r})")
    return labels_by_name(texts)


def damaged_shards(source: Source) -> list[dict[str, str]]:
    """Finds shards that differ from their SHA-256 in the index, which covers images, labels and headers.

    Returns {shard, reason} for each; [] for sources that are no shards or have no SHA-256.
    """
    found: dict[str, str] = {}
    checked: set[str] = set()
    for split in source.splits.values():
        reader = split.reader.pictures if isinstance(split.reader, paired_masks.PairedReader) else split.reader
        for file in reader.files if isinstance(reader, TarReader) else ():
            if file.sha256 is None or file.place in checked:
                continue
            checked.add(file.place)
            try:
                if file_sha256(file.local()) != file.sha256:
                    found[file.place] = "does not match its SHA-256 in the index"
            except (OSError, UserError) as error:
                found[file.place] = f"cannot be read: {error}"
    return [{"shard": shard, "reason": reason} for shard, reason in found.items()]
