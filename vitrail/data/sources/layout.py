"""Tells how a folder of pictures is laid out: where its classes begin, and which folders are splits."""

import os
from pathlib import Path

from vitrail.data.decode import EXTENSIONS
from vitrail.data.sources.listing import visible_folders
from vitrail.data.sources.splits import SPLIT_NAMES, split_named
from vitrail.errors import UserError

_PICTURES = frozenset(("images", "image", "imgs", "img", "jpegimages"))
_MARKS = frozenset(
    (
        *("annotations", "annotation", "labels", "label", "masks", "mask", "boxes", "bboxes", "xmls", "xml", "gt"),
        *("groundtruth", "ground_truth", "segmentationclass", "segmentationobject", "trimaps"),
    )
)
_DEPTH = 3
"""So many folders of one folder each are passed; a link can lead back to where it lies."""


def top_of_classes(folder: Path, notes: list[str]) -> Path:
    """Gives the folder that holds the classes or splits: this one, or the only one in it, as archives unpack.

    Args:
        folder: Where to begin.
        notes: Gets a sentence where another folder than this one is taken.
    """
    found = folder
    for _ in range(_DEPTH):
        inside = visible_folders(found)
        if len(inside) != 1 or inside[0].name.lower() in SPLIT_NAMES or not _holds_folders_only(inside[0]):
            break
        found = inside[0]
    if found != folder:
        notes.append(f"{folder} holds one folder only: the folders in {found} are taken")
    return found


def split_folders(root: Path, notes: list[str]) -> dict[Path, str]:
    """Gives the split (train, val, test) of each folder in `root`; nothing where these folders are classes.

    Args:
        root: The folder that holds classes or splits.
        notes: Gets a sentence where a name only contains that of a split, as seg_train does.
    """
    tops = visible_folders(root)
    refuse_marks(root, tops)
    named = {folder: SPLIT_NAMES[folder.name.lower()] for folder in tops if folder.name.lower() in SPLIT_NAMES}
    if len(named) < len(tops) and not any(map(visible_folders, named)):
        named = {}  # a train among cars and ships is a class
    if not named:
        named = _named_in_part(tops)
        if named:
            told = ", ".join(f"{folder.name} as {split}" for folder, split in named.items())
            notes.append(f"split folders, by the words in their names: {told}")
    if len(set(named.values())) < len(named):
        raise UserError(f"{root} has several folders for the same split: {', '.join(each.name for each in named)}")
    others = [folder.name for folder in tops if folder not in named]
    if named and others:
        splits = ", ".join(folder.name for folder in named)
        raise UserError(f"{root} has split folders ({splits}) and also {others[0]!r}: move it away")
    return named


def refuse_marks(root: Path, folders: list[Path]) -> None:
    """Refuses pictures beside masks or boxes, which would be taken for two classes."""
    by_name = {folder.name.lower(): folder.name for folder in folders}
    pictures, marks = sorted(_PICTURES & set(by_name)), sorted(_MARKS & set(by_name))
    if pictures and marks:
        raise UserError(
            f"{root} has {by_name[pictures[0]]}/ beside {by_name[marks[0]]}/: pictures and what is marked in them "
            "(masks or boxes), not classes. To tell classes apart, put the pictures of each into a folder of its own"
        )


def _named_in_part(folders: list[Path]) -> dict[Path, str]:
    """seg_train and seg_test: folders of class folders, one of them for training, the words of whose names tell a
    split. Classes, such as train_station, hold pictures."""
    named = {folder: split for folder in folders if (split := split_named(folder.name))}
    splits = set(named.values())
    right = "train" in splits and len(splits) > 1 and all(map(_holds_folders_only, named))
    return named if right else {}


def _holds_folders_only(folder: Path) -> bool:
    """Whether there are folders in a folder, and no picture beside them."""
    folders = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders = True
                elif Path(entry.name).suffix.lower() in EXTENSIONS:
                    return False
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from error
    return folders
