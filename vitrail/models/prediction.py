"""What a model says about a picture. No torch here: predictions are plain facts."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Guess:
    """A class and how likely it is."""

    label: str
    description: str
    """Words for a label that is a code; empty where there are none."""
    score: float
    """The softmax of the logits, a fraction of 1."""


@dataclass(frozen=True)
class Prediction:
    """The most likely classes of one picture, the best first; or why there are none."""

    path: str | None
    """None for a picture that came from memory."""
    top: tuple[Guess, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "top": [dict(vars(guess)) for guess in self.top], "error": self.error}


class Predicts:
    """Gives a model `predict`. How pictures are read and engines run is above what a model is, so it asks the public
    API, the one place that knows every part."""

    def predict(self, images: Any, top: int = 5) -> list[Prediction]:
        """The most likely classes of pictures: paths, bytes, Pillow images, arrays, tensors, or lists of them."""
        return importlib.import_module("vitrail").predict(self, images, top=top)
