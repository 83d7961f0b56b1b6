"""HEIC and other HEIF pictures, which phones take: read by the package pillow-heif if it is installed."""

import functools

ENDINGS = (".heic", ".heif")
# The remedy that messages give if the package is missing.
MISSING = "HEIC needs the package pillow-heif (pip install pillow-heif); or save the pictures as JPEG"
# Kinds of HEIF files, as their headers state them.
_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))


def is_heif(content: bytes) -> bool:
    """Tells whether a file is a HEIF picture, by its first bytes. AVIF, which begins alike, is not: Pillow reads it."""
    if content[4:8] != b"ftyp":
        return False
    length = min(int.from_bytes(content[:4], "big"), 256)
    brands = {content[8:12], *(content[start : start + 4] for start in range(16, length, 4))}
    return bool(brands & _BRANDS) or (content[8:12] in (b"mif1", b"msf1") and not brands & {b"avif", b"avis"})


@functools.cache
def readable() -> bool:
    """Registers HEIF with Pillow. Returns False if the package pillow-heif is not installed."""
    try:
        import pillow_heif  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True
