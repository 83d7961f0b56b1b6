"""Reading data: sources of samples, decoding, transforms, and the loader that makes batches of them.

Only `vitrail.data.loader` and `vitrail.data.mixup_cutmix` need torch, so this package does not import them.
"""

from vitrail.data.decode import BadImage, decode
from vitrail.data.sources import (
    UNLABELLED,
    Sample,
    Source,
    Split,
    files_split,
    match_classes,
    open_data,
    open_source,
    with_dev,
)
from vitrail.masks_and_boxes import Frame

__all__ = [
    "UNLABELLED",
    "BadImage",
    "Frame",
    "Sample",
    "Source",
    "Split",
    "decode",
    "files_split",
    "match_classes",
    "open_data",
    "open_source",
    "with_dev",
]
