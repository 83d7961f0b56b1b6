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

from vitrail.data.draws import permutation
from vitrail.evaluation import knn, linear_probe
from vitrail.evaluation.features import Features

SHOTS = (1, 5, 10, 25)
SEEDS = 3
L2 = 1024.0
BIAS = 100.0
"""The constant feature: so large that the bias it stands for is hardly regularised."""
EPSILON = 1e-5
_ROWS = 8192
"""Samples turned into doubles at a time."""

Shots = int | Literal["all"]
Method = Literal["ridge", "knn", "probe"]


@dataclass(frozen=True)
class LeastSquares:
    """A linear map from features to one score a class."""

    mean: Tensor  # [width]
    std: Tensor  # [width], EPSILON added
    weights: Tensor  # [width + 1, classes]; the last row belongs to the constant feature

    def scores(self, features: Tensor) -> Tensor:
        """float64 [n, classes]."""
        parts = [_prepared(part, self.mean, self.std) @ self.weights for part in features.split(_ROWS)]
        return torch.cat(parts)


def solve(features: Tensor, labels: Tensor, num_classes: int, l2: float = L2) -> LeastSquares:
    """The weights that minimise |X W - Y|^2 + l2 |W|^2, in double precision.

    X are the standardised features [n, width] with the constant appended, Y is 1 for a sample's class and -1 for all
    others. The Gram matrix that is smaller is taken apart: X'X, or with fewer samples than features X X'.
    """
    assert len(features) == len(labels)
    assert len(features)
    assert l2 > 0
    mean, std = _moments(features)
    if len(features) > features.shape[1]:
        gram, right = features.new_zeros((), dtype=torch.float64), features.new_zeros((), dtype=torch.float64)
        for part, own in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
            x = _prepared(part, mean, std)
            gram, right = gram + x.T @ x, right + x.T @ _targets(own, num_classes)
        values, vectors = torch.linalg.eigh(gram)
        weights = vectors @ ((vectors.T @ right) / (values + l2)[:, None])
    else:
        x = _prepared(features, mean, std)
        values, vectors = torch.linalg.eigh(x @ x.T)
        weights = x.T @ (vectors @ ((vectors.T @ _targets(labels, num_classes)) / (values + l2)[:, None]))
    return LeastSquares(mean, std, weights)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    count = len(features)
    mean = torch.stack([part.double().sum(dim=0) for part in features.split(_ROWS)]).sum(dim=0) / count
    squares = [(part.double() - mean).square().sum(dim=0) for part in features.split(_ROWS)]
    return mean, (torch.stack(squares).sum(dim=0) / count).sqrt() + EPSILON


def _prepared(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return torch.nn.functional.pad((features.double() - mean) / std, (0, 1), value=BIAS)


def _targets(labels: Tensor, num_classes: int) -> Tensor:
    return 2 * torch.nn.functional.one_hot(labels, num_classes).double() - 1


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
    return solve(train, labels, num_classes).scores(queries).argmax(dim=1)


def _by_neighbours(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return knn.classify(train, labels, queries, num_classes=num_classes)


def _by_probe(train: Tensor, labels: Tensor, queries: Tensor, num_classes: int) -> Tensor:
    return linear_probe.train(train, labels, num_classes).logits(queries).argmax(dim=1)


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
            [torch.arange(len(train))] if count == "all" else [draw(train.labels, count, seed) for seed in range(seeds)]
        )
        for method in methods:
            accuracies = []
            for chosen in drawn:
                predicted = METHODS[method](train.values[chosen], train.labels[chosen], test.values, num_classes)
                accuracies.append(int((predicted == test.labels).sum()) / len(test))
            yield Row(count, method, tuple(accuracies), len(test), test.skipped)
