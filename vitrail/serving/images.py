"""An uploaded image file: the checks before any of it is decoded, and the way to a model's input."""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.bad_image import BadImage, TooCostly, TooLarge, WrongFormat
from vitrail.data.bit_depth import is_deep_colour
from vitrail.data.decode import open_header
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits
from vitrail.data.preparation import ArrayNormaliser
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.serving.errors import ApiError

_DEEP = 8
"""How many times fewer pixels a picture of more than 8 bits a channel may have: it is rescaled in float64."""
_MOST_SCANS = 200
"""The most scans of a progressive JPEG. Real ones have about ten."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_LONGEST_SIDE = 65_535
_STATUS = {
    TooLarge: (413, "image_too_large"),
    TooCostly: (413, "image_too_costly"),
    WrongFormat: (415, "unsupported_format"),
}
"""The status and the code that a client is told for a file that cannot be used; by default 400 bad_image."""


class FramedInput(NamedTuple):
    """A model's input, and how it lies in the picture that it was made of."""

    image: np.ndarray
    """float32 [channels, rows, columns]"""
    frame: Frame | None
    """The map between the picture and the input; None for an input that was sent as it is."""


class Preparer:
    """Turns the bytes of an image file into a model's input, exactly as `vitrail predict` does.

    `preprocessing` is the model's. A file that claims more than `max_pixels` pixels is refused before it is decoded.
    `decoder` says which files are decoded by another process, and the limits there; without one they are those of
    `vitrail predict`.
    """

    def __init__(self, preprocessing: Preprocessing, max_pixels: int, decoder: BoundedDecoder | None = None):
        self._decode = UploadTransform(preprocessing, max_pixels)
        self._framed = FramedUpload(self._decode)
        self._decoder = decoder or BoundedDecoder(DecodeLimits())
        self._normalise = ArrayNormaliser(preprocessing)

    def __call__(self, content: bytes | np.ndarray) -> FramedInput:
        """Returns the model's input; an array is an input already, and stays as it is."""
        if isinstance(content, np.ndarray):
            return FramedInput(content, None)
        found = self._decoded(self._framed, content)
        size = (found["rows"], found["columns"])
        return FramedInput(self.normalised(found["pixels"]), self._decode.transform.frame(size))

    def is_apart(self, content: bytes | np.ndarray) -> bool:
        """Whether a file is decoded by another process; raises an ApiError for a format that is not read."""
        try:
            return isinstance(content, bytes) and self._decoder.is_apart(content)
        except BadImage as error:
            raise _api_error(error) from error

    def pixels(self, content: bytes) -> np.ndarray:
        """Decodes, resizes and crops a file to [rows, columns, channels]: uint8, or float32 from 0 to 1."""
        return self._decoded(self._decode, content)

    def _decoded(self, decode: Any, content: bytes) -> Any:
        """Applies a function to a file; raises an ApiError where that fails."""
        try:
            return self._decoder(decode, content)
        except BadImage as error:
            raise _api_error(error) from error
        except UserError as error:
            raise ApiError(
                503, "not_ready", "the server cannot start what decodes such images", retry_after=10
            ) from error

    def normalised(self, pixels: np.ndarray) -> np.ndarray:
        """Returns what `pixels` gave as the model's input: float32 [channels, rows, columns]."""
        return self._normalise(pixels[None])[0]


class UploadTransform:
    """Checks the header of an uploaded file, then decodes, resizes and crops it; in any process, raising BadImage."""

    def __init__(self, preprocessing: Preprocessing, max_pixels: int):
        self.max_pixels = max_pixels
        self.deep = preprocessing.range is not None
        self.transform = EvaluationTransform(preprocessing, max_pixels=max_pixels)

    def __call__(self, content: bytes) -> np.ndarray:
        """Returns [rows, columns, channels]: uint8, or float32 from 0 to 1."""
        self.check(content)
        return self.transform(content)

    def check(self, content: bytes) -> None:
        """Raises a BadImage for a file that must not be decoded."""
        # Where all bits are kept, colour of 16 bits takes as much memory as other deep pictures.
        check_header(content, self.max_pixels // _DEEP if self.deep and is_deep_colour(content) else self.max_pixels)


class FramedUpload:
    """Does what an UploadTransform does, and keeps the picture's own size."""

    def __init__(self, upload: UploadTransform):
        self.upload = upload

    def __call__(self, content: bytes) -> dict[str, Any]:
        """Returns the pixels, and the picture's rows and columns."""
        self.upload.check(content)
        return self.upload.transform.with_size(content)


def check_header(content: bytes, max_pixels: int) -> None:
    """Raises a BadImage for a file of too many pixels, or made to take very long to decode. Reads the header alone."""
    if content.startswith(b"\xff\xd8") and content.count(b"\xff\xda") > _MOST_SCANS:
        raise BadImage(f"has more than {_MOST_SCANS} scans: no camera makes such a JPEG")
    try:
        with open_header(content) as image:
            columns, rows = image.size
            mode, tile = image.mode, _tile(image)
    except TooLarge:
        raise _too_large("more pixels than any picture has", max_pixels) from None
    except (BadImage, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise nearly anything on bad bytes
        raise BadImage("cannot be read: its header is damaged") from error
    most = max_pixels // _DEEP if mode.startswith(("I", "F")) else max_pixels
    if rows * columns > most or max(rows, columns) > _LONGEST_SIDE:
        raise _too_large(f"{columns} x {rows} pixels", most)
    if tile > most:
        raise _too_large(f"tiles of {tile} pixels", most)


def _tile(image: Image.Image) -> int:
    """Returns the pixels of one tile of a TIFF, which is decoded whole however small the picture is; 0 or 1 if none."""
    tags = getattr(image, "tag_v2", None) or {}
    sides = [tags.get(each, 1) for each in (_TILE_WIDTH, _TILE_LENGTH)]
    return sides[0] * sides[1] if all(isinstance(side, int) for side in sides) else 0


def _too_large(claimed: str, limit: int) -> TooLarge:
    return TooLarge(f"claims {claimed}; the limit is {limit / 1e6:g} megapixels")


def _api_error(error: BadImage) -> ApiError:
    status, code = _STATUS.get(type(error), (400, "bad_image"))
    return ApiError(status, code, f"the image {error}")
