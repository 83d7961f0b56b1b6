"""Few-shot evaluation: how well a few labelled images of each class do, on features that stay as they are.

The paper's is regularised least squares from the features to targets in {-1, 1}, solved in closed form, so nothing is
tuned and nothing is trained for long. Nearest neighbours and a trained probe can stand beside it.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.data import Source
from vitrail.errors import UserError
from vitrail.evaluation import knn
from vitrail.evaluation.features import Features
from vitrail.random_stream import permutation
from vitrail.tasks.classification import logistic
from vitrail.tasks.classification.closed_form import solve
from vitrail.tasks.classification.top1 import best

SHOTS = (1, 5, 10, 25)
SEEDS = 3
L2 = 1024.0

Shots = int | Literal["all"]
Method = Literal["ridge", "knn", "probe"]


def check(shots: Sequence[Shots], methods: Sequence[Method], seeds: int) -> None:
    """Refuses, with a UserError, what cannot be drawn or measured."""
    if not shots or any(isinstance(count, int) and count < 1 for count in shots):
        raise UserError(f"--shots {' '.join(map(str, shots))}: give numbers of images from 1 up, or all")
    if not methods:
        raise UserError("--methods: give at least one of ridge, knn, probe")
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: at least 1 is needed")


def splits(source: Source, test: str | None) -> tuple[str, str]:
    """Names the splits to learn from and to test on. test: what was asked for, or None."""
    name = test or next((each for each in ("test", "val") if each in source.splits), None)
    if "train" not in source.splits or name is None:
        there = ", ".join(source.splits)
        raise UserError(f"{source.name}: has {there} alone; few-shot learns from train and tests on test or val")
    if name in ("train", "all"):
        raise UserError(f"--split {name}: holds the images that are learned from; test on val or test")
    return "train", name


def draw(labels: Tensor, shots: int, seed: int) -> Tensor:
    """Indices of `shots` samples of each class, or of all it has where those are fewer, in order.

    Of one seed fewer shots are a part of more shots, so that the steps of a curve differ by what was added.
    """
    chosen = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        order = permutation(len(members), "shots", seed, label)[:shots]
        chosen.append(members[torch.from_numpy(order)])
    return torch.cat(chosen).sort().values


def short_classes(labels: Tensor, shots: int, num_classes: int) -> dict[int, int]:
    """The classes that have fewer samples than shots, and how many they have."""
    counts = labels.bincount(minlength=num_classes).tolist()
    return {label: count for label, count in enumerate(counts) if count < shots}


def shortages(labels: Tensor, shots: Sequence[Shots], classes: Sequence[str]) -> list[str]:
    """Says in a sentence which classes have fewer training samples than shots; nothing where none has."""
    most = max((count for count in shots if isinstance(count, int)), default=0)
    short = short_classes(labels, most, len(classes))
    if not short:
        return []
    fewest = min(short, key=lambda label: short[label])
    counted = f"{len(short)} of {len(classes)} classes have fewer training images than shots"
    return [f"{counted}, {classes[fewest]!r} only {short[fewest]}: of these all are used"]


@dataclass(frozen=True)
class Row:
    """What one method reached with so many shots."""

    shots: Shots
    method: Method
    accuracies: tuple[float, ...]
    """One a seed."""
    n: int
    """Test samples, the same for every seed."""
    skipped: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float:
        """Over the seeds, with n - 1; 0 for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "shots": self.shots,
            "method": self.method,
            "mean": self.mean,
            "std": self.std,
            "seeds": len(self.accuracies),
            "accuracies": list(self.accuracies),
            "n": self.n,
            "skipped": self.skipped,
        }


Classify = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(training features, their labels, test features, number of classes) -> predicted labels."""


def _by_ridge(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return best(solve(train, labels, num_classes, L2).scores(queries))


def _by_neighbours(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return knn.classify(train, labels, queries, num_classes=num_classes)


def _by_probe(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return best(logistic.train(train, labels, num_classes).logits(queries))


METHODS: dict[Method, Classify] = {"ridge": _by_ridge, "knn": _by_neighbours, "probe": _by_probe}


def evaluate(
    train: Features,
    test: Features,
    num_classes: int,
    *,
    shots: Sequence[Shots] = SHOTS,
    methods: Sequence[Method] = ("ridge",),
    seeds: int = SEEDS,
) -> Iterator[Row]:
    """Row by row. Which samples are drawn depends on the seeds 0, 1, ... alone, so methods see the same ones.

    With "all" shots there is nothing to draw, and one result.
    """
    for count in shots:
        drawn = (
            [torch.arange(len(train))]
            if count == "all"
            else [draw(train.targets, count, seed) for seed in range(seeds)]
        )
        for method in methods:
            accuracies = []
            for chosen in drawn:
                predicted = METHODS[method](train.values[chosen], train.targets[chosen], test.values, num_classes)
                accuracies.append(int((predicted == test.targets).sum()) / len(test))
            yield Row(count, method, tuple(accuracies), len(test), test.skipped)
