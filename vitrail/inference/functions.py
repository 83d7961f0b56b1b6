"""Prediction from Python: a model in memory, or anything that MODEL means on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.inference.choose import open_engine
from vitrail.inference.engines import Engine
from vitrail.inference.inputs import several
from vitrail.inference.predictor import Predictor, default_workers
from vitrail.models.prediction import Prediction

if TYPE_CHECKING:
    from torch import nn


def predict(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    top: int = 5,
    engine: str | None = None,
    batch_size: int | None = None,
) -> list[Prediction]:
    """The most likely classes of pictures, in order; one that cannot be read says why in `error`.

    Pictures are paths (files, folders, globs, archives), bytes of an image file, Pillow images, arrays
    [rows, columns, channels], tensors [channels, rows, columns], or lists of these.
    """
    return Predictor(_engine(model, images, engine), batch_size).predict(images, top)


def embed(
    model: "nn.Module | str | Path", images: Any, *, engine: str | None = None, batch_size: int | None = None
) -> np.ndarray:
    """The features [pictures, width] of pictures, which may be all that `predict` takes."""
    return Predictor(_engine(model, images, engine), batch_size).embed(images)


def _engine(model: Any, images: Any, engine: str | None) -> Engine:
    workers = default_workers(single=not several(images))
    if isinstance(model, (str, Path)):
        return open_engine(model, engine, workers=workers)
    from vitrail.inference.engines.torch import TorchEngine

    return TorchEngine(model, workers)
