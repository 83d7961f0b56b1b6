"""Predicts and embeds from Python, with a model in memory or anything that MODEL means on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from vitrail.data.inputs import Pictures, from_memory, several
from vitrail.data.preparation import Preparation
from vitrail.errors import UserError
from vitrail.inference.engine_selection import open_engine
from vitrail.inference.engines import Engine
from vitrail.inference.jobs.embeddings import EmbeddingRows
from vitrail.inference.jobs.job import JobRequest, JobResult, write_job
from vitrail.inference.jobs.outputs import OutputFile
from vitrail.inference.jobs.predictions import PredictionRows
from vitrail.inference.predictor import Predictor, prediction_workers
from vitrail.tasks.answers import AnswerOptions, Prediction

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
    tiles: int = False,
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
    tiles: int = False,
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
    tiles: int = False,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> list[Prediction] | JobResult:
    """Predicts what pictures show, in the order in which they are given.

    Args:
        model: A model in memory, or anything that MODEL means on the command line: a path, hf:owner/name, or a name
            such as Ti/16.
        images: Paths (files, folders, globs, archives), the bytes of an image file, Pillow images, arrays [rows,
            columns, channels], tensors [channels, rows, columns], or lists of these. Floats are from 0 to 1. A tensor
            that is already prepared for the model is given as `vitrail.Prepared(tensor)`.
        top: The number of most likely classes in each answer.
        engine: What runs the model: torch, onnxruntime, openvino, or auto, which measures them and takes the fastest.
        batch_size: The number of pictures that are computed at a time; by default what suits the engine.
        tiles: For models that give the class of each pixel: True answers pictures from overlapping tiles of the size of
            the model's input, a number from tiles whose longer side has so many pixels. A picture that one tile covers
            is answered as a whole.
        out: A .csv, .jsonl or .parquet file that answers are written to as they come, so that any number of pictures
            takes the same memory. Pictures must then have paths.
        resume: Continue an `out` that exists: pictures that have a row are not done again, however the job was stopped.
        overwrite: Replace an `out` that exists.

    Returns:
        A list with one `Prediction` for each picture; one that cannot be read says why in `error`. With `out`, a
        `JobResult` that sums up what was written.

    Raises:
        UserError: The model, the engine or the output cannot be used, or there is no picture.
    """
    if out is None:
        _check_no_file(resume, overwrite)
        return Predictor(_engine(model, images, engine), batch_size, tiles=tiles).predict(images, AnswerOptions(top))
    output = OutputFile(Path(out), PredictionRows.formats, resume, overwrite)
    request = JobRequest(model, Pictures.of_caller(images), engine, batch_size=batch_size, tiles=tiles)
    return write_job(request, output, PredictionRows(AnswerOptions(top)))


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
    """Computes the features of pictures: what the model's head is given.

    Args:
        model: As for `predict`.
        images: As for `predict`.
        engine: As for `predict`.
        batch_size: As for `predict`.
        out: A .parquet, .npy or .csv file that features are written to as they come. Pictures must then have paths; a
            picture that cannot be read has a row that says why.
        resume: Continue an `out` that exists: pictures that have a row are not done again, however the job was stopped.
        overwrite: Replace an `out` that exists.

    Returns:
        The features, float32 [pictures, width]. With `out`, a `JobResult` that sums up what was written.

    Raises:
        UserError: The model, the engine or the output cannot be used; without `out`, also if a picture cannot be read.
    """
    if out is None:
        _check_no_file(resume, overwrite)
        return Predictor(_engine(model, images, engine), batch_size).embed(images)
    output = OutputFile(Path(out), EmbeddingRows.formats, resume, overwrite)
    request = JobRequest(model, Pictures.of_caller(images), engine, batch_size=batch_size)
    return write_job(request, output, EmbeddingRows())


def preprocess(model: "nn.Module", images: Any) -> "torch.Tensor":
    """Prepares pictures as `predict` does, so that `model(vitrail.preprocess(model, "photo.jpg"))` gives the logits.

    Args:
        model: A model in memory; its card says how pictures are prepared.
        images: All that `predict` takes.

    Returns:
        The model's input, [pictures, channels, rows, columns], float32 on the model's device.

    Raises:
        UserError: A picture cannot be read.
    """
    import torch

    from vitrail.inference.engines.torch import TorchEngine

    inputs = list(from_memory(images))
    prepared, errors, _ = Preparation(TorchEngine(model).facts.preprocessing)(inputs)
    for place, (each, error) in enumerate(zip(inputs, errors, strict=True)):
        if error is not None:
            raise UserError(f"{each.path or f'picture {place}'}: {error}")
    return torch.from_numpy(prepared).to(next(model.parameters()).device)


def _check_no_file(resume: bool, overwrite: bool) -> None:
    """Raises a UserError for the options that need a file, where there is none."""
    if resume or overwrite:
        raise UserError("resume and overwrite say what becomes of a file: give out=FILE with them")


def _engine(model: Any, images: Any, engine: str | None) -> Engine:
    """Opens the engine of a model in memory or by its MODEL, with more workers for several pictures."""
    workers = prediction_workers(single=not several(images))
    if isinstance(model, (str, Path)):
        return open_engine(model, engine, workers=workers)
    from vitrail.inference.engines.torch import TorchEngine

    return TorchEngine(model, workers)
