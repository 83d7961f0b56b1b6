"""K-fold cross-validation of the head in closed form: how well a data set can be told apart by a model's features, when
every sample is asked once of a head that was solved without it."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import UserError
from vitrail.evaluation.features import Features
from vitrail.random_stream import permutation
from vitrail.tasks import Meaning
from vitrail.tasks.classification.closed_form import ridge_head
from vitrail.tasks.classification.meter import Accuracy

METHOD = "ridge in closed form"


@dataclass(frozen=True)
class Fold:
    """What a head reached on the samples of one fold, solved on those of all others."""

    n: int
    learned_from: int
    top1: float
    balanced_accuracy: float
    loss: float


@dataclass(frozen=True)
class CrossValidation:
    folds: tuple[Fold, ...]
    skipped: int

    @property
    def mean(self) -> float:
        """Of the folds' accuracies."""
        return statistics.fmean(fold.top1 for fold in self.folds)

    @property
    def std(self) -> float:
        """Over the folds, with n - 1."""
        return statistics.stdev(fold.top1 for fold in self.folds)

    def to_json(self) -> dict[str, Any]:
        return {
            "folds": len(self.folds),
            "method": METHOD,
            "n": sum(fold.n for fold in self.folds),
            "skipped": self.skipped,
            "mean": self.mean,
            "std": self.std,
            "balanced_accuracy": statistics.fmean(fold.balanced_accuracy for fold in self.folds),
            "per_fold": [dict(vars(fold)) for fold in self.folds],
        }


def check(folds: int) -> None:
    """Refuses, with a UserError, fewer folds than one to learn from and one to ask."""
    if folds < 2:
        raise UserError(f"--folds {folds}: at least 2 are needed, one to learn from; 5 is usual")


def rare(labels: Tensor, classes: Sequence[str], folds: int) -> list[str]:
    """Says in a sentence which classes have fewer samples than folds; nothing where none has."""
    counts = Counter(labels.tolist())
    few = [label for label in counts if counts[label] < folds]
    if not few:
        return []
    least = min(few, key=lambda label: counts[label])
    short = f"{len(few)} of {len(counts)} classes have fewer images than folds"
    return [f"{short}, {classes[least]!r} only {counts[least]}: not every fold asks of them"]


def cross_validate(features: Features, classes: tuple[str, ...], folds: int, seed: int = 0) -> CrossValidation:
    """Of samples that all have a label, at least one for each fold. The strength and scale of each fold's head come
    from leaving out one by one the samples it is solved on: nothing is told by those it is asked."""
    place = fold_of(features.targets, folds, seed)
    found = []
    for fold in range(folds):
        train, asked = (features.where(chosen.nonzero()[:, 0]) for chosen in (place != fold, place == fold))
        head = ridge_head(train.values, train.targets, len(classes))
        accuracy = Accuracy(Meaning(classes))
        accuracy.add(asked.ids, asked.targets, head.outputs(asked.values))
        result = accuracy.result()
        found.append(Fold(len(asked), len(train), result["top1"], result["balanced_accuracy"], result["loss"]))
    return CrossValidation(tuple(found), features.skipped)


def fold_of(labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """int64 [n]: the fold of each sample. Each class is spread over the folds as evenly as it can be, and so are the
    samples as a whole: the samples of a class go to the folds in turn, from where those of the class before ended."""
    place, begun = torch.empty_like(labels), 0
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        order = torch.from_numpy(permutation(len(members), "folds", seed, label).copy())
        place[members[order]] = (torch.arange(len(members)) + begun) % folds
        begun += len(members)
    return place
