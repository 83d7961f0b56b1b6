"""Finding the folders of pictures and of their masks, which picture belongs to which mask, and lists of splits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import EXTENSIONS
from vitrail.data.mask_files import decode_mask, is_lossy
from vitrail.data.sources.layout import MARKS, PICTURE_FOLDERS
from vitrail.data.sources.listing import visible_folders, walk
from vitrail.data.sources.splits import SPLIT_NAMES
from vitrail.errors import UserError

# The folders of masks, those that can hold nothing else first.
_MASKS = ("segmentationclass", "masks", "mask", "trimaps", "trimap", "segmentation", "segmentations")
_BESIDE_TRAIN = ("annot", "_annot", "_masks", "_mask", "masks", "_labels", "labels")
"""What follows the name of a split's folder in that of its masks: CamVid has train and trainannot."""
_SUFFIXES = ("_mask", "_masks", "_label", "_labels", "_seg", "_gt", "_l", "-mask", "_segmentation", ".mask", ".seg")
"""What may follow the name of a picture in that of its mask, in lower case."""
_LOOKED_AT = 8
"""The number of masks that are looked at to tell masks from other pictures."""
_FEW_IDS = 64


@dataclass(frozen=True)
class MaskFolders:
    """A folder of pictures with the folder of their masks."""

    split: str
    """The split that they are; "" if folders do not tell."""
    pictures: Path
    masks: Path


def mask_folders(root: Path) -> list[MaskFolders]:
    """Finds the folders of pictures and masks in a folder; [] if there are none.

    They are side by side (images and masks), with or without train, val and test in both of them; or in each of train,
    val and test; or train lies beside trainannot.
    """
    pair = _pair(root)
    if pair is not None:
        return _divided(pair)
    folders = {folder.name.lower(): folder for folder in visible_folders(root)}
    splits = {name: folder for name, folder in folders.items() if name in SPLIT_NAMES}
    inside = [(SPLIT_NAMES[name], _pair(folder)) for name, folder in splits.items()]
    found = [MaskFolders(name, inner.pictures, inner.masks) for name, inner in inside if inner is not None]
    if not found:
        for name, folder in splits.items():
            masks = next((folders[name + end] for end in _BESIDE_TRAIN if name + end in folders), None)
            if masks is not None and _holds_pictures(masks):
                found.append(MaskFolders(SPLIT_NAMES[name], folder, masks))
    doubled = {each.split for each in found if sum(other.split == each.split for other in found) > 1}
    if doubled:
        raise UserError(f"{root} has several folders for the same split: {', '.join(sorted(doubled))}")
    return found


def _pair(folder: Path) -> MaskFolders | None:
    """Finds a folder of pictures beside one of masks; None if there are not both."""
    folders = {each.name.lower(): each for each in visible_folders(folder)}
    pictures = next((folders[name] for name in PICTURE_FOLDERS if name in folders), None)
    if pictures is None:
        return None
    names = [*_MASKS, *(name for name in MARKS if name not in _MASKS and name != "segmentationobject")]
    candidates = [folders[name] for name in names if name in folders]
    for candidate in [*candidates]:
        inner = {each.name.lower(): each for each in visible_folders(candidate)}
        # Masks in a folder of their own below (annotations/trimaps) rather than beside those of another kind.
        at = candidates.index(candidate)
        candidates[at:at] = [inner[name] for name in _MASKS if name in inner]
    masks = next((candidate for candidate in candidates if _holds_pictures(candidate)), None)
    return None if masks is None else MaskFolders("", pictures, masks)


def _divided(pair: MaskFolders) -> list[MaskFolders]:
    """Divides a pair by the split folders that both of its folders have; returns it as it is if there are none."""
    pictures, masks = (
        {SPLIT_NAMES[each.name.lower()]: each for each in visible_folders(side) if each.name.lower() in SPLIT_NAMES}
        for side in (pair.pictures, pair.masks)
    )
    both = [MaskFolders(split, pictures[split], masks[split]) for split in pictures if split in masks]
    return both or [pair]


def _holds_pictures(folder: Path) -> bool:
    return any(file.suffix.lower() in EXTENSIONS for file in islice(walk(folder), 1000))


def pictures_in(folder: Path) -> Iterator[PurePosixPath]:
    """Yields the picture files below a folder, as paths below it, sorted."""
    for file in walk(folder):
        if file.suffix.lower() in EXTENSIONS:
            yield PurePosixPath(file.relative_to(folder).as_posix())


def without_ending(file: PurePosixPath) -> str:
    """Returns a file's path without its ending, by which pictures and masks are matched."""
    return file.with_suffix("").as_posix()


class MaskFinder:
    """Finds the mask of a picture among the files of a folder, by its name without the ending."""

    def __init__(self, files: Iterable[PurePosixPath]) -> None:
        """Takes the mask files, as paths below their folder."""
        self._by_stem: dict[str, list[PurePosixPath]] = {}
        for file in files:
            self._by_stem.setdefault(without_ending(file), []).append(file)
        self._by_lower = {name.lower(): name for name in self._by_stem}
        self._used: set[str] = set()

    def find(self, picture: PurePosixPath) -> list[PurePosixPath]:
        """Returns the mask of a picture, and others by the same name after it; [] if it has none."""
        name = without_ending(picture)
        key = name if name in self._by_stem else picture.as_posix() if picture.as_posix() in self._by_stem else None
        if key is None:
            lowered = (self._by_lower.get(name.lower() + end) for end in ("", *_SUFFIXES))
            key = next((found for found in lowered if found is not None), None)
        if key is None:
            return []
        self._used.add(key)
        return sorted(self._by_stem[key], key=lambda file: (file.suffix.lower() != ".png", file))

    def unused(self) -> list[PurePosixPath]:
        """Returns the masks that `find` has given to no picture."""
        return sorted(file for key, files in self._by_stem.items() if key not in self._used for file in files)


def are_masks(pair: MaskFolders) -> bool:
    """Tells whether the masks of a pair belong to its pictures by name, and look like masks and not like photos.

    Only the first few are looked at.
    """
    finder = MaskFinder(islice(pictures_in(pair.masks), 2000))
    found = (finder.find(picture) for picture in islice(pictures_in(pair.pictures), 2000))
    masks = list(islice((pair.masks / files[0] for files in found if files), _LOOKED_AT))
    looks = [_looks_like_mask(mask) for mask in masks]
    return bool(looks) and sum(looks) * 2 >= len(looks)


def _looks_like_mask(file: Path) -> bool:
    """Tells whether a picture has few different values, or is mostly flat. One that cannot be read may be a mask."""
    try:
        content = file.read_bytes()
        values = decode_mask(content)
    except (OSError, BadImage):
        return True
    lossless_ids = values.ndim == 2 and not is_lossy(content)
    if lossless_ids and (values.dtype != np.uint8 or np.count_nonzero(np.bincount(values.ravel())) <= _FEW_IDS):
        return True
    if min(values.shape[:2]) < 2:
        return True
    values = values.reshape(*values.shape[:2], -1)
    same = (values[:-1, :-1] == values[1:, :-1]) & (values[:-1, :-1] == values[:-1, 1:])
    return float(same.all(axis=2).mean()) >= 0.5
