"""Finding out how a folder of pictures is laid out: where its class folders are, and which folders are splits."""

import os
from pathlib import Path

from vitrail.data.decode import EXTENSIONS
from vitrail.data.sources.listing import visible_folders
from vitrail.data.sources.splits import SPLIT_NAMES, split_named
from vitrail.errors import UserError

PICTURE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages")
"""The names of folders of pictures, in lower case."""
MARKS = (
    *("annotations", "annotation", "labels", "label", "masks", "mask", "boxes", "bboxes", "xmls", "xml", "gt"),
    *("groundtruth", "ground_truth", "segmentationclass", "segmentationobject", "trimaps"),
)
"""The names of folders of what is marked in pictures; beside one of pictures they are not class folders."""
_DEPTH = 3
"""The most levels of folders with a single folder in them that are entered; a link could make them endless."""


def top_of_classes(folder: Path, notes: list[str]) -> Path:
    """Finds the folder that contains the class or split folders: this one, or the only folder in it, since many
    archives unpack to such a folder.

    Args:
        folder: The folder to begin with.
        notes: A note is added if another folder than this one is taken.
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
    """Returns the split (train, val or test) of each folder in `root`, or {} if these folders are classes.

    Args:
        root: The folder that contains class or split folders.
        notes: A note is added if a split is recognised by a part of a name only, such as seg_train.

    Raises:
        UserError: If two folders are for one split, or other folders are beside those of splits.
    """
    tops = visible_folders(root)
    refuse_marks(root, tops)
    named = {folder: SPLIT_NAMES[folder.name.lower()] for folder in tops if folder.name.lower() in SPLIT_NAMES}
    if len(named) < len(tops) and not any(map(visible_folders, named)):
        named = {}  # a folder "train" beside "car" and "ship" is a class
    if not named:
        named = _named_in_part(tops)
        if named:
            listed = ", ".join(f"{folder.name} as {split}" for folder, split in named.items())
            notes.append(f"split folders, by the words in their names: {listed}")
    if len(set(named.values())) < len(named):
        raise UserError(f"{root} has several folders for the same split: {', '.join(folder.name for folder in named)}")
    others = [folder.name for folder in tops if folder not in named]
    if named and others:
        splits = ", ".join(folder.name for folder in named)
        raise UserError(f"{root} has split folders ({splits}) and also {others[0]!r}: move it away")
    return named


def refuse_marks(root: Path, folders: list[Path]) -> None:
    """Raises UserError if a folder of pictures is beside one of annotations: they would be taken for two classes."""
    by_name = {folder.name.lower(): folder.name for folder in folders}
    pictures, marks = sorted(set(PICTURE_FOLDERS) & set(by_name)), sorted(set(MARKS) & set(by_name))
    if pictures and marks:
        raise UserError(
            f"{root} has {by_name[pictures[0]]}/ beside {by_name[marks[0]]}/: pictures and what is marked in them "
            "(masks or boxes), not classes. There are no masks for these pictures: a mask is a picture of class ids "
            "with the name of its image. To tell classes apart, put the pictures of each into a folder of its own"
        )


def _named_in_part(folders: list[Path]) -> dict[Path, str]:
    """Returns the split of each folder that is named by a part of its name, such as seg_train and seg_test.

    Returns {} unless one of them is for training, there is another split, and all contain folders only: a class such
    as train_station contains pictures.
    """
    named = {folder: split for folder in folders if (split := split_named(folder.name))}
    splits = set(named.values())
    are_splits = "train" in splits and len(splits) > 1 and all(map(_holds_folders_only, named))
    return named if are_splits else {}


def _holds_folders_only(folder: Path) -> bool:
    """Tells whether a folder contains folders and no pictures beside them."""
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
