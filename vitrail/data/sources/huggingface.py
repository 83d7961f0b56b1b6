"""Data sets of the Hugging Face Hub, given as `hf:owner/name` and read by the package `datasets`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.base import UNLABELLED, OpenOptions, Reader, Source, Split, SplitRule, build_source
from vitrail.data.sources.classes import labels_by_name, numbered_classes
from vitrail.data.sources.image_columns import (
    CLASS_COLUMNS,
    IMAGE_NAMES,
    LABEL_NAMES,
    MASK_NAMES,
    stated_names,
    takes_masks,
)
from vitrail.data.sources.mask_classes import MaskClasses
from vitrail.data.sources.mask_reading import MASK_TASK
from vitrail.data.sources.paired_masks import MaskOrigin, PairedReader, classes_by_index, masked_source
from vitrail.data.sources.splits import split_named
from vitrail.errors import UserError


@dataclass(frozen=True)
class HuggingFaceReader(Reader):
    """Reads encoded images from the files that `datasets` keeps in its cache and maps into memory."""

    dataset: Any
    """A datasets.Dataset that has only the column of images, undecoded."""
    column: str
    """The name of that column."""

    def read(self, row: int) -> bytes:
        value = self.dataset[row][self.column] or {}
        if value.get("bytes") is not None:
            return value["bytes"]
        if value.get("path"):
            try:
                return Path(value["path"]).read_bytes()
            except OSError as error:
                raise BadImage(f"cannot be read: {error.strerror or error}") from error
        raise BadImage("has neither bytes nor a path in the image column")

    def size(self, row: int) -> int:
        size = self._sizes[row]
        if size is not None:
            return size
        try:
            return len(self.read(row))  # the image is a file of its own
        except BadImage:
            return -1

    @property
    def present(self) -> np.ndarray:
        """Tells which rows have an image, bool [rows]."""
        column = self.dataset.data.column(self.column).combine_chunks()
        parts = [
            part.is_valid().to_numpy(zero_copy_only=False) for part in (column.field("bytes"), column.field("path"))
        ]
        return column.is_valid().to_numpy(zero_copy_only=False) & (parts[0] | parts[1])

    @cached_property
    def _sizes(self) -> list[int | None]:
        """Returns the size of each image in bytes, None for one in a file of its own; no image is read for it."""
        from pyarrow.compute import call_function

        bytes_alone = self.dataset.data.column(self.column).combine_chunks().field("bytes")
        return call_function("binary_length", [bytes_alone]).to_pylist()


def open_huggingface(name: str, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens a data set by `owner/name`, or by `owner/name:configuration` if it has several configurations.

    Raises UserError if the package is missing, the data set cannot be loaded, or it has no images.
    """
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"hf:{name} needs the package datasets: pip install 'vitrail[data]'") from error

    path, _, configuration = name.partition(":")
    try:
        loaded: Any = datasets.load_dataset(path, configuration or None)
    except Exception as error:
        # Offline, misspelled, private, several configurations: `datasets` has a dozen exceptions for them.
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"hf:{name} cannot be loaded: {reason or type(error).__name__}") from error
    found: dict[str, Split] = {}
    notes: list[str] = []
    labels: dict[str, list[Any]] = {}
    masked: dict[str, HuggingFaceReader | None] = {}
    described: list[Any] = []
    names = None
    for key, dataset in loaded.items():
        split = split_named(key)
        if split is None or split in found:
            notes.append(f"the split {key!r} of {path} is not used")
            continue
        mask = _mask_column(dataset.features, asked, datasets)
        image, label, listed = _columns(name, dataset.features, datasets, mask)
        masked[split] = None if mask is None else _encoded(dataset, mask, datasets)
        names = listed or names
        labels[split] = list(dataset[label]) if label is not None else [None] * len(dataset)
        ids = [f"{key}/{row:06d}" for row in range(len(dataset))]
        found[split] = Split.of(split, ids, np.full(len(ids), UNLABELLED), _encoded(dataset, image, datasets))
        described.append(dataset)
    if not found:
        raise UserError(f"hf:{name} has no split named train, validation or test; it has {', '.join(loaded)}")
    pairs = {split: reader for split, reader in masked.items() if reader is not None}
    if len(pairs) == len(found):
        return _masked(f"hf:{name}", found, pairs, MaskOrigin(rule, asked, *_known(described, asked), notes))
    every = [label for part in labels.values() for label in part]
    if any(isinstance(label, str) for label in every):
        classes, numbers = labels_by_name(every)
    else:
        numbers = np.array([UNLABELLED if label is None else label for label in every], dtype=np.int64)
        classes = numbered_classes(f"hf:{name}", numbers, names)
    start = 0
    for split, part in found.items():
        found[split] = Split(split, part.ids, numbers[start : start + len(part)], part.reader, part.rows)
        start += len(part)
    return build_source(f"hf:{name}", classes, found, rule, notes)


def _encoded(dataset: Any, column: str, datasets: Any) -> HuggingFaceReader:
    """Makes the reader of a column of images."""
    return HuggingFaceReader(dataset.select_columns([column]).cast_column(column, datasets.Image(decode=False)), column)


def _masked(name: str, found: dict[str, Split], masks: dict[str, HuggingFaceReader], origin: MaskOrigin) -> Source:
    """Builds a source of splits that have masks too, each read by one of `masks`."""
    paired = {}
    for split, part in found.items():
        present = masks[split].present
        reader = PairedReader(part.reader, masks[split], present, f"the mask in {split}, row")
        paired[split] = Split(split, part.ids, present.astype(np.int8), reader, part.rows, MASK_TASK)
    return masked_source(name, paired, origin)


def _known(parts: list[Any], asked: OpenOptions) -> tuple[MaskClasses | None, str]:
    """Returns the classes that the descriptions of the columns state, None if none, and a text that changes with the
    data."""
    features: dict[str, Any] = parts[0].features.to_dict()
    names = next(filter(None, (stated_names(features.get(column)) for column in (*MASK_NAMES, *CLASS_COLUMNS))), None)
    known = None if names is None else classes_by_index(names, "the columns' description", asked.ignore)
    return known, "\n".join(str(file["filename"]) for part in parts for file in part.cache_files)


def _mask_column(features: Any, asked: OpenOptions, datasets: Any) -> str | None:
    """Finds the column of masks; None if there is none, or labels are what is learned."""
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    labels = any(
        isinstance(feature, datasets.ClassLabel) or (key in LABEL_NAMES and key not in images)
        for key, feature in features.items()
    )
    name = next((key for key in MASK_NAMES if key in images), None)
    return name if len(images) > 1 and takes_masks(labels, asked.task) else None


def _columns(name: str, features: Any, datasets: Any, mask: str | None) -> tuple[str, str | None, list[str] | None]:
    """Finds the column of images, that of labels (None if there is none), and the class names (None if not stated).

    mask: the column of masks, which is neither; None if there is none.
    """
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image) and key != mask]
    images.sort(key=lambda key: IMAGE_NAMES.index(key) if key in IMAGE_NAMES else len(IMAGE_NAMES))
    named = [key for key, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    named.sort(key=lambda key: LABEL_NAMES.index(key) if key in LABEL_NAMES else len(LABEL_NAMES))
    labels = named + [key for key in LABEL_NAMES if key in features]
    if not images:
        raise UserError(f"hf:{name} needs a column of images; it has {', '.join(features)}")
    if not labels or mask is not None:
        return images[0], None, None
    return images[0], labels[0], getattr(features[labels[0]], "names", None)
