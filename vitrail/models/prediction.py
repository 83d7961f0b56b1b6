"""Gives models the methods `predict` and `preprocess`."""

import importlib
from typing import Any


class Predicts:
    """Adds `predict` and `preprocess` to a model. They call the public functions of the same names, because models may
    not import the parts that read pictures and run engines."""

    def predict(self, images: Any, top: int = 5) -> list[Any]:
        """Predicts what pictures show; see `vitrail.predict`.

        Args:
            images: paths, bytes, Pillow images, arrays or tensors, one or a list.
            top: how many of the most likely classes to return, if the model tells classes apart.

        Returns:
            A list with the answer to each picture.
        """
        return importlib.import_module("vitrail").predict(self, images, top=top)

    def preprocess(self, images: Any) -> Any:
        """Turns pictures into the tensor that `forward` takes: (pictures, channels, rows, columns). images: one picture
        or a list."""
        return importlib.import_module("vitrail").preprocess(self, images)
