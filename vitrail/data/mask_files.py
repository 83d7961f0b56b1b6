"""Decoding the files of masks to the numbers that they store, which no conversion of colours may touch."""

from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vitrail.data.bad_image import BadImage, NotIds, TooCostly
from vitrail.data.decode import MAX_PIXELS, decoding_failure, load_npy, open_header
from vitrail.data.pillow_limit import allow_pixels

LOSSY = ("JPEG", "MPO", "JPEG2000", "AVIF", "HEIF")
"""Pillow's names of formats that store about what they were given, so that the ids of a mask come out changed."""
_WEBP_LOSSY = b"VP8 "
"""The name of the part of a WebP file that holds a picture with losses."""
_JPEG_IN_TIFF = ("jpeg", "tiff_jpeg", "webp")
_GREYS = {"L", "P", "1", "LA", "PA"}
_LARGEST_ID = 65535


def decode_mask(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decodes a mask to the numbers that it stores: those of grey pixels, or the places in the palette of its colours.

    The mask is turned upright by its EXIF data, if it has any, as pictures are.

    Args:
        content: The bytes of an image file, or of an .npy file of whole numbers; or such an array.
        max_pixels: Larger masks are refused before they are decoded.

    Returns:
        Ids, uint8 or uint16 [rows, columns]; or, for a picture in colours without a palette, uint8 [rows, columns, 3].

    Raises:
        BadImage: If it cannot be decoded; NotIds if what it holds cannot be ids.
    """
    if isinstance(content, np.ndarray):
        return _as_ids(content)
    if content[:6] == b"\x93NUMPY":
        return _as_ids(load_npy(content, max_pixels))
    try:
        with allow_pixels(max_pixels):
            image = open_header(content, max_pixels)
            image.load()
            return _stored_numbers(ImageOps.exif_transpose(image), _unit(content))
    except BadImage:
        raise
    except MemoryError:
        raise TooCostly("does not fit into memory") from None
    except Exception as error:
        # Pillow's readers raise nearly anything on bad bytes.
        raise BadImage(decoding_failure(content, error)) from error


def format_and_mode(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> tuple[str, str]:
    """Returns Pillow's names of the format and the mode of a mask that can be decoded; for arrays their type."""
    if isinstance(content, np.ndarray):
        return "array", str(content.dtype)
    if content[:6] == b"\x93NUMPY":
        return "npy", "npy"
    image = open_header(content, max_pixels)
    return image.format or "", image.mode


def is_lossy(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> bool:
    """Tells whether a mask that can be decoded is stored in a way that changes ids."""
    if isinstance(content, np.ndarray) or content[:6] == b"\x93NUMPY":
        return False
    image = open_header(content, max_pixels)
    if image.format == "WEBP":
        return _WEBP_LOSSY in content[:4096]
    return image.format in LOSSY or image.info.get("compression") in _JPEG_IN_TIFF


def is_transparent(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> bool:
    """Tells whether a mask that can be decoded has a channel of transparency that does not say opaque everywhere."""
    if isinstance(content, np.ndarray) or content[:6] == b"\x93NUMPY":
        return False
    with allow_pixels(max_pixels):
        image = open_header(content, max_pixels)
        if "A" not in image.getbands():
            return False
        least = image.getchannel("A").getextrema()[0]
    return bool(np.asarray(least).item() < 255)


def palette_of(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> list[str]:
    """Returns the colours, as #rrggbb, of the palette of a mask in the order of its ids; [] if it has none."""
    if isinstance(content, np.ndarray) or content[:6] == b"\x93NUMPY":
        return []
    image = open_header(content, max_pixels)
    if image.mode != "P" or image.palette is None or image.palette.mode != "RGB":
        return []
    colours = bytes(image.palette.palette)
    return [f"#{colours[3 * place : 3 * place + 3].hex()}" for place in range(min(256, len(colours) // 3))]


def examine_mask(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> dict[str, Any]:
    """Decodes a mask and finds how it is stored, in a form that a process that decodes can send.

    Args:
        content: The mask, as for `decode_mask`.
        max_pixels: Larger masks are refused before they are decoded.

    Returns:
        stored: what `decode_mask` returns; lossy and transparent: whether it is; palette: its colours in order.

    Raises:
        BadImage: If it cannot be decoded; NotIds if what it holds cannot be ids.
    """
    stored = decode_mask(content, max_pixels)
    return {
        "stored": stored,
        "lossy": is_lossy(content, max_pixels),
        "transparent": is_transparent(content, max_pixels),
        "palette": palette_of(content, max_pixels),
    }


def _unit(content: bytes) -> int:
    """Returns what Pillow multiplies the grey values of a PNG of 2 or 4 bits by; 1 for any other file."""
    grey_png = content[:8] == b"\x89PNG\r\n\x1a\n" and content[25:26] == b"\0"
    return {2: 85, 4: 17}.get(content[24], 1) if grey_png else 1


def _stored_numbers(image: Image.Image, unit: int) -> np.ndarray:
    """Returns the numbers of a decoded mask. unit: what its grey values were multiplied by."""
    if image.mode in _GREYS:
        values = np.asarray(image)
        values = (values if values.ndim == 2 else values[:, :, 0]).astype(np.uint8, copy=False)
        return values // np.uint8(unit) if unit > 1 else values
    if image.mode.startswith("I"):
        return _as_ids(np.asarray(image))
    if image.mode == "F":
        raise NotIds("holds floats, where the ids of classes are whole numbers")
    return np.asarray(image.convert("RGB"))


def _as_ids(values: np.ndarray) -> np.ndarray:
    """Converts whole numbers to uint8 or uint16. Raises NotIds if they are none, or cannot be ids."""
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    colours = values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8
    if 0 in values.shape or (values.ndim != 2 and not colours):
        raise NotIds(f"is an array of shape {values.shape}, not (rows, columns)")
    if values.dtype in (np.dtype(np.uint8), np.dtype(np.uint16)):
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    if not np.issubdtype(values.dtype, np.integer):
        raise NotIds(f"holds {values.dtype}, where the ids of classes are whole numbers")
    least, most = int(values.min()), int(values.max())
    if least < 0 or most > _LARGEST_ID:
        raise NotIds(f"has the id {least if least < 0 else most}; ids are from 0 to {_LARGEST_ID}")
    return values.astype(np.uint16)
