"""Decoding an image file to pixels: one upright picture, with 8 bits a channel or floats.

Channels are converted as Pillow's `convert` does wherever that keeps the values. Where it would clip them (16-bit,
32-bit and float pictures), they are rescaled instead: to 8 bits or, if a range is given, to floats from 0 to 1. If a
file cannot be decoded, `BadImage` is raised with the reason.
"""

import io
import math
from collections.abc import Callable

import numpy as np
from PIL import Image

from vitrail.data import heif
from vitrail.data.bad_image import BadImage, OutsideUnits, TooCostly, TooLarge
from vitrail.data.bit_depth import deep_colour, is_deep, is_deep_colour, scaled, with_channels
from vitrail.data.pillow_limit import allow_pixels

MAX_PIXELS = 178_956_970
"""The largest picture that is decoded, in pixels: Pillow's own limit, twice its MAX_IMAGE_PIXELS."""

# The formats of Pillow that are read. EPS is left out because Pillow would run Ghostscript on it; the others left out
# are formats that nobody trains on.
PILLOW_FORMATS = (
    *("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000", "AVIF", "ICO", "PCX"),
    *("QOI", "SGI"),
)
# The endings of files that are taken for images, in lower case.
EXTENSIONS = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2", ".j2k", ".jpx", ".avif", ".ico", ".pcx", ".qoi"),
        *(".sgi", ".npy", *heif.ENDINGS),
    )
)

_COPIED_WHOLE = 1 << 24
"""The most pixels that are copied out of Pillow's memory at once."""
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's modes by the number of channels."""
# The operation that turns a picture upright, by its EXIF orientation.
_UPRIGHT = {
    2: (Image.Transpose.FLIP_LEFT_RIGHT,),
    3: (Image.Transpose.ROTATE_180,),
    4: (Image.Transpose.FLIP_TOP_BOTTOM,),
    5: (Image.Transpose.TRANSPOSE,),
    6: (Image.Transpose.ROTATE_270,),
    7: (Image.Transpose.TRANSVERSE,),
    8: (Image.Transpose.ROTATE_90,),
}
_ORIENTATION = 0x0112  # tag of EXIF
_BITS_PER_SAMPLE = 0x0102  # tag of TIFF

Planes = tuple[Image.Image, ...]
"""A picture as Pillow images: one of mode L or RGB for 1 or 3 channels of 8 bits, else one of mode L for each channel;
a picture of floats from 0 to 1 has one of mode F for each channel."""
ValueLimits = tuple[float, float] | None
"""The stored values that become 0 and 1 in pictures with more than 8 bits; None to reduce these to 8 bits."""


def decode(
    content: bytes | np.ndarray, channels: int = 3, *, max_pixels: int = MAX_PIXELS, limits: ValueLimits = None
) -> np.ndarray:
    """Decodes an image to pixels [rows, columns, channels].

    Args:
        content: The bytes of an image file, or an array of stored values [rows, columns] or [rows, columns, channels].
        channels: The wanted number of channels.
        max_pixels: Larger pictures are refused before they are decoded.
        limits: The stored values that become 0 and 1 in a picture with more than 8 bits a channel.

    Returns:
        uint8; but float32 from 0 to 1 for a picture with more than 8 bits a channel if there are `limits`.

    Raises:
        BadImage: If it cannot be decoded.
    """
    return to_array(decode_planes(content, channels, max_pixels=max_pixels, limits=limits))


def decode_planes(
    content: bytes | np.ndarray | Image.Image | Planes,
    channels: int = 3,
    *,
    max_pixels: int = MAX_PIXELS,
    shrink: Callable[[tuple[int, int]], int] | None = None,
    limits: ValueLimits = None,
) -> Planes:
    """Decodes an image as `decode` does, but to Pillow images.

    Args:
        content: As for `decode`, or a Pillow image; Planes are decoded already and returned as they are.
        channels: As for `decode`.
        max_pixels: As for `decode`.
        shrink: Called with the size (rows, columns) of the upright picture, once it is known; returns by which factor
            (1, 2, 4 or 8) a JPEG may be reduced while it is decoded. Other formats are decoded at full size.
        limits: As for `decode`.
    """
    if isinstance(content, tuple):
        return content
    if isinstance(content, np.ndarray):
        return from_array(as_pixels(content, channels, limits))
    if isinstance(content, Image.Image):
        return _opened(content, channels, limits)
    if content[:6] == b"\x93NUMPY":
        return from_array(as_pixels(load_npy(content, max_pixels), channels, limits))
    try:
        with allow_pixels(max_pixels):  # Pillow compares with its limit while it decodes too
            image = _reduced(open_header(content, max_pixels), shrink)
            if limits is not None and is_deep_colour(content):
                values = scaled(_turned(deep_colour(content), image), limits)
                return from_array(with_channels(values, channels, alpha=True))
            return _upright(image, channels, limits)
    except BadImage:
        raise
    except MemoryError:
        raise TooCostly("does not fit into memory") from None
    except Exception as error:
        # Pillow's readers raise nearly anything (OSError, SyntaxError, struct.error, KeyError ...) on bad bytes.
        raise BadImage(decoding_failure(content, error)) from error


def open_header(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Opens an image file without decoding it. Raises BadImage if its header states more than `max_pixels`."""
    if not content:
        raise BadImage("is empty (zero bytes)")
    formats = PILLOW_FORMATS
    if heif.is_heif(content):
        if not heif.readable():
            raise BadImage(f"is a HEIC picture: {heif.MISSING}")
        formats = ("HEIF",)
    try:
        with allow_pixels(max_pixels):
            image = Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise TooLarge(f"claims more pixels than the limit of {max_pixels:,} (max_pixels)") from None
    if image.width * image.height > max_pixels:
        raise TooLarge(f"claims {image.width} x {image.height} pixels, above the limit of {max_pixels:,} (max_pixels)")
    return image


def _reduced(image: Image.Image, shrink: Callable[[tuple[int, int]], int] | None) -> Image.Image:
    """Prepares an image that is not decoded yet: a JPEG will be decoded at the reduced size that `shrink` allows."""
    if shrink is not None and image.format == "JPEG" and image.mode in ("RGB", "L"):
        rows, columns = image.height, image.width
        if _orientation(image) >= 5:
            rows, columns = columns, rows
        factor = shrink((rows, columns))
        if factor > 1:
            image.draft(image.mode, (max(image.width // factor, 1), max(image.height // factor, 1)))
    return image


def _opened(image: Image.Image, channels: int, limits: ValueLimits) -> Planes:
    """Converts a Pillow image to Planes; if it was opened lazily, it is read from its file here."""
    try:
        return _upright(image, channels, limits)
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(f"cannot be decoded ({_one_line(error)})") from error


def _upright(image: Image.Image, channels: int, limits: ValueLimits) -> Planes:
    """Decodes a Pillow image, turns it upright and converts it to the wanted channels."""
    if limits is not None and not is_deep(image) and _stored_bits(image) > 8:
        raise BadImage("is a TIFF of 16-bit colour, of which only 8 bits can be read; save it as PNG or .npy")
    image.load()
    # The orientation is read after loading, because loading a TIFF turns it upright and changes its EXIF data.
    for method in _UPRIGHT.get(_orientation(image), ()):
        image = image.transpose(method)
    if limits is not None and is_deep(image):
        return from_array(with_channels(scaled(np.asarray(image), limits), channels, alpha=True))
    return to_channels(image, channels)


def _turned(pixels: np.ndarray, image: Image.Image) -> np.ndarray:
    """Turns an array [rows, columns, channels] upright by the EXIF data of its image."""
    orientation = _orientation(image)
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _stored_bits(image: Image.Image) -> int:
    """Returns the bits of a TIFF's channels as they are in the file; 8 for other formats."""
    bits = (getattr(image, "tag_v2", None) or {}).get(_BITS_PER_SAMPLE, 8)
    return max(bits) if isinstance(bits, tuple) else int(bits)


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation, 1 to 8; 1 (upright) if there is none or the EXIF data are damaged."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def to_channels(image: Image.Image, channels: int) -> Planes:
    """Converts an image to 8-bit grey (1 channel), grey and alpha (2), colour (3) or colour and alpha (4).

    For 1 and 3 channels, transparency is dropped and not blended: the colours are those stored in the file, as in
    Pillow's `convert("RGB")`. Raises BadImage for another number of channels.
    """
    if channels not in _MODES:
        raise BadImage(f"is a picture with {len(image.getbands())} channels where {channels} are wanted")
    if image.mode.startswith(("I", "F")):
        image = _rescaled(image)
    if image.mode in ("P", "PA") and image.has_transparency_data:
        image = image.convert("RGBA")  # converting directly to RGB, Pillow would warn that transparency is lost
    if image.mode in ("LAB", "HSV"):
        image = image.convert("RGB")  # the only conversion Pillow has for them
    mode = _MODES[channels]
    if image.mode != mode:
        image = image.convert(mode)
    # Pillow multiplies the colours by alpha when it resizes LA and RGBA; split up, all channels are treated alike.
    return image.split() if channels in (2, 4) else (image,)


def _rescaled(image: Image.Image) -> Image.Image:
    """Reduces a picture with more than 8 bits to 8 bits, by rescaling a range of values and not by clipping.

    The range is 0 to 65535 for 16 bits. For 32-bit integers (mode I, in which Pillow reads some 16-bit files too) it is
    0 to 65535 if all values are inside; for floats (mode F) it is 0 to 1, or else 0 to 255, if all values are inside.
    Otherwise it goes from the lowest to the highest value of the picture.
    """
    values = np.asarray(image)
    if image.mode.startswith("I;16"):
        low, high = 0.0, 65535.0
    else:
        values = values.astype(np.float64)
        least, greatest = float(values.min()), float(values.max())
        if not np.isfinite([least, greatest]).all():
            raise BadImage("has values that are not finite")
        limits = (65535.0,) if image.mode == "I" else (1.0, 255.0)
        low, high = next(((0.0, limit) for limit in limits if least >= 0 and greatest <= limit), (least, greatest))
    if high == low:
        return Image.new("L", image.size)
    scaled = (values.astype(np.float64) - low) * (255.0 / (high - low))
    return Image.fromarray(np.rint(scaled).astype(np.uint8))


def from_array(pixels: np.ndarray) -> Planes:
    """Converts pixels [rows, columns, channels], uint8 or float32 from 0 to 1, to Pillow images."""
    if pixels.dtype == np.float32:
        return tuple(Image.fromarray(np.ascontiguousarray(pixels[:, :, band])) for band in range(pixels.shape[2]))
    # `frombytes` is used because for small pictures `fromarray` takes longer than the operations on them.
    rows, columns, channels = pixels.shape
    if channels == 3:
        return (Image.frombytes("RGB", (columns, rows), pixels.tobytes()),)
    return tuple(Image.frombytes("L", (columns, rows), pixels[:, :, band].tobytes()) for band in range(channels))


def to_array(planes: Planes) -> np.ndarray:
    """Converts Pillow images to pixels [rows, columns, channels]: uint8, or float32 from 0 to 1 for mode F."""
    if planes[0].mode == "F":
        # Resizing overshoots 0 and 1 beside edges. Pillow clips that in 8 bits but not in floats.
        return np.stack([np.asarray(plane) for plane in planes], axis=2).clip(0.0, 1.0)
    if len(planes) == 1 and planes[0].height * planes[0].width > _COPIED_WHOLE:
        return _copied_in_bands(planes[0])
    if len(planes) == 1:
        shape = planes[0].height, planes[0].width, -1
        return np.frombuffer(planes[0].tobytes(), dtype=np.uint8).reshape(shape)
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


def _copied_in_bands(plane: Image.Image) -> np.ndarray:
    """Copies a large Pillow image to uint8 [rows, columns, channels], some rows at a time: Pillow needs twice the
    memory of what it copies."""
    pixels = np.empty((plane.height, plane.width, len(plane.getbands())), dtype=np.uint8)
    step = max(1, (_COPIED_WHOLE >> 4) // plane.width)
    for row in range(0, plane.height, step):
        band = plane.crop((0, row, plane.width, min(row + step, plane.height)))
        pixels[row : row + step] = np.asarray(band).reshape(band.height, band.width, -1)
    return pixels


def as_pixels(values: np.ndarray, channels: int, limits: ValueLimits) -> np.ndarray:
    """Converts an array of stored values to pixels [rows, columns, channels], by the rules of `decode`."""
    if limits is None or not is_deep(values):
        return as_bytes(values, channels)
    return with_channels(scaled(values, limits), channels)


def as_units(pixels: np.ndarray) -> np.ndarray:
    """Converts pixels, uint8 or float32 from 0 to 1, to float32 from 0 to 1."""
    return pixels if pixels.dtype == np.float32 else pixels.astype(np.float32) / np.float32(255)


def to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Converts pixels, uint8 or float32 from 0 to 1, to uint8 for display."""
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255.0).astype(np.uint8)


def as_bytes(values: np.ndarray, channels: int) -> np.ndarray:
    """Converts an array [rows, columns] or [rows, columns, channels] to uint8 [rows, columns, channels].

    uint16 is rescaled from 0 to 65535, floats from 0 to 1. Grey is repeated for colour, and uint8 colour is weighted
    for grey; other numbers of channels must agree. Raises BadImage if the array cannot be converted.
    """
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or 0 in values.shape:
        raise BadImage(f"is an array of shape {values.shape}, not (rows, columns, channels)")
    if values.shape[2] == 1 and channels == 3:
        values = np.repeat(values, 3, axis=2)
    elif values.shape[2] == 3 and channels == 1 and values.dtype == np.uint8:
        values = np.asarray(Image.fromarray(values).convert("L"))[:, :, None]
    if values.shape[2] != channels:
        raise BadImage(f"has {values.shape[2]} channels where {channels} are wanted")
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return np.rint(values.astype(np.float64) / 257.0).astype(np.uint8)
    if np.issubdtype(values.dtype, np.floating):
        if not np.isfinite(values).all():
            raise BadImage("has values that are not finite")
        if not (values.min() >= 0 and values.max() <= 1):
            raise OutsideUnits("is an array of floats outside 0..1, for which --data.range is needed")
        return np.rint(values.astype(np.float64) * 255.0).astype(np.uint8)
    raise BadImage(f"is an array of {values.dtype}; use uint8, uint16, floats in 0..1, or give --data.range")


def load_npy(content: bytes, max_pixels: int) -> np.ndarray:
    """Reads the array of an .npy file, never a pickled object. Raises BadImage if it is damaged or too large."""
    try:
        stream = io.BytesIO(content)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read_header(stream)
        if kind.hasobject:
            raise BadImage("is an .npy file of Python objects, which would have to be unpickled")
        if int(np.prod([int(size) for size in shape[:2]], dtype=object)) > max_pixels:
            raise TooLarge(f"claims a shape of {shape}, more than the limit of {max_pixels:,} pixels (max_pixels)")
        if math.prod(shape) * kind.itemsize > len(content) - stream.tell():
            raise BadImage("is cut off before its end (truncated)")
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, TypeError, KeyError, SyntaxError) as error:
        raise BadImage(f"is not a readable .npy array ({_one_line(error)})") from error


def decoding_failure(content: bytes, error: Exception) -> str:
    """Says in plain words why Pillow cannot decode a file, as a predicate that follows its name."""
    if type(error).__name__ == "UnidentifiedImageError":
        if not content.strip(b"\0"):
            return "holds nothing but zeros"
        return "is not an image in any known format, whatever its name says"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "is cut off before its end (truncated)"
    return f"cannot be decoded ({_one_line(error)})"


def _one_line(error: Exception) -> str:
    """Returns an exception's message as one line of at most 160 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
