"""Preparing pictures for a model: reading, transforming and normalising them, alike for predict, embed and inspect."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.bad_image import BadImage, OutsideUnits
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits
from vitrail.data.inputs import Input, Prepared
from vitrail.data.transforms import EvaluationTransform
from vitrail.masks_and_boxes import Frame


class PreparedBatch(NamedTuple):
    """A batch of pictures, ready for a model."""

    images: np.ndarray
    """Those that can be read, float32 [pictures, channels, rows, columns]."""
    errors: list[str | None]
    """For each input the reason why it cannot be read, or None."""
    frames: list[Frame | None]
    """For each input the map between the picture and the model's input; None if it cannot be read."""


class Preparation:
    """Reads pictures, decodes them within limits, and makes the model's input of them."""

    def __init__(self, preprocessing: Preprocessing, limits: DecodeLimits | None = None) -> None:
        self._shape = (*preprocessing.rows_columns, len(preprocessing.mean))
        self._transform = EvaluationTransform(preprocessing)
        self._decoder = BoundedDecoder(limits)
        self.normalise = ArrayNormaliser(preprocessing)

    def __call__(self, batch: Sequence[Input]) -> PreparedBatch:
        """Prepares a batch of pictures."""
        pixels = np.empty((len(batch), *self._shape), self._transform.dtype)
        errors: list[str | None] = []
        frames: list[Frame | None] = []
        ready: dict[int, np.ndarray] = {}
        good = 0
        for picture in batch:
            try:
                content = picture.read()
                if isinstance(content, Prepared):
                    ready[good], pixels[good] = self._fitting(content), 0
                    frame = Frame.of(self._shape[:2], self._shape[:2])
                else:
                    pixels[good], frame = self.framed(content)
                good += 1
                errors.append(None)
                frames.append(frame)
            except BadImage as error:
                errors.append(str(error))
                frames.append(None)
            except MemoryError:
                errors.append("does not fit into memory")
                frames.append(None)
        images = self.normalise(pixels[:good])
        for row, values in ready.items():
            images[row] = values
        return PreparedBatch(images, errors, frames)

    def pixels(self, content: bytes | np.ndarray | Image.Image) -> np.ndarray:
        """Decodes, resizes and crops a picture to what the model sees, before it is normalised.

        Returns uint8 or float32 from 0 to 1, [rows, columns, channels]. Raises BadImage if it cannot be decoded.
        """
        return self.framed(content)[0]

    def framed(self, content: bytes | np.ndarray | Image.Image) -> tuple[np.ndarray, Frame]:
        """Returns the pixels, as `pixels` does, and the map between the picture and these pixels."""
        try:
            found: dict[str, Any] = self._decoder(self._transform.with_size, content)
            return found["pixels"], self._transform.frame((found["rows"], found["columns"]))
        except OutsideUnits as error:
            if not isinstance(content, np.ndarray):
                raise
            raise BadImage(
                "has floats outside 0..1, so they are not pixels; give input that is prepared for the model already as "
                "vitrail.Prepared(...)"
            ) from error

    def _fitting(self, content: Prepared) -> np.ndarray:
        """Returns the values of prepared input. Raises BadImage if their shape is not that of the model's input."""
        rows, columns, channels = self._shape
        if content.values.shape != (channels, rows, columns):
            raise BadImage(
                f"is prepared input of shape {content.values.shape}, where the model takes {(channels, rows, columns)}"
            )
        return content.values


class ArrayNormaliser:
    """Normalises pixels [batch, rows, columns, channels] to float32 [batch, channels, rows, columns], without torch.

    The operations and their order (bytes divided by 255, minus mean, divided by std) are those of
    `data.loader.Normaliser`, and so are the results, to the last bit. That one computes with torch on the model's
    device; this one serves exported models, which are run without importing torch.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.mean = np.array(preprocessing.mean, np.float32)[:, None, None]
        self.std = np.array(preprocessing.std, np.float32)[:, None, None]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        images = pixels.transpose(0, 3, 1, 2).astype(np.float32, order="C")
        if pixels.dtype == np.uint8:
            images /= np.float32(255)
        images -= self.mean
        images /= self.std
        return images
