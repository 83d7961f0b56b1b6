"""The interface of every source: named splits of samples, with random access to each sample by its index.

A format only has to provide the ids and targets of its samples and a `Reader` for their content. Everything else
(splitting, fingerprints, lookup) is done here for all formats.
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

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.sources.classes import namesake_notes
from vitrail.data.sources.splits import stratified_split
from vitrail.errors import UserError
from vitrail.tasks import DEFAULT, task
from vitrail.tasks.classification.target import UNLABELLED

__all__ = [
    "MAX_SAMPLE_BYTES",
    "PRETRAINING",
    "UNLABELLED",
    "AnnotatedReader",
    "ArrayReader",
    "Content",
    "JoinedReader",
    "OpenOptions",
    "Reader",
    "Sample",
    "ShardedReader",
    "Source",
    "SourceKind",
    "Split",
    "SplitRule",
    "build_source",
]

MAX_SAMPLE_BYTES = 1 << 30
"""The largest encoded image that is read, in bytes; a larger file cannot be one image."""

PRETRAINING = "mae-small"
"""The recipe for pre-training that messages suggest for images without labels."""

Content = bytes | np.ndarray
"""The content of a sample: an encoded image, or pixels as uint8 [rows, columns, channels]."""


class Reader(Protocol):
    """Reads the content of samples by their row. It can be called from several threads and is cheap to pickle."""

    def read(self, row: int) -> Content:
        """Reads the content of the sample in a row. Raises BadImage if it cannot be read."""
        ...

    def size(self, row: int) -> int:
        """Returns the size of a sample's content in bytes, as well as the format knows it without reading the content.

        It is part of the source's fingerprint.
        """
        ...


@runtime_checkable
class ShardedReader(Reader, Protocol):
    """A reader for files of many samples each (shards), which are best read one file after the other."""

    @property
    def remote(self) -> bool:
        """Tells whether the files must be downloaded."""
        ...

    def shards(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of the shard, or of the part of a file, that each of these rows is in."""
        ...

    def prepare(self, rows: np.ndarray) -> None:
        """Begins to download the files of these rows in the background, since they will be read soon."""
        ...


@runtime_checkable
class AnnotatedReader(Reader, Protocol):
    """A reader of samples whose right answers lie in the pixels of their pictures, such as masks or boxes."""

    def annotation(self, row: int) -> np.ndarray:
        """Reads the right answer of the sample in a row, in the form of its task and in the picture's own pixels.

        Raises BadImage if it cannot be read.
        """
        ...


@dataclass(frozen=True)
class ArrayReader(Reader):
    """Reads samples from memory."""

    array: np.ndarray
    """The pixels, uint8 [samples, rows, columns, channels]."""

    def read(self, row: int) -> np.ndarray:
        """Returns the pixels of a sample, uint8 [rows, columns, channels]."""
        return self.array[row]

    def size(self, row: int) -> int:
        """Returns the size of the pixels of a sample in bytes."""
        return int(self.array[row].nbytes)


@dataclass(frozen=True)
class Sample:
    """One image with its target and its stable id."""

    id: str
    target: np.ndarray | None
    """The target in the form of its task; None if the sample has none."""
    read: Callable[[], Content]
    """Reads the content."""


@dataclass(frozen=True)
class Split:
    """Samples of a source in a fixed order, such as those for training."""

    name: str
    ids: Sequence[str]
    targets: np.ndarray
    """[samples, ...] in the form of the task; for classification int64 [samples]."""
    reader: Reader = field(repr=False)
    rows: np.ndarray
    """The row by which the reader knows each sample, int64 [samples]."""
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
        """Tells which samples have a target, bool [samples]."""
        return task(self.task).target.known(self.targets)

    @property
    def labels(self) -> np.ndarray:
        """Returns the class of each sample, int64 [samples], -1 for none. Raises UserError if the task is one whose
        samples have no single class."""
        return task(self.task).target.labels(self.targets)

    @property
    def strata(self) -> np.ndarray:
        """Returns a group for each sample, int64 [samples], such as its class; splitting keeps their proportions."""
        return task(self.task).target.strata(self.targets)

    def read(self, index: int) -> Content:
        """Reads the content of the sample at `index`. Raises BadImage if it cannot be read."""
        return self.reader.read(int(self.rows[index]))

    def annotation(self, index: int) -> np.ndarray | None:
        """Reads the right answer of the sample at `index` in the picture's own pixels, such as its mask; None if it has
        none.

        Only splits of a task whose answers lie in pixels have such answers. Raises BadImage if it cannot be read.
        """
        if not self.known[index]:
            return None
        assert isinstance(self.reader, AnnotatedReader)
        return self.reader.annotation(int(self.rows[index]))

    def size(self, index: int) -> int:
        """Returns the size of the content of the sample at `index` in bytes, as `Reader.size`."""
        return self.reader.size(int(self.rows[index]))

    @cached_property
    def in_memory(self) -> bool:
        """Tells whether the pixels are in memory already."""
        return isinstance(self.reader, ArrayReader)

    @property
    def remote(self) -> bool:
        """Tells whether samples must be downloaded, at least the first time."""
        return isinstance(self.reader, ShardedReader) and self.reader.remote

    def shards(self) -> np.ndarray | None:
        """Returns the number of the shard that each sample is in, integers [samples]; None if there are no shards."""
        return self.reader.shards(self.rows) if isinstance(self.reader, ShardedReader) else None

    def prepare(self, indices: np.ndarray) -> None:
        """Begins to download the samples at `indices` in the background, if they are remote: they will be read soon."""
        if isinstance(self.reader, ShardedReader):
            self.reader.prepare(self.rows[indices])

    def subset(self, indices: Sequence[int] | np.ndarray, name: str = "") -> "Split":
        """Returns the samples at these indices in this order, under another name if one is given."""
        chosen = np.asarray(indices, dtype=np.int64)
        positions: list[int] = chosen.tolist()
        ids = [self.ids[position] for position in positions]
        return Split(
            name or self.name,
            ids,
            self.targets[chosen],
            self.reader,
            self.rows[chosen],
            self.task,
        )

    def without(self, ids: Sequence[str]) -> "Split":
        """Returns the samples whose id is not one of `ids`."""
        left_out = set(ids)
        return self.subset([index for index, name in enumerate(self.ids) if name not in left_out])

    @staticmethod
    def of(
        name: str, ids: Sequence[str], labels: Sequence[int] | np.ndarray, reader: Reader, start: int = 0
    ) -> "Split":
        """Makes a split for classification; its samples are the reader's rows from `start` on.

        name: "train", "val" or "test". ids: the stable id of each sample. labels: its class, -1 for none.
        """
        rows = np.arange(start, start + len(ids), dtype=np.int64)
        return Split(name, ids, np.asarray(labels, dtype=np.int64), reader, rows)

    @staticmethod
    def unlabelled(name: str, ids: Sequence[str], reader: Reader) -> "Split":
        """Makes a split called `name` of samples without targets, which are the reader's rows from the first on; `ids`
        has the stable id of each."""
        return Split(name, ids, task(DEFAULT).target.unknown(len(ids)), reader, np.arange(len(ids), dtype=np.int64))

    @staticmethod
    def of_array(name: str, images: np.ndarray, labels: Sequence[int] | np.ndarray) -> "Split":
        """Makes a split called `name` for classification of pixels in memory; the ids are NAME/000000, NAME/000001 ...

        images: uint8 [samples, rows, columns] or [samples, rows, columns, channels]. labels: the class of each sample,
        -1 for none.
        """
        pixels = images[..., None] if images.ndim == 3 else images
        assert pixels.dtype == np.uint8
        ids = [f"{name}/{index:06d}" for index in range(len(images))]
        return Split.of(name, ids, labels, ArrayReader(pixels))


@dataclass(frozen=True)
class Source:
    """A data set that has been opened."""

    name: str
    """The name or path by which it was opened."""
    classes: tuple[str, ...]
    """The names that the targets refer to, in order: those of classes, labels or, for regression, values. Empty if no
    sample has a target."""
    splits: dict[str, Split]
    """The splits by name: train, val, test. All are for one task."""
    made_splits: tuple[str, ...] = ()
    """The names of the splits that this program made at random, since the data set does not have them itself."""
    notes: tuple[str, ...] = ()
    """Sentences for the user on how the source was read."""

    @property
    def task(self) -> str:
        """Returns the name of the task that its targets are for."""
        return next(iter(self.splits.values())).task

    def split(self, name: str) -> Split:
        """Returns a split by name; `all` has every sample of every split, sorted by id. Raises UserError if there is no
        such split."""
        if name == "all":
            return self.all
        if name not in self.splits:
            raise UserError(f"{self.name} has no split {name!r}; there are {', '.join([*self.splits, 'all'])}")
        return self.splits[name]

    def check_labelled(self, part: str | None = None) -> None:
        """Raises UserError, with a remedy, if no sample has a target.

        Args:
            part: The split of which a sample must have one; None for any split.
        """
        if part is not None:
            self.check_labelled()  # if no sample of any split has a target, the message should not blame this split
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
        """Returns the same samples with the same classes in the order of `names`; the targets are renumbered."""
        assert sorted(names) == sorted(self.classes)
        number = {name: index for index, name in enumerate(names)}
        numbers = np.array([number[name] for name in self.classes], dtype=np.int64)
        target = task(self.task).target
        splits = {}
        for key, part in self.splits.items():
            reader = RenumberedReader(part.reader, self.task, numbers) if target.in_pixels else part.reader
            splits[key] = replace(part, targets=target.reordered(part.targets, numbers), reader=reader)
        return replace(self, classes=tuple(names), splits=splits)

    @cached_property
    def all(self) -> Split:
        """Returns every sample of every split, sorted by id."""
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
        """Computes a SHA-256 over the ids, the targets by name and the sizes of all samples.

        It does not depend on the order of the samples or on the splits.
        """
        digest = hashlib.sha256()
        for line in sorted(self._lines()):
            digest.update(line)
        return digest.hexdigest()

    def _lines(self) -> list[bytes]:
        """Returns one line for each sample, with its id, target and size."""
        lines, text = [], task(self.task).target.text
        for split in self.splits.values():
            for index, name in enumerate(split.ids):
                named = text(split.targets[index], self.classes)
                lines.append(f"{name}\0{named}\0{split.size(index)}\n".encode("utf-8", "surrogateescape"))
        return lines


@dataclass(frozen=True)
class JoinedReader(Reader):
    """Reads samples that belong to several readers."""

    readers: tuple[Reader, ...]
    members: np.ndarray
    """The number of each sample's reader, integers [samples]."""
    rows: np.ndarray
    """The row of each sample in its reader, integers [samples]."""

    def read(self, row: int) -> Content:
        return self.readers[self.members[row]].read(int(self.rows[row]))

    def size(self, row: int) -> int:
        return self.readers[self.members[row]].size(int(self.rows[row]))

    def annotation(self, row: int) -> np.ndarray:
        """Reads the right answer of the sample in a row, which lies in pixels."""
        reader = self.readers[self.members[row]]
        assert isinstance(reader, AnnotatedReader)
        return reader.annotation(int(self.rows[row]))


@dataclass(frozen=True)
class RenumberedReader(AnnotatedReader):
    """Reads samples whose right answers lie in pixels, with their classes in another order."""

    reader: Reader
    task: str
    places: np.ndarray
    """The new number of each class, int64 [classes]."""

    def read(self, row: int) -> Content:
        return self.reader.read(row)

    def size(self, row: int) -> int:
        return self.reader.size(row)

    def annotation(self, row: int) -> np.ndarray:
        assert isinstance(self.reader, AnnotatedReader)
        return task(self.task).target.renumbered(self.reader.annotation(row), self.places)


@dataclass(frozen=True)
class SplitRule:
    """The rule by which the splits that a source does not have are made: the seed, and the fractions of all samples."""

    seed: int = 0
    val_fraction: float = 0.1
    test_fraction: float = 0.1


@dataclass(frozen=True)
class OpenOptions:
    """Says what the user asks of a source besides its splits."""

    task: str | None = None
    """The task that it is for, if its data could be for several; None to take the task they show."""
    ignore: tuple[int, ...] = ()
    """The ids in masks that are neither learned nor measured."""
    max_pixels: int = MAX_PIXELS
    """The largest mask that is decoded, in pixels."""


class SourceKind(ABC):
    """A format of files or folders. `SOURCE_KINDS` in `vitrail.data.sources` lists all of them."""

    words: ClassVar[str]
    """The words for such a source in messages: "a folder of idx files"."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Tells whether `path`, which exists, is a file or folder of this format, without reading much of it."""

    @abstractmethod
    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        """Opens a source.

        Args:
            path: The file or folder.
            rule: How to make the splits that it does not have.
            asked: What the user asked of it besides.

        Raises:
            UserError: If it cannot be read.
        """


def build_source(
    name: str, classes: Sequence[str], found: dict[str, Split], rule: SplitRule, notes: Sequence[str] = ()
) -> Source:
    """Builds a Source of the splits that a format found, and makes the missing ones.

    A missing `val` is taken from `train`, and `val` and `test` from a data set that has no splits or only `train`: at
    random by the seed, with every class in its proportion.

    Args:
        name: The name of the source.
        classes: The names of its classes. If no sample has a target, the source has no classes whatever these are.
        found: The splits by name, or a single one named "" if the data set has no splits.
        rule: The seed and the fractions.
        notes: Sentences for the user.

    Raises:
        UserError: If there are no samples, or the names of the classes are not valid for the task.
    """
    if not any(len(split) for split in found.values()):
        raise UserError(f"{name}: there are no images")
    own_task = next(iter(found.values())).task
    known, count = sum(int(split.known.sum()) for split in found.values()), sum(map(len, found.values()))
    if known:
        task(own_task).target.check_names(name, classes)
    else:
        classes = ()
    notes = (*notes, *_label_notes(known, count), *namesake_notes(classes))
    # A data set with "train" only has no test split either, so it is treated like one without splits.
    if set(found) in ({""}, {"train"}):
        (only,) = found.values()
        parts = _cut(only, {"test": rule.test_fraction, "val": rule.val_fraction}, rule.seed)
        return Source(name, tuple(classes), parts, made_splits=tuple(parts), notes=notes)
    splits = {key: found[key] for key in ("train", "val", "test") if key in found and len(found[key])}
    made: tuple[str, ...] = ()
    if "train" in splits and "val" not in splits and rule.val_fraction:
        parts = _cut(splits["train"], {"val": rule.val_fraction}, rule.seed)
        made = tuple(key for key in ("val",) if key in parts)
        splits = {**parts, **{key: split for key, split in splits.items() if key != "train"}}
    return Source(name, tuple(classes), splits, made_splits=made, notes=notes)


def _label_notes(known: int, count: int) -> list[str]:
    """Returns a note on how many of the images have no label; [] if all have one."""
    if known == count:
        return []
    return [f"{count - known:,} of {count:,} images have no label" if known else f"{count:,} images without labels"]


def _cut(split: Split, fractions: dict[str, float], seed: int) -> dict[str, Split]:
    """Divides a split into `train` and the named fractions; empty parts are left out."""
    parts = stratified_split(split.ids, split.strata, fractions, seed)
    return {key: split.subset(parts[key], key) for key in ("train", "val", "test") if len(parts.get(key, ()))}
