"""K-fold cross-validation of a head in closed form: how well a model's features tell the classes of a data set apart.

The samples are divided into folds; each fold is classified by a head that was computed from all the others.
"""

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
"""The name of the method in results."""


@dataclass(frozen=True)
class Fold:
    """The result of one fold, classified by a head that was computed from all others."""

    n: int
    """Samples in the fold."""
    learned_from: int
    """Samples in all other folds."""
    top1: float
    balanced_accuracy: float
    loss: float


@dataclass(frozen=True)
class CrossValidation:
    """The results of all folds."""

    folds: tuple[Fold, ...]
    skipped: int
    """Samples that could not be read."""

    @property
    def mean(self) -> float:
        """Returns the mean accuracy of the folds."""
        return statistics.fmean(fold.top1 for fold in self.folds)

    @property
    def std(self) -> float:
        """Returns the standard deviation of the folds' accuracies, with n - 1."""
        return statistics.stdev(fold.top1 for fold in self.folds)

    def to_json(self) -> dict[str, Any]:
        """Returns the results as values that JSON can hold."""
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


def check_folds(folds: int) -> None:
    """Raises a UserError for fewer than two folds: one to classify and one to learn from."""
    if folds < 2:
        raise UserError(f"--folds {folds}: at least 2 are needed, one to learn from; 5 is usual")


def rare(labels: Tensor, classes: Sequence[str], folds: int) -> list[str]:
    """Writes a sentence on classes that have fewer samples than there are folds; an empty list if there are none."""
    counts = Counter(labels.tolist())
    few = [label for label in counts if counts[label] < folds]
    if not few:
        return []
    least = min(few, key=lambda label: counts[label])
    short = f"{len(few)} of {len(counts)} classes have fewer images than folds"
    return [f"{short}, {classes[least]!r} only {counts[least]}: not every fold asks of them"]


def cross_validate_features(features: Features, classes: tuple[str, ...], folds: int, seed: int = 0) -> CrossValidation:
    """Classifies each fold by a head computed from all others.

    The strength and the scale of a fold's head are chosen by leave-one-out on the samples that it is computed from, so
    nothing depends on the samples that it classifies.

    Args:
        features: features of samples that all have a label; there must be at least as many samples as folds.
        classes: the names of the classes.
        folds: the number of folds.
        seed: decides which samples are in which fold.
    """
    place = fold_of(features.targets, folds, seed)
    found = []
    for fold in range(folds):
        train, test = (features.where(chosen.nonzero()[:, 0]) for chosen in (place != fold, place == fold))
        head = ridge_head(train.values, train.targets, len(classes))
        accuracy = Accuracy(Meaning(classes))
        accuracy.add(test.ids, test.targets, head.outputs(test.values))
        result = accuracy.result()
        found.append(Fold(len(test), len(train), result["top1"], result["balanced_accuracy"], result["loss"]))
    return CrossValidation(tuple(found), features.skipped)


def fold_of(labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """Assigns each sample to a fold: int64 [n].

    Each class is spread over the folds as evenly as possible, and so are all samples together: those of a class go to
    the folds in turn, beginning where those of the class before ended.
    """
    place, begun = torch.empty_like(labels), 0
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        order = torch.from_numpy(permutation(len(members), "folds", seed, label).copy())
        place[members[order]] = (torch.arange(len(members)) + begun) % folds
        begun += len(members)
    return place
