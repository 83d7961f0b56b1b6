"""Reading masks that are stored as encoded pictures, wherever they lie: what all readers of such masks share."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from vitrail.data.decode import MAX_PIXELS, BadImage
from vitrail.data.mask_files import decode_mask
from vitrail.data.sources.base import AnnotatedReader
from vitrail.data.sources.mask_classes import MaskClasses

MASK_TASK = "segmentation"
"""The task that such data are for."""


class NoMaskFile(BadImage):
    """Raised for a mask that is expected and is not there."""


@runtime_checkable
class EncodedMasks(AnnotatedReader, Protocol):
    """A reader of samples that have a mask as an encoded picture, which can be checked before it is converted."""

    @property
    def classes(self) -> MaskClasses:
        """Returns the classes of the masks."""
        ...

    @property
    def unused(self) -> Mapping[str, Sequence[str]]:
        """Returns the names of masks that belong to no sample, by the kind of fault."""
        ...

    def mask_name(self, row: int) -> str:
        """Returns what messages call the mask of a row."""
        ...

    def mask(self, row: int) -> bytes | np.ndarray:
        """Reads the encoded mask of a row. Raises BadImage if it cannot be read, NoMaskFile if it is not there."""
        ...


def annotation_of(reader: EncodedMasks, row: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Reads a mask as classes, uint8 [rows, columns]. Raises BadImage, which names the mask, if it cannot be used."""
    name = reader.mask_name(row)
    try:
        return reader.classes.indices(decode_mask(reader.mask(row), max_pixels))
    except BadImage as error:
        raise BadImage(f"has a mask that cannot be used: {name} {error}") from error
