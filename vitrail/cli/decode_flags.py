"""The flags that limit how pictures of strangers are decoded, shared by all commands that read pictures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.data.decode_pool import DecodeLimits


@dataclass(frozen=True)
class Decoding:
    """The flags --formats, --decode-seconds and --decode-mb."""

    formats: str | None = None
    """The formats of image files that are read, such as jpeg,png; files in other formats are refused. By default all:
    jpeg, png, webp, gif, bmp, tiff, avif, jpeg2000, ppm, tga, ico, pcx, qoi, sgi, npy, and heif with pillow-heif."""
    decode_seconds: float = 60.0
    """The longest time that decoding one picture may take, in seconds; one that takes longer is refused."""
    decode_mb: float = 4096.0
    """The most memory that decoding one picture may take, in MB; one that takes more is refused. Linux only."""

    def limits(self) -> "DecodeLimits":
        """Returns the limits that the flags ask for."""
        from vitrail.data.decode_pool import DecodeLimits
        from vitrail.data.file_formats import read_formats

        return DecodeLimits(self.decode_seconds, self.decode_mb, read_formats(self.formats))
