"""The columns of an index of shards that say where right answers lie that are files of their own, such as masks."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

ANNOTATIONS = (
    pa.field("annotation_offset", pa.int64()),  # the position of the file's bytes in the shard, -1 for none
    pa.field("annotation_size", pa.int64()),  # the number of these bytes
    pa.field("annotation_sha256", pa.binary(32)),  # their SHA-256, or null
    pa.field("stated_size", pa.int64()),  # the size of the sample in the source that was written as shards, or -1
)
"""These columns."""


@dataclass(frozen=True)
class AnnotationTable:
    """The places of right answers in shards, one entry for each sample; `ANNOTATIONS` says what the columns mean."""

    offset: np.ndarray
    """int64 [samples]"""
    size: np.ndarray
    """int64 [samples]"""
    stated_size: np.ndarray
    """int64 [samples]"""
    sha256: np.ndarray | None = None
    """uint8 [samples, 32]; None if some are not known"""

    def take(self, order: np.ndarray) -> "AnnotationTable":
        """Returns the entries at these indices, in this order."""
        digests = None if self.sha256 is None else self.sha256[order]
        return AnnotationTable(self.offset[order], self.size[order], self.stated_size[order], digests)

    @property
    def present(self) -> np.ndarray:
        """Tells which samples have a right answer, bool [samples]."""
        return self.offset >= 0

    def columns(self) -> dict[str, object]:
        """Returns the columns of the index by name."""
        digests = [None] * len(self.offset) if self.sha256 is None else [digest.tobytes() for digest in self.sha256]
        return {
            "annotation_offset": self.offset,
            "annotation_size": self.size,
            "annotation_sha256": digests,
            "stated_size": self.stated_size,
        }

    @staticmethod
    def none(count: int) -> "AnnotationTable":
        """Returns the entries of `count` samples without right answers."""
        nowhere, nothing = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        return AnnotationTable(nowhere, nothing, nowhere)


def joined_annotations(parts: list[tuple[AnnotationTable | None, int]]) -> AnnotationTable | None:
    """Joins the entries of shards that others wrote, which have no SHA-256; None if none has any.

    parts: for each shard its entries, None if it has none, and the number of its samples.
    """
    if all(table is None for table, _ in parts):
        return None
    tables = [AnnotationTable.none(count) if table is None else table for table, count in parts]
    return AnnotationTable(
        *(np.concatenate([getattr(table, name) for table in tables]) for name in ("offset", "size", "stated_size"))
    )
