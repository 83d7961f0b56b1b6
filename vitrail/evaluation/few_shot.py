"""Few-shot evaluation: the accuracy of simple classifiers that are given a few labelled images of each class as
features.

The paper's method is regularised least squares from features to targets of -1 and 1, solved in closed form: it has
nothing to tune and takes no time to train. Nearest neighbours and logistic regression can be compared with it.
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
from vitrail.tasks.classification.closed_form import solve_classes
from vitrail.tasks.classification.top1 import best

SHOTS = (1, 5, 10, 25)
"""The default numbers of labelled images of each class."""
SEEDS = 3
"""How often these images are drawn, by default."""
L2 = 1024.0
"""The strength of regularisation of the paper's code."""

Shots = int | Literal["all"]
"""A number of labelled images of each class, or all there are."""
Method = Literal["ridge", "knn", "probe"]
"""The names of the methods: least squares, nearest neighbours, logistic regression."""


def check_shots(shots: Sequence[Shots], methods: Sequence[Method], seeds: int) -> None:
    """Raises a UserError for shots, methods or seeds that cannot be used."""
    if not shots or any(isinstance(count, int) and count < 1 for count in shots):
        raise UserError(f"--shots {' '.join(map(str, shots))}: give numbers of images from 1 up, or all")
    if not methods:
        raise UserError("--methods: give at least one of ridge, knn, probe")
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: at least 1 is needed")


def splits(source: Source, test: str | None) -> tuple[str, str]:
    """Returns the names of the splits to learn from and to test on. test: the user's choice, or None for test, else
    val."""
    name = test or next((each for each in ("test", "val") if each in source.splits), None)
    if "train" not in source.splits or name is None:
        there = ", ".join(source.splits)
        raise UserError(f"{source.name}: has {there} alone; few-shot learns from train and tests on test or val")
    if name in ("train", "all"):
        raise UserError(f"--split {name}: holds the images that are learned from; test on val or test")
    return "train", name


def draw_shots(labels: Tensor, shots: int, seed: int) -> Tensor:
    """Chooses `shots` samples of each class at random, or all of a class that has fewer: sorted int64 indices.

    With one seed, the samples of fewer shots are among those of more shots, so that the points of a curve differ by
    what was added.
    """
    chosen = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        order = permutation(len(members), "shots", seed, label)[:shots]
        chosen.append(members[torch.from_numpy(order)])
    return torch.cat(chosen).sort().values


def short_classes(labels: Tensor, shots: int, num_classes: int) -> dict[int, int]:
    """Returns the classes with fewer samples than shots: class -> number of samples."""
    counts = labels.bincount(minlength=num_classes).tolist()
    return {label: count for label, count in enumerate(counts) if count < shots}


def shortages(labels: Tensor, shots: Sequence[Shots], classes: Sequence[str]) -> list[str]:
    """Writes a sentence on classes that have fewer training samples than shots; an empty list if there are none."""
    most = max((count for count in shots if isinstance(count, int)), default=0)
    short = short_classes(labels, most, len(classes))
    if not short:
        return []
    fewest = min(short, key=lambda label: short[label])
    counted = f"{len(short)} of {len(classes)} classes have fewer training images than shots"
    return [f"{counted}, {classes[fewest]!r} only {short[fewest]}: of these all are used"]


@dataclass(frozen=True)
class FewShotRow:
    """The result of one method with one number of shots."""

    shots: Shots
    method: Method
    accuracies: tuple[float, ...]
    """One accuracy for each seed."""
    n: int
    """Test samples, the same for every seed."""
    skipped: int
    """Test samples that could not be read."""

    @property
    def mean(self) -> float:
        """Returns the mean accuracy over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def std(self) -> float:
        """Returns the standard deviation over the seeds, with n - 1; 0 for a single seed."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the row as values that JSON can hold."""
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
"""Predicts classes, int64 [queries], from (training features, their labels, test features, number of classes)."""


def _by_ridge(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return best(solve_classes(train, labels, num_classes, L2).scores(queries))


def _by_neighbours(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return knn.classify(train, labels, queries, num_classes=num_classes)


def _by_probe(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return best(logistic.train(train, labels, num_classes).logits(queries))


METHODS: dict[Method, Classify] = {"ridge": _by_ridge, "knn": _by_neighbours, "probe": _by_probe}
"""The methods by name."""


def evaluate_shots(
    train: Features,
    test: Features,
    num_classes: int,
    *,
    shots: Sequence[Shots] = SHOTS,
    methods: Sequence[Method] = ("ridge",),
    seeds: int = SEEDS,
) -> Iterator[FewShotRow]:
    """Measures every method with every number of shots; yields the rows one by one.

    The samples that are drawn depend on the seeds 0, 1, ... alone, so all methods are given the same. With "all" shots
    nothing is drawn, and there is one accuracy.

    Args:
        train: features to draw from.
        test: features to classify.
        num_classes: the number of classes.
        shots: how many samples of each class to draw.
        methods: names of methods.
        seeds: how often samples are drawn.
    """
    for count in shots:
        drawn = (
            [torch.arange(len(train))]
            if count == "all"
            else [draw_shots(train.targets, count, seed) for seed in range(seeds)]
        )
        for method in methods:
            accuracies = []
            for chosen in drawn:
                predicted = METHODS[method](train.values[chosen], train.targets[chosen], test.values, num_classes)
                accuracies.append(int((predicted == test.targets).sum()) / len(test))
            yield FewShotRow(count, method, tuple(accuracies), len(test), test.skipped)
