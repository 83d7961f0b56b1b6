"""COCO JSON as data for multilabel classification: the labels of a picture are the categories annotated in it.

If it is asked for, the outlines of the objects are read as masks instead.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.base import OpenOptions, Source, SourceKind, Split, SplitRule, build_source
from vitrail.data.sources.coco_masks import (
    NO_OUTLINE,
    CocoMaskReader,
    MarkedObject,
    coco_classes,
    marked_object,
    stated_size,
)
from vitrail.data.sources.folder import FilesReader
from vitrail.data.sources.mask_reading import MASK_TASK
from vitrail.data.sources.splits import split_named
from vitrail.errors import UserError
from vitrail.io.documents import read_document
from vitrail.masks_and_boxes import Size
from vitrail.tasks import task

TASK = "multilabel"
"""The task that such data are for."""
_PREFIX = "instances_"
"""The beginning of the names of annotation files; the rest is the name of the split."""
_LARGEST = 2 * 2**30
"""The largest file of annotations that is read, in bytes; that of COCO's training images has 450 MB."""


@dataclass(frozen=True)
class Annotations:
    """The content of one file of annotations."""

    path: Path
    files: dict[int, str]
    """The file names of the pictures by their ids."""
    categories: dict[int, str]
    """The names of the categories by their ids, sorted by id; the ids may have gaps."""
    marked: list[tuple[int, int]]
    """(id of the picture, id of the category) of each annotation."""
    sizes: dict[int, Size | None] = field(default_factory=dict)
    """The sizes of the pictures by their ids; empty if no masks are wanted."""
    objects: list[MarkedObject] = field(default_factory=list)
    """The object that each annotation marks; empty if no masks are wanted."""


class Coco(SourceKind):
    """A file of COCO JSON or a folder with some."""

    words = "COCO JSON or its folder"

    def recognises(self, path: Path) -> bool:
        return bool(annotations(path)) if path.is_dir() else path.suffix.lower() == ".json"

    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        return open_coco(path, rule, asked)


def annotations(folder: Path) -> list[Path]:
    """Lists the files instances_*.json in the subfolder `annotations`, or else in the folder itself."""
    return sorted(folder.glob(f"annotations/{_PREFIX}*.json")) or sorted(folder.glob(f"{_PREFIX}*.json"))


def open_coco(path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens a file of annotations, or a folder that has some; the id of a sample is its path below the data's folder.

    If the task that is asked for has its right answers in pixels, the outlines of the objects are read as masks; else
    their categories are labels.

    Raises UserError if a file is damaged, a picture is missing, or files contradict each other.
    """
    files = annotations(path) if path.is_dir() else [path]
    top = path if path.is_dir() else path.parent.parent if path.parent.name == "annotations" else path.parent
    masks = asked.task is not None and task(asked.task).target.in_pixels
    read = [_read(file, masks) for file in files]
    categories = read[0].categories
    for other in read[1:]:
        if other.categories != categories:
            raise UserError(f"{other.path}: has other categories than {read[0].path}; give one of the two files")
    found, notes, seen = {}, [], {}
    for annotated in read:
        name = (split_named(annotated.path.stem) or "") if len(read) > 1 else ""
        if name in found:
            raise UserError(f"{annotated.path}: {read[0].path} is for the same split; give one of the two files")
        pictures = frozenset(annotated.files.values())
        if pictures in seen:
            notes.append(f"{annotated.path.name} names the same pictures as {seen[pictures]}: left out")
            continue
        seen[pictures] = annotated.path.name
        found[name] = _mask_split(name, annotated, top, asked) if masks else _split(name, annotated, top)
    if len(found) == 1:
        found = {"": next(iter(found.values()))}
    if masks:
        names = coco_classes(categories, asked.ignore)[0]
        told = f"{path}: the objects of {len(categories)} categories are masks; what none covers is {names[0]}"
        return build_source(str(path), names, found, rule, [told, *notes])
    told = f"{path}: the categories marked in each picture are its labels ({TASK}); --task {MASK_TASK} reads masks"
    return build_source(str(path), tuple(categories.values()), found, rule, [told, *notes])


def _split(name: str, read: Annotations, top: Path) -> Split:
    """Makes a split of one file of annotations. top: the folder that ids are relative to."""
    folder = _pictures(read, top)
    row_of = {identity: row for row, identity in enumerate(read.files)}
    column_of = {identity: column for column, identity in enumerate(read.categories)}
    targets = np.zeros((len(row_of), len(column_of)), dtype=np.int8)
    for picture, category in read.marked:
        targets[row_of[picture], column_of[category]] = 1
    ids = [(folder / file).relative_to(top).as_posix() for file in read.files.values()]
    return Split(name, ids, targets, FilesReader(top, tuple(ids)), np.arange(len(ids)), TASK)


def _mask_split(name: str, read: Annotations, top: Path, asked: OpenOptions) -> Split:
    """Makes a split of one file of annotations whose targets are masks. top: the folder that ids are relative to.

    Raises UserError if nothing but boxes is marked in it.
    """
    if read.objects and all(each.outline == NO_OUTLINE for each in read.objects):
        raise UserError(f"{read.path}: its annotations have no segmentation, so there are no masks: leave --task out")
    folder = _pictures(read, top)
    of_picture: dict[int, list[MarkedObject]] = {identity: [] for identity in read.files}
    for (picture, _), marked in zip(read.marked, read.objects, strict=True):
        of_picture[picture].append(marked)
    ids = [(folder / file).relative_to(top).as_posix() for file in read.files.values()]
    reader = CocoMaskReader(
        FilesReader(top, tuple(ids)),
        tuple(read.sizes[identity] for identity in read.files),
        tuple(map(tuple, of_picture.values())),
        coco_classes(read.categories, asked.ignore)[1],
        asked.max_pixels,
    )
    return Split(name, ids, np.ones(len(ids), dtype=np.int8), reader, np.arange(len(ids)), MASK_TASK)


def _file_name(value: Any) -> str:
    """Returns a picture's file name; raises ValueError if it is no text, or too long to be one."""
    if not isinstance(value, str) or len(value.encode()) > 2000 or max(map(len, value.encode().split(b"/"))) > 255:
        raise ValueError(f"the file_name {value!r:.60} is none")
    return value


def _pictures(read: Annotations, top: Path) -> Path:
    """Finds the folder of the pictures: one with the name of the file (val2017), `images`, or the data's folder itself.

    Raises UserError if pictures are missing there.
    """
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


def _read(path: Path, masks: bool) -> Annotations:
    """Reads a file of annotations; the pictures are sorted by file name and the categories by id.

    masks: whether the outlines of the objects are wanted too.
    """
    document = read_document(path, _LARGEST, finite=False)
    try:
        files = {int(each["id"]): _file_name(each["file_name"]) for each in document["images"]}
        categories = {int(each["id"]): str(each["name"]) for each in document["categories"]}
        marked = [(int(each["image_id"]), int(each["category_id"])) for each in document["annotations"]]
        sizes = {int(each["id"]): stated_size(each) for each in document["images"]} if masks else {}
        outlines = (each.get("segmentation") for each in document["annotations"]) if masks else ()
        objects = [marked_object(marked[place][1], outline) for place, outline in enumerate(outlines)]
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} is not COCO JSON with images, categories and annotations ({type(error).__name__}: {error}); give "
            "an instances_*.json"
        ) from error
    _check(path, document, files, marked, categories)
    ordered = dict(sorted(categories.items()))
    by_name = dict(sorted(files.items(), key=lambda item: item[1]))
    return Annotations(path, by_name, ordered, marked, sizes, objects)


def _check(
    path: Path, document: dict[str, Any], files: dict[int, str], marked: list[tuple[int, int]], names: dict[int, str]
) -> None:
    """Raises UserError if a file has no images, names one twice, or annotates what it does not list."""
    if not files:
        raise UserError(f"{path} names no images")
    if len(files) < len(document["images"]) or len(set(files.values())) < len(files):
        raise UserError(f"{path}: an image occurs more than once, by its id or by its file name")
    for number, (picture, category) in enumerate(marked):
        if picture not in files or category not in names:
            what = f"the image {picture}" if picture not in files else f"the category {category}"
            raise UserError(f"{path}: annotation {number} is of {what}, which the file does not list")
