"""Runs a model over pictures: labels or features in the order of the pictures, using all processors.

Each worker takes a batch all the way: read, decode, normalise, run. While one waits for the disk or decodes, the others
keep the processors busy with the model. Workers do not wait for each other inside a layer, as the threads of one large
batch do. Only a few batches are in progress at a time, so a million pictures need no more memory than a hundred.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from vitrail.config import Preprocessing
from vitrail.data.decode_pool import DecodeLimits
from vitrail.data.inputs import Input, from_memory, put_back, writable
from vitrail.data.preparation import Preparation
from vitrail.errors import UserError
from vitrail.inference.engines import Engine, processors
from vitrail.inference.tiling import NOT_FINITE, TilePredictor
from vitrail.masks_and_boxes import Frame
from vitrail.tasks import task
from vitrail.tasks.answers import PLAIN, AnswerOptions, Prediction

MOST_WORKERS = 8
"""The largest number of workers that is chosen by default."""


@dataclass(frozen=True)
class Embedding:
    """The features of one picture, or why there are none."""

    path: str | None
    """The picture's path; None for one from memory."""
    vector: np.ndarray | None
    """The features, [width]."""
    error: str | None = None
    """Why the picture could not be read."""


@dataclass(frozen=True)
class _Result:
    """The output for one picture, or why there is none."""

    path: str | None
    output: np.ndarray | None
    error: str | None
    frame: Frame | None
    """The map between the picture and the model's input."""


_Finished = TypeVar("_Finished")


class Predictor:
    """An engine with the preparation of its pictures, which is the same code that evaluation uses.

    Args:
        engine: What runs the model.
        batch_size: The number of pictures computed at a time; None takes what suits the engine.
        decode_limits: What decoding a file may take.
        tiles: Whether large pictures are answered from tiles (`TilePredictor`): False, True, or their longer side.
    """

    def __init__(
        self,
        engine: Engine,
        batch_size: int | None = None,
        decode_limits: DecodeLimits | None = None,
        tiles: int = False,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise UserError(f"--batch-size must be at least 1, not {batch_size}")
        self.engine, self.batch_size = engine, batch_size or engine.batch_size
        self._prepare = Preparation(engine.facts.preprocessing, decode_limits)
        self._tiled = None if tiles is False else TilePredictor(engine, self.batch_size, tiles, decode_limits)

    def predict(self, images: Any, asked: AnswerOptions = PLAIN) -> list[Prediction]:
        """Predicts one picture or a list of any kind that `inputs.from_memory` takes. One that cannot be read says
        why."""
        return [each for batch in self.predictions(from_memory(images), asked) for each in batch]

    def embed(self, images: Any) -> np.ndarray:
        """Computes features, [pictures, width]; raises a UserError if a picture cannot be read."""
        found = [each for batch in self.embeddings(from_memory(images)) for each in batch]
        for place, each in enumerate(found):
            if each.vector is None:
                raise UserError(f"{each.path or f'picture {place}'}: {each.error}")
        vectors = [each.vector for each in found if each.vector is not None]
        return np.stack(vectors) if vectors else np.empty((0, self.engine.facts.features_width), np.float32)

    def predictions(self, inputs: Iterable[Input], asked: AnswerOptions = PLAIN) -> Iterator[list[Prediction]]:
        """Yields the task's predictions in the order of the inputs, one list for each batch."""
        if self._tiled is not None:
            yield from self._tiled.predictions(inputs, asked)
            return
        facts = self.engine.facts
        answer, meaning = task(facts.config.task).answer, facts.meaning
        answer.check(asked, meaning)

        def answered(each: _Result) -> Prediction:
            return answer.prediction(each.path, each.output, each.error, meaning, asked, each.frame)

        yield from self._stream(inputs, self.engine.outputs, answered)

    def embeddings(self, inputs: Iterable[Input]) -> Iterator[list[Embedding]]:
        """Yields the features in the order of the inputs, one list for each batch."""
        yield from self._stream(
            inputs, self.engine.features, lambda each: Embedding(each.path, each.output, each.error)
        )

    def _stream(
        self,
        inputs: Iterable[Input],
        run: Callable[[np.ndarray], np.ndarray],
        finish: Callable[[_Result], _Finished],
    ) -> Iterator[list[_Finished]]:
        """Yields the results of `run` on all inputs, in their order, one list for each batch.

        Args:
            inputs: the pictures.
            run: computes an output of a batch.
            finish: turns the output for one picture into its result; like `run`, it is called in the workers.
        """
        workers = self.engine.workers
        inputs = iter(inputs)
        first = list(islice(inputs, workers * self.batch_size))
        # A few pictures are divided evenly among the workers; with more, batches are full.
        size = min(self.batch_size, max(1, math.ceil(len(first) / workers)))
        waiting: deque[Future[list[_Finished]]] = deque()
        with self.engine.running():
            pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-predict")
            try:
                inputs = put_back(first, inputs)
                del first
                for batch in _batches(inputs, size):
                    waiting.append(pool.submit(self._work, batch, run, finish))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                # This also runs if the caller stops iterating early.
                pool.shutdown(wait=True, cancel_futures=True)

    def _work(
        self,
        batch: Sequence[Input],
        run: Callable[[np.ndarray], np.ndarray],
        finish: Callable[[_Result], _Finished],
    ) -> list[_Finished]:
        """Prepares one batch of pictures, runs the model on those that could be read, and finishes all."""
        images, errors, frames = self._prepare(batch)
        outputs = iter(run(images) if len(images) else ())
        results = []
        for each, error, frame in zip(batch, errors, frames, strict=True):
            output = next(outputs) if error is None else None
            if output is not None and not np.isfinite(output).all():  # damaged weights
                output, error = None, NOT_FINITE
            path = None if each.path is None else writable(each.path)
            results.append(finish(_Result(path, output, error, frame)))
        return results


def prepared_batches(inputs: Iterable[Input], preprocessing: Preprocessing, batch_size: int) -> Iterator[np.ndarray]:
    """Yields batches of prepared pictures [batch, channels, rows, columns]; pictures that cannot be read are left
    out."""
    prepare = Preparation(preprocessing)
    for batch in _batches(inputs, batch_size):
        images = prepare(batch).images
        if len(images):
            yield images


def prediction_workers(single: bool) -> int:
    """Returns how many workers to use: one for a single picture, which gets all processors; else one for each
    processor."""
    return 1 if single else min(processors(), MOST_WORKERS)


def _batches(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    """Yields the inputs in lists of `size`; the last may be shorter."""
    inputs = iter(inputs)
    while batch := list(islice(inputs, size)):
        yield batch
