"""Recognising plain image files: those for which header and size alone bound the time and memory of decoding.

Most photos and drawings that cameras and programs write are plain: JPEG, PNG, lossy WebP and uncompressed BMP. They are
decoded directly, in the thread that needs them. A file with anything unusual is not plain and is decoded, to the same
pixels, by a process that can be ended (`decode_pool.py`). The check itself takes a bounded number of steps and does not
use Pillow, whose readers a hostile file can keep busy for minutes.
"""

import struct

# The most that a plain file may have of each:
_MOST_PIXELS = 64_000_000
"""Pixels of 8 bits a channel; today's phones take 50 megapixels."""
_MOST_DEEP_PIXELS = _MOST_PIXELS // 8
"""Pixels of 16 bits a channel, fewer because they are rescaled in float64."""
_MOST_WEBP_PIXELS = 8_000_000
"""Pixels of a WebP; Pillow needs about 22 bytes of memory for each."""
_MOST_PIXELS_OF_SCANS = 200_000_000
"""Pixels times scans of a progressive JPEG. A scan without data takes 1.4 ns a pixel; data are bounded by the file."""
_MOST_SEGMENTS = 64
"""Segments before the data of a JPEG, or in a WebP. Each takes Pillow microseconds, and in a JPEG has up to 64 kB."""
_MOST_CHUNKS = 8192
"""Chunks of a PNG; many programs write its data in chunks of 8 kB."""
_LONGEST_TABLE = 4096
"""Bytes of a JPEG's segment that is neither a comment nor application data."""
_MOST_ENTRIES = 128
"""Entries in the first directory of EXIF data."""
_MOST_METADATA = 1 << 18
"""Bytes of all entries of that directory together."""
# Bytes of a value by its type in EXIF data.
_UNIT_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


def is_plain(content: bytes) -> bool:
    """Tells whether header and size of a file bound the time and memory of decoding it.

    Arrays (.npy) are plain too, since their values are not compressed.
    """
    try:
        if content.startswith(b"\xff\xd8\xff"):
            return _is_plain_jpeg(content)
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            return _is_plain_png(content)
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            return _is_plain_webp(content)
        if content.startswith(b"BM"):
            return _is_plain_bmp(content)
    except (struct.error, IndexError):  # cut off within its header
        return False
    return content[:6] == b"\x93NUMPY"


def _is_plain_jpeg(content: bytes) -> bool:
    """Tells whether a JPEG is baseline with one scan, or progressive with few scans for its size; with Huffman coding
    and few segments before the data."""
    place, frame, metadata = 2, None, 0
    for _ in range(_MOST_SEGMENTS):
        mark, marker, length = struct.unpack_from(">BBH", content, place)
        if mark != 0xFF or length < 2:
            return False
        segment = place + 4
        if marker in (0xC0, 0xC1, 0xC2):
            bits, rows, columns, channels = struct.unpack_from(">BHHB", content, segment)
            if frame is not None or bits != 8 or not rows or not columns or channels not in (1, 3):
                return False
            frame = marker == 0xC2, rows * columns, channels
        elif marker == 0xDA:
            break
        elif 0xE0 <= marker <= 0xEF or marker == 0xFE:
            if content.startswith((b"Exif\0\0", b"MPF\0"), segment):
                metadata += 1
                start = segment + (6 if content[segment : segment + 1] == b"E" else 4)
                if metadata > 2 or not _is_plain_directory(content[start : place + 2 + length]):
                    return False
        elif marker not in (0xC4, 0xDB, 0xDD) or length > _LONGEST_TABLE:  # tables and the restart interval
            return False
        place += 2 + length
    else:
        return False
    if frame is None:
        return False
    progressive, pixels, channels = frame
    if pixels > _MOST_PIXELS:
        return False
    if not progressive:
        return content[place + 4] == channels  # if the first scan has all channels, the decoder reads no other scan
    return pixels * content.count(b"\xff\xda", place) <= _MOST_PIXELS_OF_SCANS


def _is_plain_png(content: bytes) -> bool:
    """Tells whether a PNG is not interlaced, not animated, and has few chunks."""
    length, kind, columns, rows, bits, _, _, _, interlaced = struct.unpack_from(">I4sIIBBBBB", content, 8)
    if kind != b"IHDR" or length != 13 or interlaced:
        return False
    if rows * columns > (_MOST_DEEP_PIXELS if bits > 8 else _MOST_PIXELS):
        return False
    place, metadata = 33, 0
    for _ in range(_MOST_CHUNKS):
        if place + 8 > len(content):
            return True  # the file is cut off here, where decoding will end too
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"IEND":
            return True
        if kind in (b"acTL", b"fcTL", b"fdAT", b"IHDR"):
            return False
        text = content[place + 8 : place + 24].lower()
        if kind in (b"tEXt", b"zTXt", b"iTXt") and text.startswith((b"raw profile type", b"exif")):
            return False  # EXIF data stored as text
        if kind == b"eXIf":
            metadata += 1
            if metadata > 1 or not _is_plain_directory(content[place + 8 : place + 8 + length]):
                return False
        place += 12 + length
    return False


def _is_plain_webp(content: bytes) -> bool:
    """Tells whether a WebP is lossy, not animated and without transparency.

    Lossless data, which transparency is coded as too, can make a decoder need much memory with few bytes.
    """
    kind = content[12:16]
    if webp_pixels(content) > _MOST_WEBP_PIXELS or kind not in (b"VP8 ", b"VP8X"):
        return False
    if kind == b"VP8 ":
        return content[23:26] == b"\x9d\x01\x2a"
    if content[20] & 0x12:  # transparency, animation
        return False
    place, metadata = 30, 0
    for _ in range(_MOST_SEGMENTS):
        if place + 8 > len(content):
            return True
        kind, length = struct.unpack_from("<4sI", content, place)
        if kind not in (b"VP8 ", b"ICCP", b"XMP ", b"EXIF"):
            return False
        if kind == b"EXIF":
            metadata += 1
            data = content[place + 8 : place + 8 + length]
            if metadata > 1 or not _is_plain_directory(data.removeprefix(b"Exif\0\0")):
                return False
        place += 8 + length + length % 2
    return False


def webp_pixels(content: bytes) -> int:
    """Returns the number of pixels that the header of a WebP states."""
    kind = content[12:16]
    if kind == b"VP8X":
        columns, rows = (int.from_bytes(content[start : start + 3], "little") + 1 for start in (24, 27))
    elif kind == b"VP8L":
        (sizes,) = struct.unpack_from("<I", content, 21)
        columns, rows = (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
    else:
        columns, rows = (side & 0x3FFF for side in struct.unpack_from("<HH", content, 26))
    return columns * rows


def _is_plain_bmp(content: bytes) -> bool:
    """Tells whether a BMP is not compressed, so that all its pixels are in the file."""
    size, columns, rows, _, bits, compression = struct.unpack_from("<IiiHHI", content, 14)
    pixels = columns * abs(rows)
    return (
        size in (40, 108, 124)
        and compression == 0
        and columns > 0
        and pixels <= _MOST_PIXELS
        and pixels * bits <= 8 * len(content)
        and bits > 0
    )


def _is_plain_directory(data: bytes) -> bool:
    """Tells whether the first directory of EXIF data has few entries with little data."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        return False
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, start)
    if count > _MOST_ENTRIES:
        return False
    size = 0
    for place in range(start + 2, start + 2 + 12 * count, 12):
        kind, number = struct.unpack_from(f"{order}2xHI", data, place)
        size += _UNIT_SIZES.get(kind, 0) * number
    return size <= _MOST_METADATA
