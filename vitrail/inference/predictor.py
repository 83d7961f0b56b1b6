"""From pictures to labels or features, in order, as fast as the machine goes.

Each worker takes a batch all the way: read, decode, normalise, run. While one waits for the disk or decodes, the others
keep the processors busy with the model, and no two of them wait for each other inside a layer, as the threads of one
large batch do. At most a few batches are under way, so a million pictures need no more memory than a hundred.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from vitrail.config import Preprocessing
from vitrail.data.inputs import Input, from_memory, put_back, writable
from vitrail.data.preparation import Preparation
from vitrail.errors import UserError
from vitrail.inference.engines import Engine, processors
from vitrail.tasks import task
from vitrail.tasks.base import PLAIN, Asked, Prediction

MOST_WORKERS = 8


@dataclass(frozen=True)
class Embedding:
    """The features of one picture, or why there are none."""

    path: str | None
    vector: np.ndarray | None
    error: str | None = None


@dataclass(frozen=True)
class _Result:
    path: str | None
    output: np.ndarray | None
    error: str | None


class Predictor:
    """An engine with the one way from a picture to its input: what evaluation does, by the same code."""

    def __init__(self, engine: Engine, batch_size: int | None = None) -> None:
        if batch_size is not None and batch_size < 1:
            raise UserError(f"--batch-size must be at least 1, not {batch_size}")
        self.engine, self.batch_size = engine, batch_size or engine.batch_size
        self._prepare = Preparation(engine.facts.preprocessing)

    def predict(self, images: Any, asked: Asked = PLAIN) -> list[Prediction]:
        """Answers a picture, or a list of them, of any kind `inputs.from_memory` knows. Unreadable ones say why."""
        return [each for batch in self.predictions(from_memory(images), asked) for each in batch]

    def embed(self, images: Any) -> np.ndarray:
        """The features [pictures, width]; one that cannot be read is a UserError."""
        found = [each for batch in self.embeddings(from_memory(images)) for each in batch]
        for place, each in enumerate(found):
            if each.vector is None:
                raise UserError(f"{each.path or f'picture {place}'}: {each.error}")
        vectors = [each.vector for each in found if each.vector is not None]
        return np.stack(vectors) if vectors else np.empty((0, self.engine.facts.features_width), np.float32)

    def predictions(self, inputs: Iterable[Input], asked: Asked = PLAIN) -> Iterator[list[Prediction]]:
        """Gives the task's predictions in the order of the inputs, a list a batch."""
        facts = self.engine.facts
        answer, meaning = task(facts.config.task).answer, facts.meaning
        answer.check(asked, meaning)
        for results in self._stream(inputs, self.engine.outputs):
            yield [answer.prediction(each.path, each.output, each.error, meaning, asked) for each in results]

    def embeddings(self, inputs: Iterable[Input]) -> Iterator[list[Embedding]]:
        for results in self._stream(inputs, self.engine.features):
            yield [Embedding(each.path, each.output, each.error) for each in results]

    def _stream(self, inputs: Iterable[Input], run: Callable[[np.ndarray], np.ndarray]) -> Iterator[list[_Result]]:
        workers = self.engine.workers
        inputs = iter(inputs)
        first = list(islice(inputs, workers * self.batch_size))
        # A few pictures are shared among the workers; from then on batches are full.
        size = min(self.batch_size, max(1, math.ceil(len(first) / workers)))
        waiting: deque[Future[list[_Result]]] = deque()
        with self.engine.running():
            pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-predict")
            try:
                inputs = put_back(first, inputs)
                del first
                for batch in _batches(inputs, size):
                    waiting.append(pool.submit(self._work, batch, run))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                # Also when the loop that takes the results is left early.
                pool.shutdown(wait=True, cancel_futures=True)

    def _work(self, batch: Sequence[Input], run: Callable[[np.ndarray], np.ndarray]) -> list[_Result]:
        images, errors = self._prepare(batch)
        outputs = iter(run(images) if len(images) else ())
        return [
            _Result(None if each.path is None else writable(each.path), next(outputs) if error is None else None, error)
            for each, error in zip(batch, errors, strict=True)
        ]


def prepared(inputs: Iterable[Input], preprocessing: Preprocessing, batch_size: int) -> Iterator[np.ndarray]:
    """Gives batches of prepared pictures; those that cannot be read are left out."""
    prepare = Preparation(preprocessing)
    for batch in _batches(inputs, batch_size):
        images, _ = prepare(batch)
        if len(images):
            yield images


def default_workers(single: bool) -> int:
    """One picture gets all processors; of many, each processor takes a batch of its own."""
    return 1 if single else min(processors(), MOST_WORKERS)


def _batches(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    inputs = iter(inputs)
    while batch := list(islice(inputs, size)):
        yield batch
