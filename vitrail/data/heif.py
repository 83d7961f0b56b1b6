"""HEIC and other HEIF pictures, as phones take them: read by the package pillow-heif where it is installed."""

import functools

ENDINGS = (".heic", ".heif")
MISSING = "HEIC needs the package pillow-heif (pip install pillow-heif); or save the pictures as JPEG"
_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))


def is_heif(content: bytes) -> bool:
    """Tells a HEIF picture by its first bytes; AVIF, which Pillow reads itself, begins in the same way."""
    if content[4:8] != b"ftyp":
        return False
    length = min(int.from_bytes(content[:4], "big"), 256)
    brands = {content[8:12], *(content[place : place + 4] for place in range(16, length, 4))}
    return bool(brands & _BRANDS) or (content[8:12] in (b"mif1", b"msf1") and not brands & {b"avif", b"avis"})


@functools.cache
def readable() -> bool:
    """Makes Pillow read HEIF; False where the package for it is missing."""
    try:
        import pillow_heif  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True
