"""Computes average precision, F1 and thresholds from scores and true labels, in numpy and double precision."""

from dataclasses import dataclass

import numpy as np

DEFAULT_THRESHOLD = 0.5
"""The threshold where none has been found on validation data."""
FEW = 5
"""A label with fewer positive samples than this takes the threshold that is best for all labels together: one of its
own would depend on single pictures."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Turns logits of any shape into scores from 0 to 1, float64, without overflow."""
    values = logits.astype(np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0, small) / (1 + small)


def _steps(scores: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, at each distinct score from the highest on, the samples and the positive samples with that score or a
    higher one.

    Returns:
        The distinct scores, the number of samples, the number of positive samples.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    return ranked[ends], ends + 1, np.cumsum(truths[order] > 0)[ends]


def average_precision(scores: np.ndarray, truths: np.ndarray) -> float | None:
    """Computes the area under the curve of precision by recall, as a sum of steps in which equal scores count as one.

    Args:
        scores: [samples].
        truths: [samples], above 0 for positive samples.

    Returns:
        The area; None if no sample is positive.
    """
    if not len(scores) or not (truths > 0).any():
        return None
    _, counts, positives = _steps(scores, truths)
    recall = positives / positives[-1]
    return float((np.diff(recall, prepend=0.0) * (positives / counts)).sum())


def precision_recall(scores: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes precision and recall at every distinct score, the highest first. scores, truths: [samples]."""
    _, counts, positives = _steps(scores, truths)
    return positives / counts, positives / max(1, int(positives[-1]))


def best_threshold(scores: np.ndarray, truths: np.ndarray) -> float:
    """Finds the threshold with the highest F1: halfway between the lowest score that counts and the next one below it.

    Of several that are equally good, the one nearest to 0.5 is taken, then the higher one. scores: [samples], from 0 to
    1.
    """
    if not len(scores) or not (truths > 0).any():
        return DEFAULT_THRESHOLD
    levels, counts, positives = _steps(scores, truths)
    f1 = 2 * positives / (counts + positives[-1])
    below = np.append(levels[1:], 0.0)
    middle = (levels + below) / 2
    thresholds = np.where(middle > below, middle, levels)  # two neighbouring floats have none between them
    best = thresholds[f1 == f1.max()]
    return float(min(best, key=lambda each: (abs(each - DEFAULT_THRESHOLD), -each)))


def best_thresholds(scores: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Finds the threshold with the highest F1 for each label, float64 [labels]. scores, truths: [samples, labels]."""
    common = best_threshold(scores.ravel(), truths.ravel())
    enough = (truths > 0).sum(axis=0) >= FEW
    own = [best_threshold(*pair) if many else common for *pair, many in zip(scores.T, truths.T, enough, strict=True)]
    return np.array(own, dtype=np.float64)


@dataclass(frozen=True)
class Counts:
    """Counts of answers and of right answers for each label; each field is int64 [labels]."""

    found: np.ndarray
    """The samples that have the label and were answered with it."""
    answered: np.ndarray
    """The samples that were answered with the label."""
    true: np.ndarray
    """The samples that have the label."""

    @classmethod
    def of(cls, scores: np.ndarray, truths: np.ndarray, thresholds: np.ndarray) -> "Counts":
        """Counts scores [samples, labels] that reach thresholds [labels] against truths [samples, labels]."""
        predicted, true = scores >= thresholds, truths > 0
        return cls((predicted & true).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0))

    @property
    def precision(self) -> np.ndarray:
        """The share of answers that were right, float64 [labels]; 0 without answers."""
        return self.found / np.maximum(self.answered, 1)

    @property
    def recall(self) -> np.ndarray:
        """The share of true labels that were found, float64 [labels]; 0 if there are none."""
        return self.found / np.maximum(self.true, 1)

    @property
    def f1(self) -> np.ndarray:
        """2 found / (answered + true), float64 [labels]; 0 if there are neither."""
        return 2 * self.found / np.maximum(self.answered + self.true, 1)

    @property
    def micro_f1(self) -> float:
        """The F1 of the answers of all labels counted together."""
        return float(2 * self.found.sum() / max(int(self.answered.sum() + self.true.sum()), 1))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that some sample has."""
        present = self.true > 0
        return float(self.f1[present].mean()) if present.any() else 0.0
