"""Folders of image files: one folder for each class, or images without classes; with or without the folders train, val
and test above them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data import heif as heif_pictures
from vitrail.data.decode import EXTENSIONS, BadImage
from vitrail.data.sources.base import MAX_SAMPLE_BYTES, Reader, Source, Split, SplitRule, build_source
from vitrail.data.sources.classes import namesakes
from vitrail.data.sources.identical_files import same_content
from vitrail.data.sources.layout import refuse_marks, split_folders, top_of_classes
from vitrail.data.sources.listing import visible_folders, walk
from vitrail.errors import UserError
from vitrail.tasks import task, task_names
from vitrail.tasks.base import sorted_classes


@dataclass(frozen=True)
class FilesReader(Reader):
    """Reads samples that are a file each."""

    root: Path
    names: tuple[str, ...]
    """The path of each sample's file, relative to `root`."""

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
            return -1  # one value for all files that cannot be read, so that fingerprints do not depend on the reason


def files_split(paths: Sequence[str | Path], name: str = "files") -> Split:
    """Makes a split of image files without labels. The ids of the samples are the paths as given."""
    names = tuple(str(path) for path in paths)
    return Split.unlabelled(name, names, FilesReader(Path(), names))


def open_folder(root: Path, rule: SplitRule, asked: str | None = None) -> Source:
    """Opens a folder of image files.

    If it (or each of its folders train, val and test) contains class folders, the classes are their names, sorted;
    images beside them are left out, with a note. Without class folders, the images in it have no classes. The id of a
    sample is its path below the root.

    Args:
        root: The folder.
        rule: How to make the splits that it does not have.
        asked: The task that the user named, if any. For a task whose samples can have several labels, files of equal
            content in several class folders are one sample with all these labels; its id is the first of their paths.

    Raises:
        UserError: If there are no images, or the splits have different classes.
    """
    notes: list[str] = []
    top = top_of_classes(root, notes)
    splits = {name: top_of_classes(folder, notes) for folder, name in split_folders(top, notes).items()}
    folders = splits or {"": top}
    listings = {name: _list_classes(root, folder, notes) for name, folder in folders.items()}
    beside = {name: _files_in(root, folder)[0] for name, folder in folders.items()}
    if any(beside.values()) and not any(_is_of_classes(files) for files in listings.values()):
        return _without_classes(root, folders, listings, rule, notes)
    classes = _agree(folders, listings, notes)
    loose = [path for paths in beside.values() for path in paths]
    loose += [] if root in folders.values() else _files_in(root, root)[0]
    if loose:
        notes.append(
            f"left out: {len(loose):,} images beside the class folders, such as {loose[0]}; to take images without "
            f"classes, give a pattern such as {str(root / '*')!r}"
        )
    numbers = {name: label for label, name in enumerate(classes)}
    if asked is not None and (joined := _joined(root, asked, listings, numbers)) is not None:
        return build_source(str(root), classes, joined, rule, [*notes, _joined_note(root, asked, listings, joined)])
    found = {}
    for split, files in listings.items():
        ids = [path for name in sorted(files) for path in files[name]]
        labels = [numbers[name] for name in sorted(files) for _ in files[name]]
        found[split] = Split.of(split, ids, np.array(labels, dtype=np.int64), FilesReader(root, tuple(ids)))
    return build_source(str(root), classes, found, rule, notes)


def _joined(
    root: Path, asked: str, listings: dict[str, dict[str, list[str]]], numbers: dict[str, int]
) -> dict[str, Split] | None:
    """Makes splits in which files of equal content are one sample with the labels of all their folders.

    listings: for each split its files by class; numbers: the label of each class. Returns None if the samples of the
    task `asked` cannot have several labels.
    """
    target = task(asked).target
    if target.from_folders([], list(numbers)) is None:
        return None
    found = {}
    for split, files in listings.items():
        folders = {path: numbers[name] for name, paths in files.items() for path in paths}
        paths = sorted(folders)
        groups = same_content(root, paths)
        ids = [paths[group[0]] for group in groups]
        targets = target.from_folders([[folders[paths[index]] for index in group] for group in groups], list(numbers))
        assert targets is not None
        found[split] = Split(split, ids, targets, FilesReader(root, tuple(ids)), np.arange(len(ids)), asked)
    return found


def _joined_note(root: Path, asked: str, listings: dict[str, dict[str, list[str]]], found: dict[str, Split]) -> str:
    """Says how many files were joined to how many samples."""
    files = sum(len(paths) for listing in listings.values() for paths in listing.values())
    pictures = sum(map(len, found.values()))
    return f"{root}: {files:,} files are {pictures:,} pictures by their content, labelled by their folders ({asked})"


def shared_note(source: Source, digests: Sequence[tuple[bytes, str, str | None]]) -> list[str]:
    """Returns a note on files of equal content in several class folders, and on how to read them as one picture.

    Args:
        source: Any source; there is no note on sources other than class folders.
        digests: (digest of its content, name of its split, name of its class) of each sample.
    """
    readers = [split.reader for split in source.splits.values()]
    single = task(source.task).target.single_class
    if not (single and Path(source.name).is_dir() and all(isinstance(reader, FilesReader) for reader in readers)):
        return []
    classes: dict[tuple[str, bytes], list[str | None]] = {}
    for digest, split, name in digests:
        folder = "train" if split in source.made_splits else split  # a split that this program made is from train
        classes.setdefault((folder, digest), []).append(name)
    shared = sum(len(names) for names in classes.values() if len(set(names)) > 1)
    if not shared:
        return []
    tasks = [name for name in task_names() if task(name).target.from_folders([], ()) is not None]
    finding = f"{shared:,} files lie in several class folders, by their content"
    return [f"{finding}; --task {tasks[0]} reads them as pictures with several labels"]


def open_images(name: str, files: Sequence[Path], root: Path, rule: SplitRule) -> Source:
    """Opens a list of image files as samples without classes; the id of a sample is its path below the root."""
    images, others = _sorted_out(files, root)
    notes = [*_ignored_note(others), *_heif_note(images, root)]
    return build_source(name, (), {"": Split.unlabelled("", images, FilesReader(root, tuple(images)))}, rule, notes)


def _files_in(root: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Lists the images directly in a folder, and the other files in it, as paths below the root."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    return _sorted_out(files, root)


def _sorted_out(files: Sequence[Path], root: Path) -> tuple[list[str], list[str]]:
    """Divides files into those with the ending of an image and the others, as paths below the root."""
    paths: tuple[list[str], list[str]] = ([], [])
    for file in files:
        paths[file.suffix.lower() not in EXTENSIONS].append(file.relative_to(root).as_posix())
    return paths


def _is_of_classes(files: dict[str, list[str]]) -> bool:
    """Tells whether more than one folder has images; with a single class there would be nothing to tell apart."""
    return sum(map(bool, files.values())) > 1


def _without_classes(
    root: Path, folders: dict[str, Path], listings: dict[str, dict[str, list[str]]], rule: SplitRule, notes: list[str]
) -> Source:
    """Builds a source without classes of the images in each split's folder and in its only subfolder, if it has one.

    folders: the folder of each split; listings: for each split the images in its subfolders.
    """
    found = {}
    for split, files in listings.items():
        for name, inside in files.items():
            if inside:
                notes.append(f"{name!r} is the only folder beside images without a class: its images are taken too")
        images, others = _files_in(root, folders[split])
        notes += [*_ignored_note(others), *_heif_note(images, folders[split])]
        ids = [*images, *(path for inside in files.values() for path in inside)]
        found[split] = Split.unlabelled(split, ids, FilesReader(root, tuple(ids)))
    return build_source(str(root), (), found, rule, notes)


def _ignored_note(paths: Sequence[str]) -> list[str]:
    """Returns a note on files that do not have the ending of an image; [] if there are none."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return [f"ignored, not named like an image: {paths[0]}{more}"] if paths else []


def _heif_note(images: Sequence[str], folder: Path) -> list[str]:
    """Returns a note on images in HEIF if the package that reads them is not installed; [] if there are none."""
    heif = sum(path.lower().endswith(heif_pictures.ENDINGS) for path in images)
    if not heif or heif_pictures.readable():
        return []
    return [f"{heif:,} of {len(images):,} pictures in {folder} cannot be read yet: {heif_pictures.MISSING}"]


def _list_classes(root: Path, folder: Path, notes: list[str]) -> dict[str, list[str]]:
    """Lists the ids of the images in each class folder."""
    listing: dict[str, list[str]] = {}
    ignored: list[str] = []
    folders = visible_folders(folder)
    refuse_marks(folder, folders)
    for child in folders:
        listing[child.name] = []
        for file in walk(child):
            path = file.relative_to(root).as_posix()
            if file.suffix.lower() in EXTENSIONS:
                listing[child.name].append(path)
            else:
                ignored.append(path)
    notes += _ignored_note(ignored)
    notes += _heif_note([path for paths in listing.values() for path in paths], folder)
    return listing


def _agree(folders: dict[str, Path], listings: dict[str, dict[str, list[str]]], notes: list[str]) -> tuple[str, ...]:
    """Returns the classes, which are those of the training split.

    Raises UserError if there are none, if a class folder is empty, or if another split has a class that training lacks.
    """
    leading = "train" if "train" in listings else next(iter(listings))
    classes = sorted_classes(listings[leading])
    if not classes:
        where = folders[leading]
        raise UserError(
            f"{where} has no class folders, and no images: put the images of each class into a folder of its own, or "
            "images without classes into this one"
        )
    for split, files in listings.items():
        where = folders[split]
        for name in sorted(files):
            if name not in classes:
                near = namesakes(name, classes)
                hint = f"; is it {near[0]!r}?" if near else ""
                raise UserError(f"{where / name}: the class {name!r} is in {split} but not in {leading}{hint}")
            if not files[name]:
                raise UserError(f"the class folder {where / name} holds no images: fill it or remove it")
        absent = [name for name in classes if name not in files]
        if absent:
            notes.append(f"{split} has no images of {len(absent)} of {len(classes)} classes, such as {absent[0]!r}")
    return classes
