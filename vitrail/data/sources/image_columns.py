"""Columns of pictures, labels and masks in parquet files and data sets of Hugging Face."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.tasks import task

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as parquet

# The names of columns of images and of labels; an earlier name is preferred to a later one.
IMAGE_NAMES = ("image", "img", "images", "jpg", "jpeg", "png", "picture", "photo", "content")
LABEL_NAMES = ("label", "labels", "fine_label", "class", "cls", "target", "category", "class_name", "y")
MASK_NAMES = (
    *("mask", "segmentation_mask", "semantic_mask", "masks", "segmentation", "seg"),
    *("annotation", "annotations", "labelmap", "label", "labels"),
)
"""The names of columns of masks, the first preferred; they are masks only if they hold pictures."""
CLASS_COLUMNS = ("classes", "class_names", "class_labels", "mask_classes", "categories", "objects")
"""The names of columns whose description lists the classes of masks."""


@dataclass(frozen=True)
class MaskColumn:
    """The column of masks of a parquet file."""

    name: str
    present: np.ndarray
    """Which rows have a mask, bool [rows]."""
    classes: tuple[str, ...] | None
    """The names of the classes that the file's metadata state; None if they do not."""


def takes_masks(labels: bool, wanted: str | None) -> bool:
    """Tells whether masks are what is learned of data that have them.

    Args:
        labels: Whether the data have labels too.
        wanted: The task that the user asked for; None if none. Then labels are what is learned.
    """
    return not labels if wanted is None else task(wanted).target.in_pixels


def mask_column(
    file: "parquet.ParquetFile", features: Mapping[str, Mapping[str, Any]], wanted: str | None
) -> MaskColumn | None:
    """Finds the column of masks of a parquet file, as `MaskColumn`; None if there is none, or labels are learned.

    Args:
        file: The file.
        features: The descriptions of its columns by Hugging Face; {} if there are none.
        wanted: The task that the user asked for; None if none.
    """
    binary = [field.name for field in file.schema_arrow if holds_bytes(field.type)]
    name = next((column for column in MASK_NAMES if column in binary), None)
    others = [field.name for field in file.schema_arrow if field.name not in binary]
    labels = any(column in LABEL_NAMES or features.get(column, {}).get("_type") == "ClassLabel" for column in others)
    if name is None or len(binary) < 2 or not takes_masks(labels, wanted):
        return None
    described = [features.get(column, {}) for column in (name, *CLASS_COLUMNS)]
    return MaskColumn(name, _present(file, name), next(filter(None, map(stated_names, described)), None))


def stated_names(feature: Any) -> tuple[str, ...] | None:
    """Returns the names of classes that the description of a column states, or of a list in it; None if none."""
    while isinstance(feature, Mapping) and "names" not in feature:
        feature = feature.get("feature")
    names = feature.get("names") if isinstance(feature, Mapping) else None
    return tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) and names else None


def _present(file: "parquet.ParquetFile", name: str) -> np.ndarray:
    """Tells which rows have something in a column, bool [rows]; the column is only read where rows may have nothing."""
    import pyarrow as pa

    found = []
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        stated = [each.statistics for each in columns if each.path_in_schema in (name, f"{name}.bytes")]
        if stated and all(each is not None and each.has_null_count and each.null_count == 0 for each in stated):
            found.append(np.ones(group.num_rows, dtype=np.bool_))
            continue
        column = file.read_row_group(number, columns=[name]).column(0)
        for chunk in column.chunks:
            inner = chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk
            valid = chunk.is_valid().to_numpy(zero_copy_only=False) & inner.is_valid().to_numpy(zero_copy_only=False)
            found.append(valid.astype(np.bool_))
    return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)


def holds_bytes(kind: "pa.DataType") -> bool:
    """Tells whether a column of this type can hold pictures: bytes, or a struct with some."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(part.name == "bytes" and holds_bytes(part.type) for part in kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
