"""idx files, the format of MNIST and Fashion-MNIST, plain or gzipped."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from vitrail.data.sources.base import OpenOptions, Source, SourceKind, Split, SplitRule, build_source
from vitrail.data.sources.classes import numbered_classes
from vitrail.data.sources.listing import class_names_in
from vitrail.errors import UserError

# The SHA-256 of Fashion-MNIST's training labels. It distinguishes its files from MNIST's, which have the same names.
_FASHION_LABELS = "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
_FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_SPLITS = {"train": "train", "t10k": "test", "test": "test", "val": "val"}
"""The split by the beginning of a file name."""
_LIMIT = 16 << 30
"""The largest array that is read, in bytes."""


class IdxFolder(SourceKind):
    """A folder of idx files."""

    words = "a folder of idx files"

    def recognises(self, path: Path) -> bool:
        return path.is_dir() and is_idx_folder(path)

    def open(self, path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
        return open_idx(path, rule)


def is_idx_folder(folder: Path) -> bool:
    """Tells whether a folder has idx files of images under MNIST's names."""
    return _find(folder, "train", "images", 3) is not None or _find(folder, "t10k", "images", 3) is not None


def open_idx(folder: Path, rule: SplitRule) -> Source:
    """Opens a folder of train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], and the same for t10k, test, val.

    Raises UserError if a file is damaged, or images and labels do not belong together.
    """
    found: dict[str, Split] = {}
    named = class_names_in(folder)
    for prefix, split in _SPLITS.items():
        images_file = _find(folder, prefix, "images", 3) or _find(folder, prefix, "images", 4)
        labels_file = _find(folder, prefix, "labels", 1)
        if images_file is None:
            continue
        if labels_file is None:
            raise UserError(f"{images_file} has no labels beside it: {prefix}-labels-idx1-ubyte[.gz] is missing")
        images, _ = _read(images_file)
        labels, digest = _read(labels_file)
        if images.ndim not in (3, 4) or labels.ndim != 1 or len(images) != len(labels):
            raise UserError(f"{images_file} holds {images.shape}, but {labels_file.name} {labels.shape}: not a pair")
        if named is None and digest == _FASHION_LABELS:
            named = _FASHION_CLASSES
        found[split] = Split.of_array(split, images, labels)
    every_label = np.concatenate([split.labels for split in found.values()])
    return build_source(str(folder), numbered_classes(str(folder), every_label, named), found, rule)


def _find(folder: Path, prefix: str, what: str, dimensions: int) -> Path | None:
    """Finds the file of a split. what: "images" or "labels"; dimensions: those of its array."""
    # Some archives have names with a dot in place of the dash before "idx".
    names = [f"{prefix}-{what}{mark}idx{dimensions}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(file: Path) -> tuple[np.ndarray, str]:
    """Reads the array, uint8 of any shape, and the SHA-256 of the uncompressed file.

    It reads no more bytes than the header states. Raises UserError if the file is damaged.
    """
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != 8 or not 1 <= magic[3] <= 4:
                raise UserError(f"{file} is not an idx file of unsigned bytes")
            header = stream.read(4 * magic[3])
            shape = struct.unpack(f">{magic[3]}I", header)
            size = int(np.prod(shape, dtype=object))
            if size > _LIMIT:
                raise UserError(f"{file} announces {shape}, {size:,} bytes: too large to be true")
            payload = stream.read(size)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise UserError(f"{file} cannot be read ({error}); it may be cut off: fetch it again") from error
    if len(payload) != size:
        raise UserError(f"{file} is cut off: {len(payload):,} of {size:,} bytes; fetch it again")
    digest = hashlib.sha256(magic + header + payload).hexdigest()
    return np.frombuffer(payload, dtype=np.uint8).reshape(shape), digest
