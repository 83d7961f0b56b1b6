"""An uploaded image: what is looked at before any of it is decoded, and how it becomes a model's input."""

import io

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.decode import BadImage
from vitrail.data.deep import is_deep_colour
from vitrail.data.preparation import ArrayNormaliser
from vitrail.data.transforms import EvaluationTransform
from vitrail.serving.refusals import Refusal

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Fewer than a data set may hold: what strangers send is read by as little code as serves."""
_BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
_DEEP = 8
"""Pictures of more than 8 bits a channel are rescaled in float64, so they may have so many times fewer pixels."""
_MOST_SCANS = 200
"""Of a progressive JPEG, which has about ten. A few megabytes of empty ones would keep a decoder busy for hours."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_LONGEST_SIDE = 65_535


class Preparer:
    """Bytes of an image file -> float32 [channels, rows, columns]; exactly what `vitrail predict` feeds the model."""

    def __init__(self, preprocessing: Preprocessing, max_pixels: int):
        self.max_pixels = max_pixels
        self.deep = preprocessing.range is not None
        self.transform = EvaluationTransform(preprocessing, max_pixels=max_pixels)
        self._normalise = ArrayNormaliser(preprocessing)

    def __call__(self, content: bytes | np.ndarray) -> np.ndarray:
        return content if isinstance(content, np.ndarray) else self.normalised(self.pixels(content))

    def pixels(self, content: bytes) -> np.ndarray:
        """[rows, columns, channels] as the model sees it: resized and cropped; uint8, or float32 from 0 to 1."""
        # Where all bits are kept, colour of 16 bits takes as much memory as other deep pictures.
        check(content, self.max_pixels // _DEEP if self.deep and is_deep_colour(content) else self.max_pixels)
        try:
            return self.transform(content)
        except BadImage as error:
            raise Refusal(400, "bad_image", f"the image {error}") from error

    def normalised(self, pixels: np.ndarray) -> np.ndarray:
        return self._normalise(pixels[None])[0]


def check(content: bytes, max_pixels: int) -> None:
    """Refuse by the header alone what is of another format, too large, or made to take very long."""
    kind = sniff(content)
    if kind is None:
        names = ", ".join(FORMATS)
        empty = "the image is empty (zero bytes)" if not content else f"this is none of the image formats {names}"
        raise Refusal(415 if content else 400, "unsupported_format" if content else "bad_image", empty)
    if kind == "JPEG" and content.count(b"\xff\xda") > _MOST_SCANS:
        raise Refusal(400, "bad_image", f"the image has more than {_MOST_SCANS} scans: no camera makes such a JPEG")
    try:
        with Image.open(io.BytesIO(content), formats=(kind,)) as image:
            columns, rows = image.size
            mode, tile = image.mode, _tile(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large("more pixels than any picture has", max_pixels) from None
    except Exception as error:  # Pillow's readers raise nearly anything on bad bytes
        raise Refusal(400, "bad_image", f"the image cannot be read: its {kind} header is damaged") from error
    most = max_pixels // _DEEP if mode.startswith(("I", "F")) else max_pixels
    if rows * columns > most or max(rows, columns) > _LONGEST_SIDE:
        raise _too_large(f"{columns} x {rows} pixels", most)
    if tile > most:
        raise _too_large(f"tiles of {tile} pixels", most)


def sniff(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return next((kind for start, kind in _BEGINNINGS.items() if content.startswith(start)), None)


def _tile(image: Image.Image) -> int:
    """Pixels of a TIFF's tile, which is decoded whole however small the picture is."""
    tags = getattr(image, "tag_v2", None) or {}
    sides = [tags.get(each, 1) for each in (_TILE_WIDTH, _TILE_LENGTH)]
    return sides[0] * sides[1] if all(isinstance(side, int) for side in sides) else 0


def _too_large(claimed: str, limit: int) -> Refusal:
    return Refusal(413, "image_too_large", f"the image claims {claimed}; the limit is {limit / 1e6:g} megapixels")
