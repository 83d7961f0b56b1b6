"""The one interface of every source: named splits of samples, each with random access by index.

A format only has to say what its samples are called, how they are labelled, and how to read one: a `Reader`.
Everything else (splitting, fingerprints, lookup) is here, once.
"""

import hashlib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from vitrail.data.sources.classes import namesake_notes
from vitrail.data.sources.splits import stratified_split
from vitrail.errors import UserError
from vitrail.tasks import DEFAULT, task
from vitrail.tasks.classification.target import UNLABELLED

__all__ = [
    "MAX_SAMPLE_BYTES",
    "PRETRAINING",
    "UNLABELLED",
    "ArrayReader",
    "Content",
    "JoinedReader",
    "Reader",
    "Sample",
    "ShardedReader",
    "Source",
    "SourceKind",
    "Split",
    "SplitRule",
    "finish",
]

MAX_SAMPLE_BYTES = 1 << 30
"""No single encoded image is read beyond this size: a file of that size is not an image."""

PRETRAINING = "mae-small"
"""The recipe that is named to people whose images have no labels."""

Content = bytes | np.ndarray
"""What a sample holds: an encoded image, or pixels as uint8 [rows, columns, channels]."""


class Reader(Protocol):
    """Reads the row-th sample of a format. Must be safe to call from several threads and cheap to pickle."""

    def read(self, row: int) -> Content: ...

    def size(self, row: int) -> int:
        """Bytes of the sample's content, or as much of that as the format tells without reading it."""
        ...


@runtime_checkable
class ShardedReader(Reader, Protocol):
    """A reader of samples that lie many to a file, where going from file to file costs something."""

    @property
    def remote(self) -> bool:
        """Whether files have to be fetched."""
        ...

    def shards(self, rows: np.ndarray) -> np.ndarray:
        """Numbers that are equal for samples that lie together."""
        ...

    def prepare(self, rows: np.ndarray) -> None:
        """These samples are wanted soon."""
        ...


@dataclass(frozen=True)
class ArrayReader:
    """Samples that are kept in memory as pixels."""

    array: np.ndarray  # [samples, rows, columns, channels] uint8

    def read(self, row: int) -> np.ndarray:
        return self.array[row]

    def size(self, row: int) -> int:
        return int(self.array[row].nbytes)


@dataclass(frozen=True)
class Sample:
    """One image with its target and stable id; `read` fetches the content."""

    id: str
    target: np.ndarray | None
    """None where there is none."""
    read: Callable[[], Content]


@dataclass(frozen=True)
class Split:
    """Some samples of a source, in a fixed order."""

    name: str
    ids: Sequence[str]
    targets: np.ndarray  # [samples, ...], as the task has them
    reader: Reader = field(repr=False)
    rows: np.ndarray  # [samples] int64: where each sample is for the reader
    task: str = DEFAULT

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.targets) == len(self.rows)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        row = int(self.rows[index])
        target = self.targets[index] if self.known[index] else None
        return Sample(self.ids[index], target, lambda: self.reader.read(row))

    @cached_property
    def known(self) -> np.ndarray:
        """bool [samples]: which of them have a target."""
        return task(self.task).target.known(self.targets)

    @property
    def labels(self) -> np.ndarray:
        """int64 [samples]: the one class of each, -1 for none. A UserError where the task is another one."""
        return task(self.task).target.labels(self.targets)

    @property
    def strata(self) -> np.ndarray:
        """int64 [samples]: what a cut keeps in proportion."""
        return task(self.task).target.strata(self.targets)

    def read(self, index: int) -> Content:
        return self.reader.read(int(self.rows[index]))

    def size(self, index: int) -> int:
        return self.reader.size(int(self.rows[index]))

    @cached_property
    def in_memory(self) -> bool:
        return isinstance(self.reader, ArrayReader)

    @property
    def remote(self) -> bool:
        """Whether reading means fetching, at least the first time."""
        return isinstance(self.reader, ShardedReader) and self.reader.remote

    def shards(self) -> np.ndarray | None:
        """A number for each sample, equal for those that lie in one shard; None where there are no shards."""
        return self.reader.shards(self.rows) if isinstance(self.reader, ShardedReader) else None

    def prepare(self, indices: np.ndarray) -> None:
        """Say which samples are wanted soon, so that they can be fetched in time."""
        if isinstance(self.reader, ShardedReader):
            self.reader.prepare(self.rows[indices])

    def subset(self, indices: Sequence[int] | np.ndarray, name: str = "") -> "Split":
        """The samples at these indices, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        places: list[int] = chosen.tolist()
        ids = [self.ids[place] for place in places]
        return Split(
            name or self.name,
            ids,
            self.targets[chosen],
            self.reader,
            self.rows[chosen],
            self.task,
        )

    def without(self, ids: Sequence[str]) -> "Split":
        """The samples that have none of these ids."""
        left_out = set(ids)
        return self.subset([index for index, name in enumerate(self.ids) if name not in left_out])

    @staticmethod
    def of(
        name: str, ids: Sequence[str], labels: Sequence[int] | np.ndarray, reader: Reader, start: int = 0
    ) -> "Split":
        """A split of labelled samples, which are the reader's rows from `start` on."""
        rows = np.arange(start, start + len(ids), dtype=np.int64)
        return Split(name, ids, np.asarray(labels, dtype=np.int64), reader, rows)

    @staticmethod
    def unlabelled(name: str, ids: Sequence[str], reader: Reader) -> "Split":
        """Makes a split of samples without targets, which are the reader's rows from the first on."""
        return Split(name, ids, task(DEFAULT).target.unknown(len(ids)), reader, np.arange(len(ids), dtype=np.int64))

    @staticmethod
    def of_array(name: str, images: np.ndarray, labels: Sequence[int] | np.ndarray) -> "Split":
        """A split of pixels in memory, uint8 [samples, rows, columns] or [samples, rows, columns, channels]."""
        pixels = images[..., None] if images.ndim == 3 else images
        assert pixels.dtype == np.uint8
        ids = [f"{name}/{index:06d}" for index in range(len(images))]
        return Split.of(name, ids, labels, ArrayReader(pixels))


@dataclass(frozen=True)
class Source:
    """Where samples come from: splits by name (train, val, test), all of one task."""

    name: str
    classes: tuple[str, ...]
    """The names of what is answered, in order: classes, or whatever else the task has names for; none where no sample
    has a target."""
    splits: dict[str, Split]
    made_splits: tuple[str, ...] = ()
    """Which splits are ours, cut by seed, rather than the data set's own."""
    notes: tuple[str, ...] = ()
    """What the person should know about how the source was read."""

    @property
    def task(self) -> str:
        """What its targets answer."""
        return next(iter(self.splits.values())).task

    def split(self, name: str) -> Split:
        """A split by name; `all` is every sample of every split, in order of id."""
        if name == "all":
            return self.all
        if name not in self.splits:
            raise UserError(f"{self.name} has no split {name!r}; there are {', '.join([*self.splits, 'all'])}")
        return self.splits[name]

    def check_labelled(self, part: str | None = None) -> None:
        """Refuses, with a UserError that says what can be done, data of which no sample has a target.

        Args:
            part: The split that has to have some; None: any of them.
        """
        if part is not None:
            self.check_labelled()  # where no sample has one, it is not a matter of the split
        splits = list(self.splits.values()) if part is None else [self.split(part)]
        if any(split.known.any() for split in splits):
            return
        where, count = self.name if part is None else f"{self.name}, {part}", sum(map(len, splits))
        raise UserError(
            f"{where}: none of its {count:,} images has a label, which is needed here. Give class folders: the images "
            "of each class in a folder of its own. Or pre-train on them without labels: "
            f"vitrail train {PRETRAINING} --data {shlex.quote(self.name)}"
        )

    def with_classes(self, names: Sequence[str]) -> "Source":
        """The same samples with the same classes, listed in another order."""
        assert sorted(names) == sorted(self.classes)
        number = {name: place for place, name in enumerate(names)}
        places = np.array([number[name] for name in self.classes], dtype=np.int64)
        moved = task(self.task).target.reordered
        splits = {key: replace(split, targets=moved(split.targets, places)) for key, split in self.splits.items()}
        return replace(self, classes=tuple(names), splits=splits)

    @cached_property
    def all(self) -> Split:
        parts = list(self.splits.values())
        ids = [name for part in parts for name in part.ids]
        order = sorted(range(len(ids)), key=ids.__getitem__)
        targets = np.concatenate([part.targets for part in parts])[order]
        members = np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)])[order]
        rows = np.concatenate([part.rows for part in parts])[order]
        readers = [part.reader for part in parts]
        ids = [ids[index] for index in order]
        if all(reader is readers[0] for reader in readers):
            return Split("all", ids, targets, readers[0], rows, self.task)
        reader = JoinedReader(tuple(readers), members, rows)
        return Split("all", ids, targets, reader, np.arange(len(ids)), self.task)

    def fingerprint(self) -> str:
        """SHA-256 over the ids, targets by name and sizes of all samples, whatever their order or split."""
        digest = hashlib.sha256()
        for line in sorted(self._lines()):
            digest.update(line)
        return digest.hexdigest()

    def _lines(self) -> list[bytes]:
        lines, text = [], task(self.task).target.text
        for split in self.splits.values():
            for index, name in enumerate(split.ids):
                named = text(split.targets[index], self.classes)
                lines.append(f"{name}\0{named}\0{split.size(index)}\n".encode("utf-8", "surrogateescape"))
        return lines


@dataclass(frozen=True)
class JoinedReader:
    """Several readers as one."""

    readers: tuple[Reader, ...]
    members: np.ndarray  # [samples]: which reader
    rows: np.ndarray  # [samples]: which of its rows

    def read(self, row: int) -> Content:
        return self.readers[self.members[row]].read(int(self.rows[row]))

    def size(self, row: int) -> int:
        return self.readers[self.members[row]].size(int(self.rows[row]))


@dataclass(frozen=True)
class SplitRule:
    """How to make the splits that a source does not have."""

    seed: int = 0
    val_fraction: float = 0.1
    test_fraction: float = 0.1


class SourceKind(ABC):
    """A format of files or folders; `SOURCE_KINDS` of `vitrail.data.sources` lists those there are."""

    words: ClassVar[str]
    """What a person gives: "a folder of idx files"."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Tells whether a file or folder that exists is of this kind, by a glance."""

    @abstractmethod
    def open(self, path: Path, rule: SplitRule, asked: str | None) -> Source:
        """Opens it. rule: how to cut splits that it does not have. asked: the task that the person named, if any."""


def finish(
    name: str, classes: Sequence[str], found: dict[str, Split], rule: SplitRule, notes: Sequence[str] = ()
) -> Source:
    """A Source from the splits a format found; what is missing is cut from the rest, stratified and seeded.

    `found` has either named splits, or a single one named "" for a data set that has none. Where no sample has a target
    the source has no classes either, whatever names the format lists.
    """
    if not any(len(split) for split in found.values()):
        raise UserError(f"{name}: there are no images")
    asked = next(iter(found.values())).task
    known, count = sum(int(split.known.sum()) for split in found.values()), sum(map(len, found.values()))
    if known:
        task(asked).target.check_names(name, classes)
    else:
        classes = ()
    notes = (*notes, *_label_notes(known, count), *namesake_notes(classes))
    # A data set that is all "train" has not set anything aside either.
    if set(found) in ({""}, {"train"}):
        (whole,) = found.values()
        parts = _cut(whole, {"test": rule.test_fraction, "val": rule.val_fraction}, rule.seed)
        return Source(name, tuple(classes), parts, made_splits=tuple(parts), notes=notes)
    splits = {key: found[key] for key in ("train", "val", "test") if key in found and len(found[key])}
    made: tuple[str, ...] = ()
    if "train" in splits and "val" not in splits and rule.val_fraction:
        parts = _cut(splits["train"], {"val": rule.val_fraction}, rule.seed)
        made = tuple(key for key in ("val",) if key in parts)
        splits = {**parts, **{key: split for key, split in splits.items() if key != "train"}}
    return Source(name, tuple(classes), splits, made_splits=made, notes=notes)


def _label_notes(known: int, count: int) -> list[str]:
    """Says how many of the images have no label, if any."""
    if known == count:
        return []
    return [f"{count - known:,} of {count:,} images have no label" if known else f"{count:,} images without labels"]


def _cut(whole: Split, fractions: dict[str, float], seed: int) -> dict[str, Split]:
    parts = stratified_split(whole.ids, whole.strata, fractions, seed)
    return {key: whole.subset(parts[key], key) for key in ("train", "val", "test") if len(parts.get(key, ()))}
