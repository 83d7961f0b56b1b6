"""Decides which class is the answer and whether it is right. Of equal scores the earlier class comes first, everywhere.

Scores are [..., classes], arrays or tensors; torch is not needed for arrays.
"""

from typing import Any

import numpy as np


def best(scores: Any) -> Any:
    """Returns the class with the highest score [...], as an array or tensor like `scores` and on the same device."""
    return scores.argmax(-1)  # both NumPy and torch return the first of equal ones


def right(scores: Any, classes: Any) -> Any:
    """Returns which answers are the true classes, bool [...]. A class of -1, no label, is never the answer."""
    return best(scores) == classes


def ordered(scores: np.ndarray) -> np.ndarray:
    """Returns all classes, the best first, int64 [classes]. scores: [classes]."""
    return np.argsort(-scores, kind="stable")


def rank_of_true(scores: Any, classes: Any) -> np.ndarray:
    """Counts the classes that come before the true one: int64 [n]. Top-1 is `rank == 0`, top-5 is `rank < 5`.

    Numpy does this for tensors too: it takes no longer than torch's topk, which puts equal scores in no particular
    order.

    Args:
        scores: [n, classes], an array or a tensor on the CPU.
        classes: the true classes, [n].
    """
    scores, classes = np.asarray(scores), np.asarray(classes)[:, None]
    own = np.take_along_axis(scores, classes, axis=1)
    places = np.arange(scores.shape[1])
    return ((scores > own) | ((scores == own) & (places < classes))).sum(axis=1)
