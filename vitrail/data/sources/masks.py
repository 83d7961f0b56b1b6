"""Folders of images with masks: the class of each pixel, in a picture of its own with the name of the image."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import MAX_PIXELS
from vitrail.data.sources.base import AnnotatedReader, OpenOptions, Source, SourceKind, Split, SplitRule, build_source
from vitrail.data.sources.folder import FilesReader
from vitrail.data.sources.layout import top_of_classes
from vitrail.data.sources.mask_classes import NAMES, MaskClasses, found_classes, read_classes
from vitrail.data.sources.mask_layout import MaskFolders, are_masks, mask_folders
from vitrail.data.sources.mask_pairs import MaskPairs, by_lists, pair_notes, pairs_in, split_lists
from vitrail.data.sources.mask_reading import MASK_TASK, NoMaskFile, annotation_of
from vitrail.data.sources.mask_scan import check_ids, scan_ids, scan_notes


@dataclass(frozen=True)
class MaskFilesReader(AnnotatedReader):
    """Reads samples that are a picture file and a mask file each."""

    root: Path
    names: tuple[str, ...]
    """The path of each picture, relative to `root`."""
    masks: tuple[str, ...]
    """The path of each mask, relative to `root`; "" for a picture without one."""
    classes: MaskClasses
    max_pixels: int = MAX_PIXELS
    """The largest mask that is decoded, in pixels."""
    unpaired: tuple[str, ...] = ()
    """The masks without a picture, as paths below `root`."""
    doubled: tuple[str, ...] = ()
    """The masks that are not used, since their picture has another one."""

    def read(self, row: int) -> bytes:
        return FilesReader(self.root, self.names).read(row)

    def size(self, row: int) -> int:
        """Returns the size of the picture and its mask."""
        sizes = [FilesReader(self.root, names).size(row) for names in (self.names, self.masks) if names[row]]
        return sum(sizes)

    @property
    def unused(self) -> dict[str, tuple[str, ...]]:
        """Returns the masks that belong to no sample, by the kind of fault."""
        return {"picture_missing": self.unpaired, "several_masks": self.doubled}

    def mask_name(self, row: int) -> str:
        """Returns the path of the mask of a row, relative to `root`."""
        return self.masks[row]

    def mask(self, row: int) -> bytes:
        """Reads the encoded mask of a row. Raises BadImage if it cannot be read, NoMaskFile if it is not there."""
        if not (self.root / self.masks[row]).exists():
            raise NoMaskFile("does not exist")
        return FilesReader(self.root, self.masks).read(row)

    def annotation(self, row: int) -> np.ndarray:
        return annotation_of(self, row, self.max_pixels)


class MaskFolder(SourceKind):
    """A folder of images with masks."""

    words = "a folder of images with masks"

    def recognises(self, path: Path) -> bool:
        if not path.is_dir():
            return False
        pairs = mask_folders(top_of_classes(path, []))
        return any(map(are_masks, pairs))

    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        return open_masks(path, rule, asked)


def open_masks(root: Path, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens a folder of images with masks; the id of a sample is the path of its picture below the root.

    Raises UserError if a list of a split or the file of classes cannot be read, or nothing says what the classes are.
    """
    notes: list[str] = []
    top = top_of_classes(root, notes)
    folders = mask_folders(top)
    pairs = pairs_in(root, folders)
    lists = split_lists(top, folders[0].masks) if len(folders) == 1 and not folders[0].split else {}
    if lists:
        pairs = by_lists(root, folders[0], pairs, lists, notes)
    classes = _classes(root, top, folders, pairs, asked, notes)
    reader = MaskFilesReader(root, pairs.names, pairs.masks, classes, asked.max_pixels, pairs.unpaired, pairs.doubled)
    found = {}
    for split in dict.fromkeys(pairs.splits):
        rows = np.array([row for row, name in enumerate(pairs.splits) if name == split], dtype=np.int64)
        targets = np.array([bool(pairs.masks[row]) for row in rows], dtype=np.int8)
        found[split] = Split(split, [pairs.names[row] for row in rows], targets, reader, rows, MASK_TASK)
    where = ", ".join(each.masks.relative_to(root).as_posix() for each in folders)
    source = ", ".join(classes.names[:5]) + (" ..." if len(classes.names) > 5 else "")
    named = f"named by {classes.file}" if classes.file else f"the ids found in them; a {NAMES[0]} would name them"
    notes.insert(0, f"{root}: masks in {where}; their {len(classes.names)} classes ({source}) are {named}")
    return build_source(str(root), classes.names, found, rule, [*notes, *pair_notes(pairs)])


def _classes(
    root: Path, top: Path, folders: Sequence[MaskFolders], pairs: MaskPairs, asked: OpenOptions, notes: list[str]
) -> MaskClasses:
    """Reads the classes from a file in the root or beside the masks, or finds the ids in the masks."""
    places = dict.fromkeys([top, root, *(place for each in folders for place in (each.masks, each.masks.parent))])
    for place in places:
        for name in NAMES:
            if (place / name).is_file():
                return read_classes(place / name, asked.ignore)
    rows = [row for row, mask in enumerate(pairs.masks) if mask]
    bare = MaskFilesReader(root, pairs.names, pairs.masks, MaskClasses((), ()))
    found = scan_ids(bare.mask, rows, _states(root, pairs.masks), asked.max_pixels)
    check_ids(str(root), found, len(rows))
    notes += scan_notes(found, len(rows))
    return found_classes(str(root), found.ids, asked.ignore)


def _states(root: Path, masks: Sequence[str]) -> str:
    """Returns a text that changes when one of some files does."""
    lines = [os.path.abspath(root)]  # noqa: PTH100
    for name in masks:
        try:
            state = (root / name).stat()
            lines.append(f"{name} {state.st_size} {state.st_mtime_ns}")
        except OSError:
            lines.append(name)
    return "\n".join(lines)
