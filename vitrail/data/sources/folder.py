"""A folder of class folders, with or without train, val and test above them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import EXTENSIONS, BadImage
from vitrail.data.sources.base import MAX_SAMPLE_BYTES, UNLABELLED, Source, Split, SplitRule, finish
from vitrail.data.sources.listing import visible_folders, walk
from vitrail.data.sources.splits import SPLIT_NAMES
from vitrail.errors import UserError


@dataclass(frozen=True)
class FilesReader:
    """One file a sample, named relative to the root."""

    root: Path
    names: tuple[str, ...]

    def read(self, row: int) -> bytes:
        try:
            with (self.root / self.names[row]).open("rb") as stream:
                content = stream.read(MAX_SAMPLE_BYTES + 1)
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror or error}") from error
        if len(content) > MAX_SAMPLE_BYTES:
            raise BadImage(f"is larger than {MAX_SAMPLE_BYTES >> 20} MB")
        return content

    def size(self, row: int) -> int:
        try:
            return (self.root / self.names[row]).stat().st_size
        except OSError:
            return -1  # the same wherever the file cannot be read


def files_split(paths: Sequence[str | Path], name: str = "files") -> Split:
    """Any image files, without labels: what prediction reads. Their ids are the paths as given."""
    names = tuple(str(path) for path in paths)
    return Split.of(name, names, np.full(len(names), UNLABELLED), FilesReader(Path(), names))


def open_folder(root: Path, rule: SplitRule) -> Source:
    """Classes are the folder names, sorted; a sample's id is its path below the root."""
    tops = visible_folders(root)
    split_folders = {folder: SPLIT_NAMES.get(folder.name.lower()) for folder in tops}
    names = [name for name in split_folders.values() if name]
    if len(set(names)) < len(names):
        raise UserError(f"{root} has several folders for the same split: {', '.join(folder.name for folder in tops)}")
    if names and not all(split_folders.values()):
        others = [folder.name for folder, name in split_folders.items() if not name]
        raise UserError(f"{root} has split folders ({', '.join(names)}) and also {others[0]!r}: move it away")
    notes: list[str] = []
    listings = {
        name or "": _list_classes(root, folder, notes)
        for folder, name in (split_folders.items() if names else [(root, None)])
    }
    classes = _agree(root, listings, notes)
    found = {}
    for split, files in listings.items():
        ids = [path for name in classes for path in files.get(name, ())]
        labels = [label for label, name in enumerate(classes) for _ in files.get(name, ())]
        found[split] = Split.of(split, ids, np.array(labels, dtype=np.int64), FilesReader(root, tuple(ids)))
    return finish(str(root), classes, found, rule, notes)


def _list_classes(root: Path, folder: Path, notes: list[str]) -> dict[str, list[str]]:
    """The ids of the images in each class folder."""
    listing: dict[str, list[str]] = {}
    ignored: list[str] = []
    for child in visible_folders(folder):
        listing[child.name] = []
        for file in walk(child):
            path = file.relative_to(root).as_posix()
            if file.suffix.lower() in EXTENSIONS:
                listing[child.name].append(path)
            else:
                ignored.append(path)
    if ignored:
        more = f" and {len(ignored) - 1} more" if len(ignored) > 1 else ""
        notes.append(f"ignored, not named like an image: {ignored[0]}{more}")
    return listing


def _agree(root: Path, listings: dict[str, dict[str, list[str]]], notes: list[str]) -> tuple[str, ...]:
    """One class list for all splits, or a UserError that names the odd one out."""
    leading = "train" if "train" in listings else next(iter(listings))
    classes = tuple(sorted(listings[leading]))
    if not classes:
        raise UserError(f"{root / leading} has no class folders: put the images of each class into a folder of its own")
    for split, files in listings.items():
        where = root / split
        for name in sorted(files):
            if name not in classes:
                raise UserError(f"{where / name}: the class {name!r} is in {split} but not in {leading}")
            if not files[name]:
                raise UserError(f"the class folder {where / name} holds no images: fill it or remove it")
        absent = [name for name in classes if name not in files]
        if absent:
            notes.append(f"{split} has no images of {len(absent)} of {len(classes)} classes, such as {absent[0]!r}")
    return classes
