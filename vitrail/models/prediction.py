"""What gives a model `predict` and `preprocess`."""

import importlib
from typing import Any


class Predicts:
    """Gives a model `predict` and `preprocess`. How pictures are read and engines run is above what a model is, so it
    asks the public API, the one place that knows every part."""

    def predict(self, images: Any, top: int = 5) -> list[Any]:
        """Answers pictures (paths, bytes, Pillow images, arrays, tensors, or lists of them) as the model's task has it:
        of classes, a list of `Prediction` with the `top` most likely of each."""
        return importlib.import_module("vitrail").predict(self, images, top=top)

    def preprocess(self, images: Any) -> Any:
        """Pictures as `forward` takes them: a tensor (pictures, channels, rows, columns) of a picture or a list."""
        return importlib.import_module("vitrail").preprocess(self, images)
