"""From the bytes of an image file to pixels: one picture, upright, 8 bits a channel or floats.

The rules are Pillow's own `convert` wherever it keeps what is in the file. Where it would clip (16-bit, 32-bit
and float pictures) values are rescaled instead: to 8 bits, or, where a range is given, to floats from 0 to 1. Whatever
cannot be decoded ends in `BadImage`, with the reason.
"""

import io
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image

from vitrail.data import heif
from vitrail.data.bad_image import BadImage, OutsideUnits
from vitrail.data.deep import deep_colour, is_deep, is_deep_colour, scaled, with_channels

MAX_PIXELS = 178_956_970
"""Where Pillow itself gives up: twice its MAX_IMAGE_PIXELS."""

# We refuse by a limit of our own, so Pillow's softer warning about the same thing is only noise.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# Odd metadata is worth a line a file to Pillow. Filters are not safe to change per call: threads share them.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")

# EPS is left out on purpose: Pillow would run Ghostscript on it. The rest are formats that nobody trains on.
FORMATS = (
    *("JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "TGA", "JPEG2000", "AVIF", "ICO", "PCX"),
    *("QOI", "SGI"),
)
EXTENSIONS = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jp2", ".j2k", ".jpx", ".avif", ".ico", ".pcx", ".qoi"),
        *(".sgi", ".npy", *heif.ENDINGS),
    )
)

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_UPRIGHT = {
    2: (Image.Transpose.FLIP_LEFT_RIGHT,),
    3: (Image.Transpose.ROTATE_180,),
    4: (Image.Transpose.FLIP_TOP_BOTTOM,),
    5: (Image.Transpose.TRANSPOSE,),
    6: (Image.Transpose.ROTATE_270,),
    7: (Image.Transpose.TRANSVERSE,),
    8: (Image.Transpose.ROTATE_90,),
}
_ORIENTATION = 0x0112
_BITS_PER_SAMPLE = 0x0102

Planes = tuple[Image.Image, ...]
"""A picture as Pillow can handle it: one L or one RGB image, or for any other number of channels one L a channel; a
picture of floats has one F a channel."""
Limits = tuple[float, float] | None
"""The stored values that become 0 and 1 in pictures with more than 8 bits; None: these are reduced to 8 bits."""


def decode(
    content: bytes | np.ndarray, channels: int = 3, *, max_pixels: int = MAX_PIXELS, limits: Limits = None
) -> np.ndarray:
    """Pixels [rows, columns, channels] of an encoded image or a raw array.

    uint8; with `limits`, a picture that has more than 8 bits a channel is float32 from 0 to 1.
    """
    return to_array(decode_planes(content, channels, max_pixels=max_pixels, limits=limits))


def decode_planes(
    content: bytes | np.ndarray | Image.Image | Planes,
    channels: int = 3,
    *,
    max_pixels: int = MAX_PIXELS,
    shrink: Callable[[tuple[int, int]], int] | None = None,
    limits: Limits = None,
) -> Planes:
    """Like `decode`, as Pillow images.

    `shrink` is asked, once the size (rows, columns) of the upright picture is known, by how much (1, 2, 4 or 8) a
    JPEG may be reduced while decoding; other formats are always decoded whole. `limits`: as in `decode`. Planes are
    taken to be decoded already.
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
        image = _reduced(open_header(content, max_pixels), shrink)
        if limits is not None and is_deep_colour(content):
            return from_array(with_channels(scaled(_turned(deep_colour(content), image), limits), channels, alpha=True))
        return _upright(image, channels, limits)
    except BadImage:
        raise
    except MemoryError:
        raise BadImage("does not fit into memory") from None
    except Exception as error:
        # Pillow's readers raise nearly anything (OSError, SyntaxError, struct.error, KeyError ...) on bad bytes.
        raise BadImage(_reason(content, error)) from error


def open_header(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image, not yet decoded, after its claimed size has been checked."""
    if not content:
        raise BadImage("is empty (zero bytes)")
    formats = FORMATS
    if heif.is_heif(content):
        if not heif.readable():
            raise BadImage(f"is a HEIC picture: {heif.MISSING}")
        formats = ("HEIF",)
    pillow_limit = Image.MAX_IMAGE_PIXELS
    if pillow_limit is not None and max_pixels > 2 * pillow_limit:
        Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2  # only ever on the caller's explicit wish
    try:
        image = Image.open(io.BytesIO(content), formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(f"claims more pixels than the limit of {max_pixels:,} (max_pixels)") from None
    if image.width * image.height > max_pixels:
        raise BadImage(f"claims {image.width} x {image.height} pixels, above the limit of {max_pixels:,} (max_pixels)")
    return image


def _reduced(image: Image.Image, shrink: Callable[[tuple[int, int]], int] | None) -> Image.Image:
    """An image that is not yet decoded; a JPEG will be decoded at the size that `shrink` allows."""
    if shrink is not None and image.format == "JPEG" and image.mode in ("RGB", "L"):
        rows, columns = image.height, image.width
        if _orientation(image) >= 5:
            rows, columns = columns, rows
        factor = shrink((rows, columns))
        if factor > 1:
            image.draft(image.mode, (max(image.width // factor, 1), max(image.height // factor, 1)))
    return image


def _opened(image: Image.Image, channels: int, limits: Limits) -> Planes:
    """A picture that is a Pillow image already; it may still have to be read from its file."""
    try:
        return _upright(image, channels, limits)
    except BadImage:
        raise
    except Exception as error:
        raise BadImage(f"cannot be decoded ({_one_line(error)})") from error


def _upright(image: Image.Image, channels: int, limits: Limits) -> Planes:
    if limits is not None and not is_deep(image) and _stored_bits(image) > 8:
        raise BadImage("is a TIFF of 16-bit colour, of which only 8 bits can be read; save it as PNG or .npy")
    image.load()
    # After loading: Pillow turns TIFFs upright by itself, and then says so in the EXIF data.
    for method in _UPRIGHT.get(_orientation(image), ()):
        image = image.transpose(method)
    if limits is not None and is_deep(image):
        return from_array(with_channels(scaled(np.asarray(image), limits), channels, alpha=True))
    return convert(image, channels)


def _turned(pixels: np.ndarray, image: Image.Image) -> np.ndarray:
    """An array [rows, columns, channels] turned upright as the EXIF data of its image say."""
    orientation = _orientation(image)
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _stored_bits(image: Image.Image) -> int:
    """Bits of a TIFF's channels as they are in the file; 8 for what is not a TIFF."""
    bits = (getattr(image, "tag_v2", None) or {}).get(_BITS_PER_SAMPLE, 8)
    return max(bits) if isinstance(bits, tuple) else int(bits)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 (upright) when there is none. Broken EXIF data is no reason to lose the picture."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def convert(image: Image.Image, channels: int) -> Planes:
    """To 8-bit grey (1), grey and alpha (2), colour (3) or colour and alpha (4).

    Transparency is dropped, not blended, for 1 and 3: the colours are those stored in the file, as Pillow's
    `convert("RGB")` gives them.
    """
    if channels not in _MODES:
        raise BadImage(f"is a picture with {len(image.getbands())} channels where {channels} are wanted")
    if image.mode.startswith(("I", "F")):
        image = _rescaled(image)
    if image.mode in ("P", "PA") and image.has_transparency_data:
        image = image.convert("RGBA")  # straight to RGB, Pillow warns that transparency is lost
    if image.mode in ("LAB", "HSV"):
        image = image.convert("RGB")  # the only conversion Pillow has for them
    mode = _MODES[channels]
    if image.mode != mode:
        image = image.convert(mode)
    # Pillow resizes LA and RGBA with alpha multiplied in; as planes, every channel is treated alike.
    return image.split() if channels in (2, 4) else (image,)


def _rescaled(image: Image.Image) -> Image.Image:
    """Deep pictures to 8 bits, by their range rather than by clipping.

    16-bit: 0..65535. 32-bit whole numbers (mode I, also how Pillow reads some 16-bit files): 0..65535 if all
    values are inside, else from the picture's own least to its greatest. Floats (F): 0..1 if all are inside,
    else 0..255 if inside, else least to greatest.
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
    """uint8 or float32 [rows, columns, channels] as Pillow images."""
    if pixels.dtype == np.float32:
        return tuple(Image.fromarray(np.ascontiguousarray(pixels[:, :, band])) for band in range(pixels.shape[2]))
    # By way of bytes: for small pictures, `fromarray` and `asarray` take longer than what is done between them.
    rows, columns, channels = pixels.shape
    if channels == 3:
        return (Image.frombytes("RGB", (columns, rows), pixels.tobytes()),)
    return tuple(Image.frombytes("L", (columns, rows), pixels[:, :, band].tobytes()) for band in range(channels))


def to_array(planes: Planes) -> np.ndarray:
    """Pillow images as uint8 [rows, columns, channels]; those of floats as float32 from 0 to 1."""
    if planes[0].mode == "F":
        # Resizing overshoots beside edges. In 8 bits Pillow clips that; here it is for us to do.
        return np.stack([np.asarray(plane) for plane in planes], axis=2).clip(0.0, 1.0)
    if len(planes) == 1:
        shape = planes[0].height, planes[0].width, -1
        return np.frombuffer(planes[0].tobytes(), dtype=np.uint8).reshape(shape)
    return np.stack([np.asarray(plane) for plane in planes], axis=2)


def as_pixels(values: np.ndarray, channels: int, limits: Limits) -> np.ndarray:
    """A raw array as uint8 [rows, columns, channels], or as float32 from 0 to 1 where it is deeper and has limits."""
    if limits is None or not is_deep(values):
        return as_bytes(values, channels)
    return with_channels(scaled(values, limits), channels)


def as_units(pixels: np.ndarray) -> np.ndarray:
    """Pixels of either kind as float32 from 0 to 1."""
    return pixels if pixels.dtype == np.float32 else pixels.astype(np.float32) / np.float32(255)


def to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Pixels of either kind as uint8, for people to look at."""
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255.0).astype(np.uint8)


def as_bytes(values: np.ndarray, channels: int) -> np.ndarray:
    """A raw array as uint8 [rows, columns, channels]; grey is repeated for colour, other counts must agree.

    16-bit values are rescaled from 0..65535, floats from 0..1.
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
    """An .npy file, never a pickle: `allow_pickle` stays off."""
    try:
        stream = io.BytesIO(content)
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read_header(stream)
        if kind.hasobject:
            raise BadImage("is an .npy file of Python objects, which would have to be unpickled")
        if int(np.prod([int(size) for size in shape[:2]], dtype=object)) > max_pixels:
            raise BadImage(f"claims a shape of {shape}, more than the limit of {max_pixels:,} pixels (max_pixels)")
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, TypeError, KeyError, SyntaxError) as error:
        raise BadImage(f"is not a readable .npy array ({_one_line(error)})") from error


def _reason(content: bytes, error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        if not content.strip(b"\0"):
            return "holds nothing but zeros"
        return "is not an image in any known format, whatever its name says"
    if "truncated" in str(error).lower() or isinstance(error, EOFError):
        return "is cut off before its end (truncated)"
    return f"cannot be decoded ({_one_line(error)})"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
