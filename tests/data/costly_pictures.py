"""Small files that would keep a decoder busy for minutes, or take much memory: what strangers may send."""

import io
import struct
import zlib
from collections.abc import Callable, Sequence

from PIL import Image

SHORT, LONG, RATIONAL, SLONG8 = 3, 4, 5, 17
_PIXELS = 50_000_000
"""All claim about so many: the most that the server takes unless told otherwise."""
_WIDE = 65_520, _PIXELS // 65_520


def tiff(entries: Sequence[tuple[int, int, int, int]], data: bytes) -> bytes:
    """A TIFF whose `data` begin at byte 8; entries: tag, type, count, value or offset."""
    packed = b"".join(struct.pack("<HHII", *each) for each in sorted(entries))
    directory = struct.pack("<H", len(entries)) + packed + struct.pack("<I", 0)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


def _tiff_entries(columns: int, rows: int, compression: int) -> list[tuple[int, int, int, int]]:
    return [
        (256, LONG, 1, columns),
        (257, LONG, 1, rows),
        (258, SHORT, 1, 8),
        (259, SHORT, 1, compression),
        (262, SHORT, 1, 1),
        (277, SHORT, 1, 1),
    ]


def tiff_of_one_tile_many_times() -> bytes:
    """Its 4,095 tiles are one and the same, of 50 megapixels each, of which 16 x 763 are seen."""
    blob = zlib.compress(bytes(_PIXELS), 9)
    count, length = _WIDE[0] // 16, _PIXELS // 16 // 16 * 16
    data = blob + b"\0" * (len(blob) % 2)
    offsets = struct.pack("<I", 8) * count
    sizes = struct.pack("<I", len(blob)) * count
    place = 8 + len(data)
    tiles = [(322, LONG, 1, 16), (323, LONG, 1, length), (324, LONG, count, place)]
    tiles.append((325, LONG, count, place + len(offsets)))
    return tiff([*_tiff_entries(*_WIDE, 8), *tiles], data + offsets + sizes)


def tiff_with_a_tile_of_another_type() -> bytes:
    """Pillow does not know the type of its TileWidth, and so not how large the tile is: 1.8 gigapixels."""
    side = 42_000
    packer = zlib.compressobj(9)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    blob = first + again * (side * side >> 20)
    data = struct.pack("<qq", side // 16 * 16, side // 16 * 16) + blob
    tiles = [(322, SLONG8, 1, 8), (323, SLONG8, 1, 16), (324, LONG, 1, 24), (325, LONG, 1, len(blob))]
    return tiff([*_tiff_entries(64, 64, 8), *tiles], data)


def tiff_of_rationals() -> bytes:
    """Its resolution is three million fractions."""
    count = 3_000_000
    data = bytes(4096) + struct.pack("<II", 1, 3) * count
    pixels = [(273, LONG, 1, 8), (278, LONG, 1, 64), (279, LONG, 1, 4096)]
    return tiff([*_tiff_entries(64, 64, 1), *pixels, (282, RATIONAL, count, 8 + 4096)], data)


def bmp_of_ended_lines() -> bytes:
    """Makes a file with one pixel of each line; decoders fill up the rest, pixel by pixel."""
    columns, rows = _WIDE
    data = b"\1\0\0\0" * rows
    header = struct.pack("<IiiHHIIiiII", 40, columns, rows, 1, 8, 1, len(data), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 14 + 40 + 1024 + len(data), 0, 0, 14 + 40 + 1024) + header + bytes(1024) + data


def jpeg_of_scans() -> bytes:
    """A progressive JPEG of 50 megapixels whose last scan is there two hundred times."""
    stream = io.BytesIO()
    Image.new("L", (8192, _PIXELS // 8192)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * 190 + content[-2:]


def _small(form: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (64, 48), (9, 99, 199)).save(stream, form)
    return stream.getvalue()


def jpeg_of_fill_bytes() -> bytes:
    content = _small("JPEG")
    return content[:2] + b"\xff" * 30_000_000 + content[2:]


def jpeg_of_markers() -> bytes:
    content = _small("JPEG")
    return content[:2] + b"\xff\xfe\0\2" * 6_000_000 + content[2:]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_chunks() -> bytes:
    content = _small("PNG")
    return content[:33] + png_chunk(b"prVt", b"") * 2_400_000 + content[33:]


def png_of_exif() -> bytes:
    """Its orientation is three million fractions."""
    count = 3_000_000
    content = _small("PNG")
    exif = tiff([(0x0112, RATIONAL, count, 8)], struct.pack("<II", 1, 3) * count)
    return content[:33] + png_chunk(b"eXIf", exif) + content[33:]


def gif_of_comments() -> bytes:
    content = _small("GIF")
    place = content.rindex(b"\x2c", 0, content.index(b"\0\0\0\0\x40\0\x30\0"))
    return content[:place] + b"\x21\xfe\1a\0" * 5_600_000 + content[place:]


def webp_of_much_memory() -> bytes:
    """Two kilobytes for 50 megapixels of one colour."""
    stream = io.BytesIO()
    Image.new("RGB", (16_383, _PIXELS // 16_383), (9, 99, 199)).save(stream, "WEBP", lossless=True, method=0)
    return stream.getvalue()


COSTLY: dict[str, Callable[[], bytes]] = {
    each.__name__: each
    for each in (
        tiff_of_one_tile_many_times,
        tiff_with_a_tile_of_another_type,
        tiff_of_rationals,
        bmp_of_ended_lines,
        jpeg_of_scans,
        jpeg_of_fill_bytes,
        jpeg_of_markers,
        png_of_chunks,
        png_of_exif,
        gif_of_comments,
        webp_of_much_memory,
    )
}
