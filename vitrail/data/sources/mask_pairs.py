"""Which picture has which mask, and which split each pair belongs to where lists tell it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vitrail.data.sources.mask_layout import MaskFinder, MaskFolders, pictures_in, without_ending
from vitrail.errors import UserError
from vitrail.io.documents import read_text

_LISTS = ("", "annotations", "ImageSets/Segmentation", "ImageSets", "splits", "lists")
"""The folders in which lists of splits may lie."""
_LIST_NAMES = ("train", "val", "test", "trainval")
_LARGEST_LIST = 1 << 28


@dataclass(frozen=True)
class MaskPairs:
    """The pictures and masks of a data set, as paths below its root."""

    names: tuple[str, ...]
    masks: tuple[str, ...]
    """"" for a picture without one."""
    splits: tuple[str, ...]
    """The split of each picture; "" for all if there are none."""
    unpaired: tuple[str, ...]
    doubled: tuple[str, ...]


def pair_notes(pairs: MaskPairs) -> list[str]:
    """Returns notes on masks that are not used."""
    kinds = (("without a picture", pairs.unpaired), ("of a picture that has another one", pairs.doubled))
    return [f"left out: {len(names):,} mask(s) {which}, such as {names[0]}" for which, names in kinds if names]


def pairs_in(root: Path, folders: Sequence[MaskFolders]) -> MaskPairs:
    """Lists the pictures in some folders with their masks."""
    names: list[str] = []
    masks: list[str] = []
    splits: list[str] = []
    unpaired: list[str] = []
    doubled: list[str] = []
    for each in folders:
        finder = MaskFinder(pictures_in(each.masks))
        before, after = each.pictures.relative_to(root).as_posix(), each.masks.relative_to(root).as_posix()
        for picture in pictures_in(each.pictures):
            found = [f"{after}/{file}" for file in finder.find(picture)]
            names.append(f"{before}/{picture}")
            masks.append(found[0] if found else "")
            splits.append(each.split)
            doubled += [name for name in found[1:] if name not in doubled]
        unpaired += [f"{after}/{file}" for file in finder.unused()]
    return MaskPairs(tuple(names), tuple(masks), tuple(splits), tuple(unpaired), tuple(doubled))


def by_lists(root: Path, folder: MaskFolders, pairs: MaskPairs, lists: dict[str, Path], notes: list[str]) -> MaskPairs:
    """Takes the pictures that lists name for their splits; a picture that is listed has to have a mask.

    Raises UserError if a list names a picture that does not exist, or two name the same.
    """
    before = folder.pictures.relative_to(root).as_posix()
    by_name = {name.removeprefix(f"{before}/"): row for row, name in enumerate(pairs.names)}
    by_stem = {without_ending(PurePosixPath(name)): row for name, row in by_name.items()}

    def row_of(name: str) -> int | None:
        return by_name.get(name, by_stem.get(name, by_stem.get(without_ending(PurePosixPath(name)))))

    split_of: dict[int, tuple[str, Path]] = {}
    for split, file in lists.items():
        for number, names in listed_names(file, folder.pictures):
            row = next((row for row in map(row_of, names) if row is not None), None)
            if row is None:
                raise UserError(f"{file}, line {number}: there is no picture {names[-1]!r} in {folder.pictures}")
            other, earlier = split_of.setdefault(row, (split, file))
            if other != split:
                raise UserError(f"{file}, line {number}: {names[-1]} is in {earlier.name} too; take it out of one")
    if not split_of:
        raise UserError(f"{next(iter(lists.values()))} lists no pictures: write a name on each line, or delete it")
    left_out = [name for row, name in enumerate(pairs.names) if row not in split_of]
    if left_out:
        listed = ", ".join(file.name for file in lists.values())
        notes.append(f"{len(left_out):,} pictures are not in {listed}, such as {left_out[0]}: left out")
    rows = sorted(split_of)
    after = folder.masks.relative_to(root).as_posix()
    # A mask that is missing is expected under the name that it should have, so that reading it fails with that name.
    inside = [PurePosixPath(pairs.names[row]).relative_to(before) for row in rows]
    expected = [f"{after}/{without_ending(file)}.png" for file in inside]
    return MaskPairs(
        tuple(pairs.names[row] for row in rows),
        tuple(pairs.masks[row] or name for row, name in zip(rows, expected, strict=True)),
        tuple(split_of[row][0] for row in rows),
        pairs.unpaired,
        pairs.doubled,
    )


def split_lists(root: Path, masks: Path) -> dict[str, Path]:
    """Finds the files that list the pictures of each split, train.txt and so on; {} if there are none.

    trainval.txt is train, unless there is a train.txt too.

    Args:
        root: The folder of the data.
        masks: The folder of the masks, beside or above which lists may lie too.
    """
    for folder in dict.fromkeys([*(root / name for name in _LISTS), masks, masks.parent]):
        found = {name: folder / f"{name}.txt" for name in _LIST_NAMES if (folder / f"{name}.txt").is_file()}
        if "trainval" in found:
            both = found.pop("trainval")
            found.setdefault("train", both)
        if found:
            return found
    return {}


def listed_names(file: Path, pictures: Path) -> list[tuple[int, list[str]]]:
    """Reads a list of pictures, one on each line, with other columns perhaps after it; # begins a comment.

    Args:
        file: The list.
        pictures: The folder of the pictures, by whose name or path a listed one may begin.

    Returns:
        For each line its number, and the names that it may mean: all of it, since names can have spaces, and its first
        word.
    """
    found = []
    for number, line in enumerate(read_text(file, _LARGEST_LIST).splitlines(), 1):
        text = re.split(r"(?:^|\s)#", line)[0].strip()
        if text:
            names = [re.sub(rf"^(.*/)?{re.escape(pictures.name)}/", "", name) for name in (text, text.split()[0])]
            found.append((number, [name.removeprefix("./") for name in names]))
    return found
