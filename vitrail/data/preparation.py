"""From one picture as it was given to what the model takes: the same bits for predict, embed and inspect."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.bad_image import BadImage, OutsideUnits
from vitrail.data.inputs import Input, Prepared
from vitrail.data.transforms import EvaluationTransform


class Preparation:
    """Reads pictures and makes a model's input of them."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._shape = (*preprocessing.rows_columns, len(preprocessing.mean))
        self._transform = EvaluationTransform(preprocessing)
        self.normalise = ArrayNormaliser(preprocessing)

    def __call__(self, batch: Sequence[Input]) -> tuple[np.ndarray, list[str | None]]:
        """Gives float32 [pictures, channels, rows, columns] of those that can be read, and for each of the batch why
        it cannot, or None."""
        pixels = np.empty((len(batch), *self._shape), self._transform.dtype)
        errors: list[str | None] = []
        ready: dict[int, np.ndarray] = {}
        good = 0
        for each in batch:
            try:
                content = each.read()
                if isinstance(content, Prepared):
                    ready[good], pixels[good] = self._fitting(content), 0
                else:
                    pixels[good] = self.pixels(content)
                good += 1
                errors.append(None)
            except BadImage as error:
                errors.append(str(error))
            except MemoryError:
                errors.append("does not fit into memory")
        images = self.normalise(pixels[:good])
        for place, values in ready.items():
            images[place] = values
        return images, errors

    def pixels(self, content: bytes | np.ndarray | Image.Image) -> np.ndarray:
        """Gives [rows, columns, channels] as the model sees it, resized and cropped: uint8, or float32 from 0 to 1."""
        try:
            return self._transform(content)
        except OutsideUnits as error:
            if not isinstance(content, np.ndarray):
                raise
            raise BadImage(
                "is of floats outside 0..1, so not of pixels; what is prepared for the model already is given as "
                "vitrail.Prepared(...)"
            ) from error

    def _fitting(self, content: Prepared) -> np.ndarray:
        rows, columns, channels = self._shape
        if content.values.shape != (channels, rows, columns):
            raise BadImage(
                f"is prepared input of shape {content.values.shape}, where the model takes {(channels, rows, columns)}"
            )
        return content.values


class ArrayNormaliser:
    """Makes float32 [batch, channels, rows, columns] of pixels [batch, rows, columns, channels], without torch.

    The operations and their order (bytes by 255, less mean, by std) are those of `data.loader.Normaliser`: the same
    bits. There are two because that one is made of torch, so that bytes are what crosses to the model's device, and an
    exported model is run without importing torch at all.
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
