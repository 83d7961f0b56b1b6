"""The names of image formats for flags and limits, and recognising the format of a file."""

import contextlib
import struct

from PIL import Image

from vitrail.data import heif
from vitrail.data.decode import PILLOW_FORMATS
from vitrail.errors import UserError

_NAMES = {kind: kind.lower() for kind in PILLOW_FORMATS} | {"DIB": "bmp"}
"""Our names by Pillow's."""
_OTHER_NAMES = {"jpg": "jpeg", "tif": "tiff", "jp2": "jpeg2000", "heic": "heif"}
"""Names that are understood besides, and what they mean."""
ALL = tuple(dict.fromkeys((*_NAMES.values(), "heif", "npy")))
"""The names of all formats that can be read."""


def read_formats(given: str | None) -> tuple[str, ...]:
    """Parses the value of --formats, such as "jpeg,png"; None means all formats.

    Raises UserError if a name is unknown.
    """
    if given is None:
        return ALL
    names = tuple(_OTHER_NAMES.get(part.strip().lower(), part.strip().lower()) for part in given.split(","))
    for name in names:
        if name not in ALL:
            raise UserError(f"--formats {given}: there is no format {name!r}; there are {', '.join(ALL)}")
    return names


def format_of(content: bytes) -> str | None:
    """Recognises the format of a file by its first bytes; None if they do not show it, as those of TGA files."""
    if content[:6] == b"\x93NUMPY":
        return "npy"
    if heif.is_heif(content):
        return "heif"
    for kind in PILLOW_FORMATS:
        if kind not in Image.OPEN:
            Image.init()
        _, accepts = Image.OPEN.get(kind, (None, None))
        # `Image.open` recognises a format in the same way. Some functions raise if a file is shorter than they expect.
        with contextlib.suppress(struct.error, IndexError):
            if accepts is not None and accepts(content[:16]):
                return _NAMES[kind]
    return None
