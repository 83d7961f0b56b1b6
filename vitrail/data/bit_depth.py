"""Pictures with more than 8 bits a channel: reading their stored values and scaling them to 0 to 1.

Pillow gives the stored values of pictures with one channel. PNGs of 16-bit colour it reduces to 8 bits while decoding,
so these are decoded here; TIFFs of 16-bit colour are refused.
"""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from vitrail.data.bad_image import BadImage

_SIGNATURE = b"\x89PNG\r\n\x1a\n"  # the first bytes of a PNG
_SAMPLES = {2: 3, 4: 2, 6: 4}
"""The number of channels of a PNG by its colour type, without grey, which Pillow reads itself."""
_GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""The weights of red, green and blue in grey, as in Pillow's `convert("L")`."""


def is_deep(content: np.ndarray | Image.Image) -> bool:
    """Tells whether an array or a Pillow image has more than 8 bits a channel."""
    if isinstance(content, Image.Image):
        return content.mode.startswith(("I", "F"))
    return content.dtype not in (np.dtype(np.uint8), np.dtype(np.bool_))


def is_deep_colour(content: bytes) -> bool:
    """Tells whether the bytes are a PNG with 16 bits a channel and more than one channel."""
    return content.startswith(_SIGNATURE) and content[24:25] == b"\x10" and content[25] in _SAMPLES


def scaled(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """Scales stored values of any number type and shape to float32.

    limits: the stored values that become 0 and 1; values outside are clipped. Raises BadImage if the array is not of
    real numbers or has some that are not finite.
    """
    if not np.issubdtype(values.dtype, np.number) or np.issubdtype(values.dtype, np.complexfloating):
        raise BadImage(f"is an array of {values.dtype}; use whole numbers or floats")
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        raise BadImage("has values that are not finite")
    low, high = limits
    # In float64, since float32 cannot tell neighbouring large integers apart.
    result = (values.astype(np.float64) - low) / (high - low)
    return np.clip(result, 0.0, 1.0, out=result).astype(np.float32)


def with_channels(pixels: np.ndarray, channels: int, alpha: bool = False) -> np.ndarray:
    """Converts floats from 0 to 1 to the wanted number of channels, by the rules for pictures of 8 bits: grey is
    repeated for colour, and colour is weighted for grey.

    Args:
        pixels: [rows, columns] or [rows, columns, channels].
        channels: The wanted number.
        alpha: Whether the last of 2 or 4 channels is transparency, which is then dropped or added (opaque) as needed.
            In plain arrays it is not, and other numbers of channels than these must agree.

    Returns:
        [rows, columns, channels].

    Raises:
        BadImage: If the array has another shape or its channels cannot be converted.
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
    """Decodes a PNG for which `is_deep_colour` holds to uint16 [rows, columns, channels].

    The picture is not turned by its EXIF data. Raises BadImage if it is damaged or interlaced.

    A PNG's filters combine each byte of a pixel only with the byte at the same position in neighbouring pixels. So the
    first bytes of all pixels form a grey 8-bit picture with the same filters, and so do the second bytes and so on;
    Pillow can decode each of these pictures.
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
    planes = [_unfiltered(lines[:, :1], lines[:, 1 + byte :: width]) for byte in range(width)]
    high, low = (np.stack(planes[first::2], axis=2).astype(np.uint16) for first in (0, 1))
    return high << 8 | low


def _parts(content: bytes, wanted: bytes) -> list[bytes]:
    """Returns the contents of a PNG's chunks of one kind, after comparing their checksums."""
    found, offset = [], len(_SIGNATURE)
    while offset + 8 <= len(content):
        (length,) = struct.unpack(">I", content[offset : offset + 4])
        if content[offset + 4 : offset + 8] == wanted:
            found.append(content[offset + 8 : offset + 8 + length])
            if len(found[-1]) < length:
                raise BadImage("is cut off before its end (truncated)")
            if content[offset + 8 + length : offset + 12 + length] != struct.pack(">I", zlib.crc32(wanted + found[-1])):
                raise BadImage("is damaged: a checksum in it differs")
        offset += 12 + length
    return found


def _unfiltered(filters: np.ndarray, filtered: np.ndarray) -> np.ndarray:
    """Undoes a PNG's filters: wraps the filtered bytes [rows, columns] as a grey PNG and lets Pillow decode it.

    filters: the filter of each row, uint8 [rows, 1].
    """
    rows, columns = filtered.shape
    data = zlib.compress(np.concatenate([filters, filtered], axis=1).tobytes(), 0)
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    )
    return np.asarray(Image.open(io.BytesIO(_SIGNATURE + chunks), formats=("PNG",)))
