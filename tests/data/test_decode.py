"""Every kind of image file gives the pixels that Pillow's own conversion gives, or a BadImage with a reason."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.conftest import encoded, picture, smooth
from vitrail.data.decode import BadImage, decode, decode_planes


def by_pillow(content: bytes, mode: str = "RGB") -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about transparency in palettes
        return np.asarray(Image.open(io.BytesIO(content)).convert(mode))


def alpha_picture(mode: str) -> Image.Image:
    image = picture(mode="RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return image.convert(mode)


def transparent_palette() -> Image.Image:
    image = picture(mode="P")
    image.info["transparency"] = bytes(range(256))
    return image


KINDS = {
    "RGB png": lambda: encoded(picture()),
    "RGB jpeg": lambda: encoded(picture(), "JPEG"),
    "L": lambda: encoded(picture(mode="L")),
    "1-bit": lambda: encoded(picture(mode="1")),
    "palette": lambda: encoded(picture(mode="P")),
    "palette with transparency": lambda: encoded(transparent_palette(), transparency=bytes(range(256))),
    "LA": lambda: encoded(alpha_picture("LA")),
    "RGBA": lambda: encoded(alpha_picture("RGBA")),
    "CMYK jpeg": lambda: encoded(picture(mode="CMYK"), "JPEG"),
    "CMYK tiff": lambda: encoded(picture(mode="CMYK"), "TIFF"),
    "YCbCr tiff": lambda: encoded(picture(mode="YCbCr"), "TIFF"),
    "LAB tiff": lambda: encoded(picture(mode="LAB"), "TIFF"),
    "webp": lambda: encoded(picture(), "WEBP"),
    "bmp": lambda: encoded(picture(), "BMP"),
    "ppm": lambda: encoded(picture(), "PPM"),
    "gif": lambda: encoded(picture(), "GIF"),
    "tga": lambda: encoded(picture(), "TGA"),
    "animated gif": lambda: encoded(picture(), "GIF", save_all=True, append_images=[picture(seed=1)]),
    "animated webp": lambda: encoded(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)], lossless=True),
    "animated png": lambda: encoded(picture(), "PNG", save_all=True, append_images=[picture(seed=1)]),
    "1 x 1": lambda: encoded(picture(1, 1)),
    "1 x 300": lambda: encoded(picture(1, 300)),
    "300 x 1": lambda: encoded(picture(300, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "mode"), [(3, "RGB"), (1, "L")])
def test_pixels_are_those_of_pillows_conversion(kind, channels, mode):
    content = KINDS[kind]()
    pixels = decode(content, channels)
    want = by_pillow(content, "RGB" if kind == "LAB tiff" else mode)
    want = want if want.ndim == 3 else want[:, :, None]
    if kind == "LAB tiff" and mode == "L":
        want = np.asarray(Image.fromarray(by_pillow(content)).convert("L"))[:, :, None]
    if "transparency" in kind and mode == "L":
        want = by_pillow(content, "RGBA")  # Pillow has no direct way here either
        want = np.asarray(Image.fromarray(want).convert("L"))[:, :, None]
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == channels
    assert np.array_equal(pixels, want)


@pytest.mark.parametrize("kind", ["animated gif", "animated webp", "animated png"])
def test_animated_files_give_their_first_frame(kind):
    content = KINDS[kind]()
    assert Image.open(io.BytesIO(content)).n_frames == 2
    assert np.abs(decode(content).astype(int) - smooth()).mean() < 12
    assert np.abs(decode(content).astype(int) - smooth(seed=1)).mean() > 30


@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_is_kept_where_the_model_has_a_channel_for_it(channels):
    content = encoded(alpha_picture("RGBA"))
    assert np.array_equal(decode(content, channels), by_pillow(content, {2: "LA", 4: "RGBA"}[channels]))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(orientation, format):  # noqa: A002
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(picture(24, 40), format, exif=exif)
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    assert np.array_equal(decode(content), np.asarray(want))
    if orientation >= 5:
        assert decode(content).shape == (40, 24, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_lose_the_picture():
    content = encoded(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert decode(content).shape == (40, 60, 3)


DEEP = {
    "I;16 png": lambda values: encoded(Image.fromarray(values)),
    "I;16 tiff": lambda values: encoded(Image.fromarray(values), "TIFF"),
    "I;16B tiff": lambda values: big_endian_tiff(values),
    "I tiff": lambda values: encoded(Image.fromarray(values.astype(np.int32)), "TIFF"),
    "I pgm": lambda values: b"P5 64 48 65535\n" + values.astype(">u2").tobytes(),
}


def big_endian_tiff(values: np.ndarray) -> bytes:
    """The smallest TIFF of 16-bit grey in big-endian order; Pillow can read but not write it."""
    rows, columns = values.shape
    data = values.astype(">u2").tobytes()
    tags = {256: columns, 257: rows, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: rows, 279: len(data)}
    directory = struct.pack(">H", len(tags))
    for tag, value in sorted(tags.items()):
        directory += struct.pack(">HHII", tag, 4, 1, value)
    return b"MM\0*" + struct.pack(">I", 8 + len(data)) + data + directory + b"\0\0\0\0"


@pytest.mark.parametrize("kind", DEEP)
def test_sixteen_bits_are_rescaled_and_not_clipped(kind):
    values = np.linspace(0, 65535, 48 * 64).astype(np.uint16).reshape(48, 64)
    content = DEEP[kind](values)
    mode = Image.open(io.BytesIO(content)).mode
    assert mode.startswith("I")
    assert mode == kind.split()[0] or kind == "I pgm"
    want = np.rint(values / 257).astype(np.uint8)
    assert np.array_equal(decode(content, 1)[:, :, 0], want)
    assert np.array_equal(decode(content, 3), np.repeat(want[:, :, None], 3, axis=2))
    assert len(np.unique(decode(content, 1))) == 256


@pytest.mark.parametrize(
    ("values", "least", "most"), [((0, 1), 0, 255), ((0, 200), 0, 200), ((-3, 9), 0, 255), ((5, 5), 5, 5)]
)
def test_float_pictures_are_rescaled_by_their_range(values, least, most):
    ramp = np.linspace(*values, 30, dtype=np.float32).reshape(5, 6)
    pixels = decode(encoded(Image.fromarray(ramp), "TIFF"), 1)
    assert (pixels.min(), pixels.max()) == (least, most)


def test_float_pictures_with_infinities_are_refused():
    ramp = np.array([[0, 1], [np.inf, 2]], dtype=np.float32)
    with pytest.raises(BadImage, match="not finite"):
        decode(encoded(Image.fromarray(ramp), "TIFF"))


def png_claiming(columns: int, rows: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    idat = chunk(b"IDAT", zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + idat + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "zero bytes"),
        (bytes(5000), "nothing but zeros"),
        (b"<html>not found</html>", "not an image"),
        (encoded(picture())[:400], "truncated|cannot be decoded"),
        (encoded(picture(), "JPEG")[:700], "truncated"),
        (encoded(picture(), "GIF")[:300], "not an image"),
        (encoded(picture(), "WEBP")[:200], "cannot be decoded|truncated"),
        (png_claiming(60_000, 60_000), "limit"),
        (png_claiming(12_000, 12_000), "limit|truncated|cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", "not an image"),
        (b"\x93NUMPY\x01\x00junk", "npy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_image_is_refused_with_a_reason(content, reason):
    with pytest.raises(BadImage, match=reason):
        decode(content)


def test_the_limit_on_pixels_can_be_set_and_is_checked_before_decoding():
    content = encoded(picture(40, 60))
    assert decode(content, max_pixels=2400).shape == (40, 60, 3)
    with pytest.raises(BadImage, match="60 x 40"):
        decode(content, max_pixels=2399)


def test_every_cut_of_a_file_is_either_a_picture_or_a_bad_image():
    for format in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):  # noqa: A001
        content = encoded(picture(16, 16), format)
        for end in range(0, len(content), max(len(content) // 40, 1)):
            try:
                assert decode(content[:end]).shape[2] == 3
            except BadImage as error:
                assert str(error)


def test_a_jpeg_is_decoded_smaller_when_asked_and_stays_close():
    content = encoded(picture(800, 1200), "JPEG", quality=95)
    asked = []

    def shrink(size):
        asked.append(size)
        return 4

    (image,) = decode_planes(content, shrink=shrink)
    assert asked == [(800, 1200)]
    assert image.size == (300, 200)
    whole = decode_planes(content)[0].resize((300, 200), Image.Resampling.BOX)
    assert np.abs(np.asarray(image).astype(int) - np.asarray(whole)).mean() < 2


def test_shrinking_knows_about_exif_and_other_formats():
    exif = Image.Exif()
    exif[0x0112] = 6
    sizes = []
    decode_planes(encoded(picture(80, 120), "JPEG", exif=exif), shrink=lambda size: sizes.append(size) or 1)
    assert sizes == [(120, 80)]
    (image,) = decode_planes(encoded(picture(80, 120)), shrink=lambda size: 4)
    assert image.size == (120, 80)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 9])
def test_arrays_of_any_channels_pass_through(channels):
    values = smooth(10, 12, channels=channels)
    assert np.array_equal(decode(values, channels), values)
    stream = io.BytesIO()
    np.save(stream, values)
    assert np.array_equal(decode(stream.getvalue(), channels), values)


def test_arrays_of_other_types_are_rescaled():
    deep = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    assert np.array_equal(decode(deep, 1)[:, :, 0], np.arange(256).reshape(16, 16))
    assert np.array_equal(decode(deep / np.float32(65535), 1)[:, :, 0], np.arange(256).reshape(16, 16))
    assert decode(np.eye(3, dtype=bool), 1).max() == 255
    assert decode(smooth(4, 4), 1).shape == (4, 4, 1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros((4, 4, 5), np.uint8), "5 channels where 3"),
        (np.zeros((4,), np.uint8), "shape"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.full((4, 4, 3), 7.0), "outside 0..1"),
        (np.zeros((4, 4, 3), np.int64), "int64"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(values, reason):
    with pytest.raises(BadImage, match=reason):
        decode(values, 3)


def test_an_npy_file_of_objects_is_not_unpickled():
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadImage, match="unpickled"):
        decode(stream.getvalue())
