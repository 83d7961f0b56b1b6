"""What an exported model lost, and what it won: both models on the same pictures, taking turns."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.config import Preprocessing
from vitrail.data import match_classes, open_source
from vitrail.data.loader import EvaluationLoader
from vitrail.errors import UserError
from vitrail.inference.engines import Engine


@dataclass(frozen=True)
class Comparison:
    """Fractions of 1 over n samples; a drop is in points of a hundred."""

    n: int
    skipped: int
    top1_before: float
    top1_after: float
    agreement: float
    """How often the two give the same label."""
    images_per_second_before: float
    images_per_second_after: float

    @property
    def drop(self) -> float:
        return 100 * (self.top1_before - self.top1_after)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "drop": self.drop}


def check_set(
    label_names: Sequence[str],
    preprocessing: Preprocessing,
    data: str,
    split: str | None = None,
    batch_size: int = 8,
    workers: int | None = None,
) -> tuple[EvaluationLoader, np.ndarray]:
    """The test split of a source, or what there is, and the model's number of each of its labels; its classes may be
    some of the model's."""
    if not label_names:
        raise UserError("--check needs a model with class names; give them with --labels FILE")
    source = open_source(data)
    places = match_classes(tuple(label_names), source.classes, subset=True)
    name = split or next((each for each in ("test", "val") if each in source.splits), "all")
    return EvaluationLoader(source.split(name), preprocessing, batch_size=batch_size, workers=workers), places


def compare(
    before: Engine,
    after: Engine,
    data: str,
    *,
    split: str | None = None,
    batch_size: int = 8,
    workers: int | None = None,
) -> Comparison:
    """Both engines over the test split of a source, or what there is; its classes may be some of the model's."""
    facts = before.facts
    loader, places = check_set(facts.label_names, facts.preprocessing, data, split, batch_size, workers)
    right, agreed, n, skipped, times = [0, 0], 0, 0, 0, [0.0, 0.0]
    with before.running(), after.running():
        for engine in (before, after):  # the first call of an engine prepares it
            engine.logits(np.zeros((batch_size, *facts.input_shape), np.float32))
        for number, batch in enumerate(loader):
            skipped += len(batch.bad)
            if not len(batch):
                continue
            images, labels = batch.images.numpy(), places[batch.labels.numpy()]
            answers = {}
            for place in (0, 1) if number % 2 else (1, 0):  # none always runs in what the other leaves behind
                start = time.perf_counter()
                logits = (before, after)[place].logits(images)
                times[place] += time.perf_counter() - start
                answers[place] = logits.argmax(axis=1)
                right[place] += int((answers[place] == labels).sum())
            agreed += int((answers[0] == answers[1]).sum())
            n += len(batch)
    if not n:
        raise UserError(f"--check {data}: not one image of it could be read")
    return Comparison(n, skipped, right[0] / n, right[1] / n, agreed / n, n / times[0], n / times[1])


def refuse_drop(found: Comparison, max_drop: float) -> None:
    """A UserError where accuracy fell by more than that many points."""
    if found.drop > max_drop + 1e-9:
        raise UserError(
            f"top-1 fell from {found.top1_before:.2%} to {found.top1_after:.2%} on {found.n} images, by "
            f"{found.drop:.2f} points, more than --max-drop {max_drop:g} allows; nothing was written"
        )
