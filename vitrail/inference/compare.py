"""Compares an exported model with the plain one: both run on the same pictures, taking turns."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data import match_classes
from vitrail.data.evaluation_data import open_to_measure
from vitrail.data.inputs import find_pictures
from vitrail.data.loader import EvaluationLoader
from vitrail.errors import UserError
from vitrail.inference.accuracy_drop import BoundedLoss, Drop, estimate_drop
from vitrail.inference.engines import Engine
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.predictor import prepared_batches
from vitrail.inference.score_drop import PairedCounts, ScoreDrop
from vitrail.io.progress import progress
from vitrail.tasks import task
from vitrail.tasks.base import Annotation, Meter
from vitrail.tasks.classification.top1 import best, right


@dataclass(frozen=True)
class AccuracyComparison:
    """Accuracy and speed of two models; fractions of 1 over the n samples that have labels."""

    n: int
    """The number of labelled pictures."""
    skipped: int
    """The number of pictures that could not be read."""
    top1_before: float
    top1_after: float
    agreement: float
    """The fraction of pictures for which both models give the same class."""
    images_per_second_before: float
    images_per_second_after: float
    loss: Drop
    """The estimate of the loss of accuracy, with its bound."""

    @property
    def drop(self) -> float:
        """Returns the counted drop of top-1 accuracy, in percentage points."""
        return 100 * (self.top1_before - self.top1_after)

    def to_json(self) -> dict[str, Any]:
        """Returns all fields and the counted drop, as a JSON object."""
        return {**vars(self), "drop": self.drop, "loss": self.loss.to_json()}

    def lines(self) -> list[str]:
        """Returns the lines that a terminal shows."""
        return [
            f"top-1      {self.top1_before:.2%} -> {self.top1_after:.2%}",
            f"agreement  {self.agreement:.2%}",
            f"loss       {self.loss.sentence()}",
            f"images/s   {self.images_per_second_before:.1f} -> {self.images_per_second_after:.1f}",
        ]


@dataclass(frozen=True)
class ScoreComparison:
    """Score and speed of two models for a task whose score is computed from counts over all samples."""

    n: int
    """The number of pictures with a right answer."""
    skipped: int
    """The number of pictures that could not be read."""
    images_per_second_before: float
    images_per_second_after: float
    loss: ScoreDrop
    """The loss of score, with its bound."""

    def to_json(self) -> dict[str, Any]:
        """Returns all fields and the score of both models, as a JSON object."""
        scores = {"score": self.loss.name, "before": self.loss.before, "after": self.loss.after}
        return {**vars(self), **scores, "drop": self.loss.expected, "loss": self.loss.to_json()}

    def lines(self) -> list[str]:
        """Returns the lines that a terminal shows."""
        return [
            f"{self.loss.name:<9}  {self.loss.before:.4f} -> {self.loss.after:.4f}",
            f"loss       {self.loss.sentence()}",
            f"images/s   {self.images_per_second_before:.1f} -> {self.images_per_second_after:.1f}",
        ]


class CheckSet:
    """Prepared pictures to compare models on; some may have no label.

    Each iteration goes through all pictures again and gives (images, labels) for each batch: float32 images [batch,
    channels, rows, columns] as the model takes them, and the model's class index of each, [batch], -1 where there is no
    label. `annotated` gives right answers in pixels instead, for tasks that have these.

    Args:
        facts: What the model says of itself.
        data: A SRC with labels.
        split: The split of `data` to use.
        unlabelled: Paths of more pictures, which need no labels.
        batch_size: The number of pictures in a batch.
    """

    def __init__(
        self,
        facts: ExportMetadata,
        data: str,
        *,
        split: str | None = None,
        unlabelled: Sequence[str] = (),
        batch_size: int = 8,
    ) -> None:
        if not facts.label_names:
            raise UserError("--check needs a model with class names; give them with --labels FILE")
        source, chosen, self.note = open_to_measure(data, facts.provenance, split)
        source.check_labelled()
        self.meter = task(facts.config.task).meter
        """The meter of the model's task."""
        if self.meter.adds_up and source.task != facts.config.task:
            raise UserError(f"--check {data}: is data for {source.task}, and the model is for {facts.config.task}")
        if self.meter.adds_up and unlabelled:
            raise UserError(
                f"--unlabelled goes with classes: {self.meter.score_name} is counted on right answers alone"
            )
        self._places = match_classes(facts.label_names, source.classes, subset=True)
        samples = source.split(chosen)
        samples = samples.subset((samples.known if self.meter.adds_up else samples.labels >= 0).nonzero()[0])
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
            for images in prepared_batches(find_pictures(self._unlabelled), self._facts.preprocessing, self.batch_size):
                yield images, np.full(len(images), -1)

    def annotated(self) -> Iterator[tuple[np.ndarray, Sequence[Annotation]]]:
        """Goes through all pictures and gives (images, annotations) for each batch."""
        self.skipped = 0
        with progress("checking", self.n, unit="pictures") as advance:
            for batch in self._loader:
                self.skipped += len(batch.bad)
                if len(batch):
                    yield batch.images.numpy(), batch.annotations
                advance(len(batch) + len(batch.bad))

    def empty_meter(self) -> Meter:
        """Makes a meter for answers to these pictures."""
        return self.meter(self._facts.meaning, self._places)

    def nothing(self) -> UserError:
        """Returns the error for a set of which not one picture could be read."""
        return UserError(f"--check {self.data}: not one image of it could be read")


def compare_engines(before: Engine, after: Engine, pictures: CheckSet) -> AccuracyComparison | ScoreComparison:
    """Runs both engines on the pictures, and compares them by what the model's task is measured with."""
    if pictures.meter.adds_up:
        return compare_scores(before, after, pictures)
    return compare_accuracy(before, after, pictures)


def compare_scores(before: Engine, after: Engine, pictures: CheckSet) -> ScoreComparison:
    """Runs both engines on the pictures, whose right answers lie in their pixels, and compares their scores."""
    meter, counts, times = pictures.empty_meter(), PairedCounts(), [0.0, 0.0]
    engines = (before, after)
    with before.running(), after.running():
        for engine in engines:  # the first call of an engine prepares it
            engine.outputs(np.zeros((pictures.batch_size, *before.facts.input_shape), np.float32))
        for number, (images, annotations) in enumerate(pictures.annotated()):
            outputs: dict[int, np.ndarray] = {}
            for place in (0, 1) if number % 2 else (1, 0):  # neither is always the second
                start = time.perf_counter()
                outputs[place] = engines[place].outputs(images)
                times[place] += time.perf_counter() - start
            for first, then, annotation in zip(outputs[0], outputs[1], annotations, strict=True):
                tallies = meter.tally(first, annotation), meter.tally(then, annotation)
                counts.add(*tallies, meter.mean_change(first, then))
    if not len(counts):
        raise pictures.nothing()
    loss = counts.drop(meter.tally_score, meter.score_name)
    return ScoreComparison(
        n=loss.n,
        skipped=pictures.skipped,
        images_per_second_before=loss.n / times[0],
        images_per_second_after=loss.n / times[1],
        loss=loss,
    )


def compare_accuracy(before: Engine, after: Engine, pictures: CheckSet, tests: int = 1) -> AccuracyComparison:
    """Runs both engines on the pictures; `tests` is the number of bounds on a loss that are to hold together."""
    logits: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    labels, times = [np.empty(0, int)], [0.0, 0.0]
    with before.running(), after.running():
        for engine in (before, after):  # the first call of an engine prepares it
            engine.outputs(np.zeros((pictures.batch_size, *before.facts.input_shape), np.float32))
        for number, (images, classes) in enumerate(pictures):
            for place in (0, 1) if number % 2 else (1, 0):  # neither is always the second
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
    return AccuracyComparison(
        n=loss.labelled,
        skipped=pictures.skipped,
        top1_before=float(right(first, known)[labelled].mean()),
        top1_after=float(right(then, known)[labelled].mean()),
        agreement=float((best(first) == best(then)).mean()),
        images_per_second_before=len(known) / times[0],
        images_per_second_after=len(known) / times[1],
        loss=loss,
    )


def refusal_of_drop(found: BoundedLoss, max_drop: float) -> UserError:
    """Returns the error for a loss that may be more than `max_drop` points, with a remedy."""
    needed = found.pictures_needed(max_drop)
    remedy = "allow more with --max-drop, or change the model less"
    if needed is not None and needed > found.n:
        flags = "--check, --unlabelled" if isinstance(found, Drop) else "--check"
        remedy = f"check on more pictures, about {needed:,} ({flags}), or allow more with --max-drop"
    return UserError(f"--max-drop {max_drop:g} cannot be promised: {found.sentence()}; nothing was written; {remedy}")
