"""Prediction from Python: a model in memory, or anything that MODEL means on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from vitrail.data.inputs import Pictures, from_memory, several
from vitrail.data.preparation import Preparation
from vitrail.errors import UserError
from vitrail.inference.choose import open_engine
from vitrail.inference.engines import Engine
from vitrail.inference.jobs.embeddings import EmbeddingRows
from vitrail.inference.jobs.job import JobRequest, JobResult, write
from vitrail.inference.jobs.outputs import OutputFile
from vitrail.inference.jobs.predictions import PredictionRows
from vitrail.inference.predictor import Predictor, default_workers
from vitrail.tasks.base import Asked, Prediction

if TYPE_CHECKING:
    import torch
    from torch import nn


@overload
def predict(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    top: int = 5,
    engine: str | None = None,
    batch_size: int | None = None,
    out: None = None,
) -> list[Prediction]: ...


@overload
def predict(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    top: int = 5,
    engine: str | None = None,
    batch_size: int | None = None,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
) -> JobResult: ...


def predict(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    top: int = 5,
    engine: str | None = None,
    batch_size: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> list[Prediction] | JobResult:
    """Returns the most likely classes of pictures, in order; one that cannot be read says why in `error`.

    With `out` they are written to a file instead, as `vitrail predict --out` writes them, and a summary is returned.

    Args:
        model: A model, or all that MODEL means on the command line: a path, hf:owner/name, a name such as Ti/16.
        images: Paths (files, folders, globs, archives), bytes of an image file, Pillow images, arrays
            [rows, columns, channels], tensors [channels, rows, columns], or lists of these. Floats are from 0 to 1;
            what is prepared for the model already is given as `vitrail.Prepared(tensor)`.
        top: Classes a picture.
        engine: What runs the model: torch, onnxruntime, openvino, or auto, which measures and takes the fastest.
        batch_size: Pictures at a time.
        out: A .csv, .jsonl or .parquet file, written as answers come: any number of pictures takes the same memory.
            Pictures must have paths.
        resume: Go on with `out`: what it has is not done again, however it was stopped.
        overwrite: Replace what is there.
    """
    if out is None:
        _check_no_file(resume, overwrite)
        return Predictor(_engine(model, images, engine), batch_size).predict(images, Asked(top))
    output = OutputFile(Path(out), PredictionRows.formats, resume, overwrite)
    request = JobRequest(model, Pictures.of_caller(images), engine, batch_size=batch_size)
    return write(request, output, PredictionRows(Asked(top)))


@overload
def embed(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    engine: str | None = None,
    batch_size: int | None = None,
    out: None = None,
) -> np.ndarray: ...


@overload
def embed(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    engine: str | None = None,
    batch_size: int | None = None,
    out: str | Path,
    resume: bool = False,
    overwrite: bool = False,
) -> JobResult: ...


def embed(
    model: "nn.Module | str | Path",
    images: Any,
    *,
    engine: str | None = None,
    batch_size: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> np.ndarray | JobResult:
    """Returns the features [pictures, width] of pictures; one that cannot be read is a UserError.

    With `out` they are written to a file instead, as `vitrail embed --out` writes them, and a summary is returned; a
    picture that cannot be read has a row that says why.

    Args:
        model: As of `predict`.
        images: All that `predict` takes.
        engine: As of `predict`.
        batch_size: Pictures at a time.
        out: A .parquet, .npy or .csv file, written as features come. Pictures must have paths.
        resume: Go on with `out`: what it has is not done again, however it was stopped.
        overwrite: Replace what is there.
    """
    if out is None:
        _check_no_file(resume, overwrite)
        return Predictor(_engine(model, images, engine), batch_size).embed(images)
    output = OutputFile(Path(out), EmbeddingRows.formats, resume, overwrite)
    request = JobRequest(model, Pictures.of_caller(images), engine, batch_size=batch_size)
    return write(request, output, EmbeddingRows())


def preprocess(model: "nn.Module", images: Any) -> "torch.Tensor":
    """What the model is given of pictures, (pictures, channels, rows, columns) on its device: prepared as `predict`
    prepares them, so that `model(vitrail.preprocess(model, "photo.jpg"))` are the logits of its answer. Takes all that
    `predict` takes; one that cannot be read is a UserError."""
    import torch

    from vitrail.inference.engines.torch import TorchEngine

    inputs = list(from_memory(images))
    prepared, errors = Preparation(TorchEngine(model).facts.preprocessing)(inputs)
    for place, (each, error) in enumerate(zip(inputs, errors, strict=True)):
        if error is not None:
            raise UserError(f"{each.path or f'picture {place}'}: {error}")
    return torch.from_numpy(prepared).to(next(model.parameters()).device)


def _check_no_file(resume: bool, overwrite: bool) -> None:
    if resume or overwrite:
        raise UserError("resume and overwrite say what becomes of a file: give out=FILE with them")


def _engine(model: Any, images: Any, engine: str | None) -> Engine:
    workers = default_workers(single=not several(images))
    if isinstance(model, (str, Path)):
        return open_engine(model, engine, workers=workers)
    from vitrail.inference.engines.torch import TorchEngine

    return TorchEngine(model, workers)
