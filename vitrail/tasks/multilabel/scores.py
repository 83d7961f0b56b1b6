"""From logits and truths to average precision, F1 and thresholds: in numpy and double precision."""

from dataclasses import dataclass

import numpy as np

DEFAULT_THRESHOLD = 0.5
FEW = 5
"""A label with fewer positive samples takes the threshold that is best for all labels together: its own would be
little more than the score of one picture."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Turns logits of any shape into scores from 0 to 1, float64, without overflow."""
    values = logits.astype(np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0, small) / (1 + small)


def _steps(scores: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gives, for each distinct score from the highest on: the score, and how many samples and how many positives have
    it or a higher one."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    return ranked[ends], ends + 1, np.cumsum(truths[order] > 0)[ends]


def average_precision(scores: np.ndarray, truths: np.ndarray) -> float | None:
    """Computes the area below precision by recall, step by step, equal scores as one; None without a positive sample.
    scores, truths: [samples]."""
    if not len(scores) or not (truths > 0).any():
        return None
    _, counts, positives = _steps(scores, truths)
    recall = positives / positives[-1]
    return float((np.diff(recall, prepend=0.0) * (positives / counts)).sum())


def precision_recall(scores: np.ndarray, truths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives precision and recall at every distinct score, the highest first."""
    _, counts, positives = _steps(scores, truths)
    return positives / counts, positives / max(1, int(positives[-1]))


def best_threshold(scores: np.ndarray, truths: np.ndarray) -> float:
    """Finds the threshold whose F1 is highest: halfway between the lowest score that counts and the next one below.
    Of several that are equal the nearest to 0.5, then the higher. scores: from 0 to 1."""
    if not len(scores) or not (truths > 0).any():
        return DEFAULT_THRESHOLD
    levels, counts, positives = _steps(scores, truths)
    f1 = 2 * positives / (counts + positives[-1])
    below = np.append(levels[1:], 0.0)
    middle = (levels + below) / 2
    thresholds = np.where(middle > below, middle, levels)  # between neighbouring floats there is no middle
    best = thresholds[f1 == f1.max()]
    return float(min(best, key=lambda each: (abs(each - DEFAULT_THRESHOLD), -each)))


def best_thresholds(scores: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Finds a threshold for each label, float64 [labels], by `best_threshold`. scores, truths: [samples, labels]."""
    common = best_threshold(scores.ravel(), truths.ravel())
    enough = (truths > 0).sum(axis=0) >= FEW
    own = [best_threshold(*pair) if many else common for *pair, many in zip(scores.T, truths.T, enough, strict=True)]
    return np.array(own, dtype=np.float64)


@dataclass(frozen=True)
class Counts:
    """How many answers of each label were right: int64 [labels] each."""

    found: np.ndarray
    """True and answered."""
    answered: np.ndarray
    true: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray, truths: np.ndarray, thresholds: np.ndarray) -> "Counts":
        """Counts scores [samples, labels] at thresholds [labels] against truths."""
        said, true = scores >= thresholds, truths > 0
        return cls((said & true).sum(axis=0), said.sum(axis=0), true.sum(axis=0))

    @property
    def precision(self) -> np.ndarray:
        """[labels]: the share of answers that were right, 0 without answers."""
        return self.found / np.maximum(self.answered, 1)

    @property
    def recall(self) -> np.ndarray:
        """[labels]: the share of true ones that were found, 0 where none is true."""
        return self.found / np.maximum(self.true, 1)

    @property
    def f1(self) -> np.ndarray:
        """[labels]: 2 found / (answered + true), 0 where there is neither."""
        return 2 * self.found / np.maximum(self.answered + self.true, 1)

    @property
    def micro_f1(self) -> float:
        """The same of all labels in one count."""
        return float(2 * self.found.sum() / max(int(self.answered.sum() + self.true.sum()), 1))

    @property
    def macro_f1(self) -> float:
        """The mean over the labels that are true of some sample."""
        present = self.true > 0
        return float(self.f1[present].mean()) if present.any() else 0.0
