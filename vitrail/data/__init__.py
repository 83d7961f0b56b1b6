"""Where images come from: sources, decoding, transforms, and the loader that joins them.

`vitrail.data.loader` alone needs torch, so it is imported by its own name.
"""

from vitrail.data.decode import BadImage, decode
from vitrail.data.frame import Frame
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
