"""Which class is the answer, and whether it is right: of equal scores the earlier class comes first, everywhere.

Scores are [..., classes], arrays or tensors; torch is not needed for arrays.
"""

from typing import Any

import numpy as np


def best(scores: Any) -> Any:
    """Gives the answers [...], of the kind and on the device of the scores."""
    return scores.argmax(-1)  # the first of equal ones, as NumPy and torch both promise


def right(scores: Any, classes: Any) -> Any:
    """Tells which answers are the true classes [...]; -1, for no label, is never one."""
    return best(scores) == classes


def ordered(scores: np.ndarray) -> np.ndarray:
    """Gives all classes, the best first. scores: [classes]."""
    return np.argsort(-scores, kind="stable")


def rank(scores: Any, classes: Any) -> np.ndarray:
    """Counts the classes that come before the true one: top-1 is `rank == 0`, top-5 is `rank < 5`.

    Takes scores [n, classes] and the true classes [n], arrays or tensors on the processor. In NumPy for both, where
    counting takes no longer than torch's topk, whose order of equal scores is anything.
    """
    scores, classes = np.asarray(scores), np.asarray(classes)[:, None]
    own = np.take_along_axis(scores, classes, axis=1)
    places = np.arange(scores.shape[1])
    return ((scores > own) | ((scores == own) & (places < classes))).sum(axis=1)
