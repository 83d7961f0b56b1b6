"""COCO JSON: the categories that are marked in a picture are its labels."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.base import Source, SourceKind, Split, SplitRule, finish
from vitrail.data.sources.folder import FilesReader
from vitrail.data.sources.splits import split_named
from vitrail.errors import UserError

TASK = "multilabel"
_PREFIX = "instances_"


@dataclass(frozen=True)
class Annotations:
    """What one file says: the pictures by id, and which categories are marked in each."""

    path: Path
    files: dict[int, str]
    """File names by the ids of the pictures."""
    categories: dict[int, str]
    """Names by their ids, in the order of those: they have gaps."""
    marked: list[tuple[int, int]]
    """(picture, category) of each annotation."""


class Coco(SourceKind):
    words = "COCO JSON or its folder"

    def recognises(self, path: Path) -> bool:
        return bool(annotations(path)) if path.is_dir() else path.suffix.lower() == ".json"

    def open(self, path: Path, rule: SplitRule, asked: str | None) -> Source:
        return open_coco(path, rule)


def annotations(folder: Path) -> list[Path]:
    """Lists the instances_*.json of a folder, or of the folder annotations in it."""
    return sorted(folder.glob(f"annotations/{_PREFIX}*.json")) or sorted(folder.glob(f"{_PREFIX}*.json"))


def open_coco(path: Path, rule: SplitRule) -> Source:
    """Opens one file of annotations, or a folder that has some; a sample's id is its path below the data's folder."""
    files = annotations(path) if path.is_dir() else [path]
    top = path if path.is_dir() else path.parent.parent if path.parent.name == "annotations" else path.parent
    read = [_read(file) for file in files]
    categories = read[0].categories
    for other in read[1:]:
        if other.categories != categories:
            raise UserError(f"{other.path}: has other categories than {read[0].path}; give one of the two files")
    found, notes, seen = {}, [], {}
    for each in read:
        name = (split_named(each.path.stem) or "") if len(read) > 1 else ""
        if name in found:
            raise UserError(f"{each.path}: {read[0].path} is for the same split; give one of the two files")
        pictures = frozenset(each.files.values())
        if pictures in seen:
            notes.append(f"{each.path.name} names the same pictures as {seen[pictures]}: left out")
            continue
        seen[pictures] = each.path.name
        found[name] = _split(name, each, top)
    if len(found) == 1:
        found = {"": next(iter(found.values()))}
    told = f"{path}: the categories marked in each picture are its labels ({TASK})"
    return finish(str(path), tuple(categories.values()), found, rule, [told, *notes])


def _split(name: str, read: Annotations, top: Path) -> Split:
    folder = _pictures(read, top)
    numbers = {identity: row for row, identity in enumerate(read.files)}
    places = {identity: place for place, identity in enumerate(read.categories)}
    targets = np.zeros((len(numbers), len(places)), dtype=np.int8)
    for picture, category in read.marked:
        targets[numbers[picture], places[category]] = 1
    ids = [(folder / file).relative_to(top).as_posix() for file in read.files.values()]
    return Split(name, ids, targets, FilesReader(top, tuple(ids)), np.arange(len(ids)), TASK)


def _pictures(read: Annotations, top: Path) -> Path:
    """The folder that the pictures lie in: it is called as the file is, or images, or is the data's folder itself."""
    own = read.path.stem.removeprefix(_PREFIX)
    first = next(iter(read.files.values()))
    tried = [top / own, top / "images" / own, top / "images", top]
    for folder in tried:
        if (folder / first).is_file():
            break
    else:
        raise UserError(f"{read.path}: {first} is not in {tried[0]}, nor in {tried[2]}; put the pictures there")
    missing = [file for file in read.files.values() if not (folder / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{read.path}: {folder / missing[0]}{more} does not exist; take it out of the file")
    return folder


def _read(path: Path) -> Annotations:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    try:
        files = {int(each["id"]): str(each["file_name"]) for each in document["images"]}
        categories = {int(each["id"]): str(each["name"]) for each in document["categories"]}
        marked = [(int(each["image_id"]), int(each["category_id"])) for each in document["annotations"]]
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path} is not COCO JSON with images, categories and annotations ({type(error).__name__}: {error}); give "
            "an instances_*.json"
        ) from error
    _check(path, document, files, marked, categories)
    ordered = dict(sorted(categories.items()))
    return Annotations(path, dict(sorted(files.items(), key=lambda item: item[1])), ordered, marked)


def _check(
    path: Path, document: dict[str, Any], files: dict[int, str], marked: list[tuple[int, int]], names: dict[int, str]
) -> None:
    if not files:
        raise UserError(f"{path} names no images")
    if len(files) < len(document["images"]) or len(set(files.values())) < len(files):
        raise UserError(f"{path}: an image occurs more than once, by its id or by its file name")
    for place, (picture, category) in enumerate(marked):
        if picture not in files or category not in names:
            what = f"the image {picture}" if picture not in files else f"the category {category}"
            raise UserError(f"{path}: annotation {place} is of {what}, which the file does not list")
