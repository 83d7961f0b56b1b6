"""Pictures and masks that two readers read, in shards, parquet files or data sets of Hugging Face."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.sources.base import (
    AnnotatedReader,
    Content,
    OpenOptions,
    Reader,
    ShardedReader,
    Source,
    Split,
    SplitRule,
    build_source,
)
from vitrail.data.sources.mask_classes import NAMES, MaskClasses, found_classes, listed_classes, read_classes
from vitrail.data.sources.mask_reading import NoMaskFile, annotation_of
from vitrail.data.sources.mask_scan import check_ids, scan_ids, scan_notes
from vitrail.data.sources.storage.folders import StorageFolder


@dataclass(frozen=True)
class PairedReader(AnnotatedReader):
    """Reads pictures by one reader and their masks by another, which know a sample by the same row."""

    pictures: Reader
    masks: Reader
    present: np.ndarray
    """Which samples have a mask, bool [samples]."""
    ending: str
    """What messages call the mask of a sample: this, after its row."""
    classes: MaskClasses = field(default_factory=lambda: MaskClasses((), ()))
    max_pixels: int = MAX_PIXELS
    """The largest mask that is decoded, in pixels."""
    sizes: np.ndarray | None = None
    """The size that is stated for each sample, int64 [samples]; None to take that of its picture and its mask."""

    def read(self, row: int) -> Content:
        return self.pictures.read(row)

    def size(self, row: int) -> int:
        if self.sizes is not None:
            return int(self.sizes[row])
        return self.pictures.size(row) + (self.masks.size(row) if self.present[row] else 0)

    @property
    def unused(self) -> Mapping[str, Sequence[str]]:
        """Returns the masks that belong to no sample: here there are none."""
        return {}

    def mask_name(self, row: int) -> str:
        """Returns what messages call the mask of a row."""
        return f"{self.ending} {row}"

    def mask(self, row: int) -> bytes | np.ndarray:
        """Reads the encoded mask of a row. Raises BadImage if it cannot be read, NoMaskFile if it is not there."""
        if not self.present[row]:
            raise NoMaskFile("does not exist")
        return self.masks.read(row)

    def annotation(self, row: int) -> np.ndarray:
        return annotation_of(self, row, self.max_pixels)


@dataclass(frozen=True)
class ShardedPairedReader(PairedReader, ShardedReader):
    """Reads pictures and masks that lie in the same shards."""

    pictures: ShardedReader

    @property
    def remote(self) -> bool:
        return self.pictures.remote

    def shards(self, rows: np.ndarray) -> np.ndarray:
        return self.pictures.shards(rows)

    def prepare(self, rows: np.ndarray) -> None:
        self.pictures.prepare(rows)


@dataclass(frozen=True)
class MaskOrigin:
    """Tells where a source of pictures with masks comes from, and what is known of its classes."""

    rule: SplitRule
    asked: OpenOptions
    known: MaskClasses | None
    """The classes, if something names them; None to find the ids in the masks."""
    states: str = ""
    """A text that changes when a mask does, by which the ids found are kept; "" to keep nothing."""
    notes: Sequence[str] = ()


def masked_source(name: str, found: Mapping[str, Split], origin: MaskOrigin) -> Source:
    """Builds a source of splits whose readers are `PairedReader` without classes, which are found first.

    Args:
        name: The name of the source.
        found: The splits by name.
        origin: Where it comes from.

    Raises:
        UserError: If no mask has ids, or there are too many of them.
    """
    notes: list[str] = []
    known, asked = origin.known, origin.asked
    readers = {key: split.reader for key, split in found.items() if isinstance(split.reader, PairedReader)}
    if known is None:
        places = [(reader, row) for reader in readers.values() for row in np.flatnonzero(reader.present).tolist()]
        ids = scan_ids(_reading(places), range(len(places)), origin.states, asked.max_pixels)
        check_ids(name, ids, len(places))
        notes += scan_notes(ids, len(places))
        known = found_classes(name, ids.ids, asked.ignore)
    named = f"named by {known.file}" if known.file else f"the ids found in them; a {NAMES[0]} beside them names them"
    listed = ", ".join(known.names[:5]) + (" ..." if len(known.names) > 5 else "")
    notes.insert(0, f"{name}: pictures with masks; their {len(known.names)} classes ({listed}) are {named}")
    given = {
        key: replace(split, reader=replace(readers[key], classes=known, max_pixels=asked.max_pixels))
        for key, split in found.items()
    }
    return build_source(name, known.names, given, origin.rule, [*notes, *origin.notes])


def _reading(places: Sequence[tuple[PairedReader, int]]) -> Callable[[int], bytes | np.ndarray]:
    """Returns a function that reads the mask at a place in the list."""

    def read(number: int) -> bytes | np.ndarray:
        reader, row = places[number]
        return reader.mask(row)

    return read


def classes_in(place: StorageFolder, ignore: Sequence[int]) -> MaskClasses | None:
    """Reads the classes of masks from a file in a folder, which may be remote; None if there is none.

    Raises UserError if it cannot be read.
    """
    for name in reversed(NAMES):  # classes.csv says more, where `vitrail data shard` has written both
        file = place.small(name)
        if file is not None:
            return replace(read_classes(file, ignore), file=name)
    return None


def classes_by_index(names: Sequence[str], file: str, ignore: Sequence[int]) -> MaskClasses:
    """Makes the classes of masks whose ids are places in a list of names. file: what lists them."""
    return listed_classes(dict(enumerate(names)), file, ignore)
