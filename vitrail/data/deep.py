"""Pictures with more than 8 bits a channel: their stored values, and the range of them that becomes 0 to 1.

Pillow keeps such values for pictures of one channel. Colour PNGs of 16 bits it reduces to 8 while decoding, so these
are taken apart here; colour TIFFs of 16 bits are refused rather than reduced.
"""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from vitrail.data.bad_image import BadImage

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SAMPLES = {2: 3, 4: 2, 6: 4}
"""Channels of a PNG's colour types, but for grey, which Pillow reads itself."""
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""How much of red, green and blue is in grey, as in Pillow's `convert("L")`."""


def is_deep(content: np.ndarray | Image.Image) -> bool:
    """Whether there are more than 8 bits a channel."""
    if isinstance(content, Image.Image):
        return content.mode.startswith(("I", "F"))
    return content.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_))


def is_deep_colour(content: bytes) -> bool:
    """Whether the bytes are a PNG of 16 bits in more than one channel."""
    return content.startswith(_SIGNATURE) and content[24:25] == b"\x10" and content[25] in _SAMPLES


def scaled(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Stored values as float32: the first of `limits` is 0, the second 1, and what lies outside is clipped."""
    if not np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.complexfloating):
        raise BadImage(f"is an array of {values.dtype}; use whole numbers or floats")
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        raise BadImage("has values that are not finite")
    low, high = limits
    # In float64: near large values float32 would not tell neighbours apart.
    result = (values.astype(np.float64) - low) / (high - low)
    return np.clip(result, 0.0, 1.0, out=result).astype(np.float32)


def with_channels(pixels: np.ndarray, channels: int, alpha: bool = False) -> np.ndarray:
    """Floats [rows, columns, ...] with the wanted number of channels, by the rules of pictures with 8 bits.

    Grey is repeated for colour, and colour weighted for grey. `alpha`: where the last channel of 2 and 4 is
    transparency, it is dropped or added, as Pillow does; of plain arrays the numbers must agree.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise BadImage(f"is an array of shape {pixels.shape}, not (rows, columns, channels)")
    if alpha and channels in (1, 2, 3, 4):
        opaque = np.ones((*pixels.shape[:2], 1), np.float32)
        colour = pixels[:, :, :-1] if pixels.shape[2] in (2, 4) else pixels
        opacity = pixels[:, :, -1:] if pixels.shape[2] in (2, 4) else opaque
        colour = with_channels(colour, 1 if channels < 3 else 3)
        return colour if channels in (1, 3) else np.concatenate([colour, opacity], axis=2)
    if pixels.shape[2] == 1 and channels == 3:
        return np.repeat(pixels, 3, axis=2)
    if pixels.shape[2] == 3 and channels == 1:
        return (pixels @ _GREY)[:, :, None].clip(0.0, 1.0)
    if pixels.shape[2] != channels:
        raise BadImage(f"has {pixels.shape[2]} channels where {channels} are wanted")
    return pixels


def deep_colour(content: bytes) -> np.ndarray:
    """uint16 [rows, columns, channels] of a PNG for which `is_deep_colour` holds, turned by no EXIF data.

    A PNG's filters join each byte with the bytes of the same place in neighbouring pixels only. So each of the bytes
    that a pixel has makes a grey picture of 8 bits of its own, with the same filters, and Pillow can read those.
    """
    columns, rows, _, kind, _, _, interlaced = struct.unpack(">IIBBBBB", content[16:29])
    if interlaced:
        raise BadImage("is an interlaced PNG of 16-bit colour; save it without interlacing")
    width = 2 * _SAMPLES[kind]
    size = rows * (1 + width * columns)
    try:
        raw = zlib.decompressobj().decompress(b"".join(_parts(content, b"IDAT")), size)
    except zlib.error as error:
        raise BadImage(f"cannot be decoded ({error})") from error
    if len(raw) < size:
        raise BadImage("is cut off before its end (truncated)")
    lines = np.frombuffer(raw, np.uint8).reshape(rows, 1 + width * columns)
    planes = [_unfiltered(lines[:, :1], lines[:, 1 + place :: width]) for place in range(width)]
    high, low = (np.stack(planes[first::2], axis=2).astype(np.uint16) for first in (0, 1))
    return high << 8 | low


def _parts(content: bytes, wanted: bytes) -> list[bytes]:
    """The contents of a PNG's chunks of one kind."""
    found, place = [], len(_SIGNATURE)
    while place + 8 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        if content[place + 4 : place + 8] == wanted:
            found.append(content[place + 8 : place + 8 + length])
            if len(found[-1]) < length:
                raise BadImage("is cut off before its end (truncated)")
            if content[place + 8 + length : place + 12 + length] != struct.pack(">I", zlib.crc32(wanted + found[-1])):
                raise BadImage("is damaged: a checksum in it differs")
        place += 12 + length
    return found


def _unfiltered(filters: np.ndarray, filtered: np.ndarray) -> np.ndarray:
    """Grey bytes [rows, columns] from lines as a PNG has them."""
    rows, columns = filtered.shape
    data = zlib.compress(np.concatenate([filters, filtered], axis=1).tobytes(), 0)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )
    return np.asarray(Image.open(io.BytesIO(_SIGNATURE + chunks), formats=("PNG",)))
