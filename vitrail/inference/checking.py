"""Compares an exported model with the plain one: both on the same pictures, taking turns."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data import match_classes
from vitrail.data.inputs import find
from vitrail.data.loader import EvaluationLoader
from vitrail.data.measured import open_to_measure
from vitrail.errors import UserError
from vitrail.inference.accuracy_drop import Drop, estimate_drop
from vitrail.inference.engines import Engine
from vitrail.inference.engines.facts import Facts
from vitrail.inference.predictor import prepared
from vitrail.io.progress import progress
from vitrail.tasks.classification.top1 import best, right


@dataclass(frozen=True)
class Comparison:
    """Fractions of 1 over the n samples that have labels."""

    n: int
    skipped: int
    top1_before: float
    top1_after: float
    agreement: float
    """How often the two give the same label."""
    images_per_second_before: float
    images_per_second_after: float
    loss: Drop

    @property
    def drop(self) -> float:
        """Points of a hundred, as counted."""
        return 100 * (self.top1_before - self.top1_after)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "drop": self.drop, "loss": self.loss.to_json()}


class CheckSet:
    """Prepared pictures to compare models on, some of them without a label.

    Iterating gives (images, labels) a batch: float32 [batch, channels, rows, columns] as the model wants them, and the
    model's number of each one's class, [batch], -1 where there is no label. It may be done again and again.
    """

    def __init__(
        self, facts: Facts, data: str, *, split: str | None = None, unlabelled: Sequence[str] = (), batch_size: int = 8
    ) -> None:
        if not facts.label_names:
            raise UserError("--check needs a model with class names; give them with --labels FILE")
        source, chosen, self.note = open_to_measure(data, facts.provenance, split)
        source.check_labelled()
        self._places = match_classes(facts.label_names, source.classes, subset=True)
        samples = source.split(chosen)
        samples = samples.subset((samples.labels >= 0).nonzero()[0])
        self.data, self.n, self.skipped = data, len(samples), 0
        self._loader = EvaluationLoader(samples, facts.preprocessing, batch_size=batch_size)
        self._unlabelled, self._facts, self.batch_size = tuple(unlabelled), facts, batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        self.skipped = 0
        with progress("checking", self.n, unit="pictures") as advance:
            for batch in self._loader:
                self.skipped += len(batch.bad)
                if len(batch):
                    yield batch.images.numpy(), self._places[batch.targets.numpy()]
                advance(len(batch) + len(batch.bad))
        if self._unlabelled:
            for images in prepared(find(self._unlabelled), self._facts.preprocessing, self.batch_size):
                yield images, np.full(len(images), -1)

    def nothing(self) -> UserError:
        return UserError(f"--check {self.data}: not one image of it could be read")


def compare(before: Engine, after: Engine, pictures: CheckSet, tests: int = 1) -> Comparison:
    """Runs both engines on the pictures; `tests`: of how many bounds on the loss this is one."""
    logits: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    labels, times = [np.empty(0, int)], [0.0, 0.0]
    with before.running(), after.running():
        for engine in (before, after):  # the first call of an engine prepares it
            engine.outputs(np.zeros((pictures.batch_size, *before.facts.input_shape), np.float32))
        for number, (images, classes) in enumerate(pictures):
            for place in (0, 1) if number % 2 else (1, 0):  # none always runs in what the other leaves behind
                start = time.perf_counter()
                logits[place].append((before, after)[place].outputs(images))
                times[place] += time.perf_counter() - start
            labels.append(classes)
    known = np.concatenate(labels)
    labelled = known >= 0
    if not labelled.any():
        raise pictures.nothing()
    first, then = (np.concatenate(each) for each in logits)
    loss = estimate_drop(first, then, known, tests=tests)
    return Comparison(
        n=loss.labelled,
        skipped=pictures.skipped,
        top1_before=float(right(first, known)[labelled].mean()),
        top1_after=float(right(then, known)[labelled].mean()),
        agreement=float((best(first) == best(then)).mean()),
        images_per_second_before=len(known) / times[0],
        images_per_second_after=len(known) / times[1],
        loss=loss,
    )


def refusal_of_drop(found: Drop, max_drop: float) -> UserError:
    """Makes the sentence for a loss that may be more than `max_drop` points."""
    needed = found.pictures_needed(max_drop)
    remedy = "allow more with --max-drop, or change the model less"
    if needed is not None and needed > found.n:
        remedy = f"check on more pictures, about {needed:,} (--check, --unlabelled), or allow more with --max-drop"
    return UserError(f"--max-drop {max_drop:g} cannot be promised: {found.sentence()}; nothing was written; {remedy}")
