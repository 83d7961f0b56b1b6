"""Rank correlation (Spearman): whether two maps order the patches alike."""

import numpy as np


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """From -1 to 1; None where one of them is constant, or the values are too few to be ordered."""
    if np.size(first) < 3:
        return None
    ranked = [_ranks(np.asarray(each, np.float64).ravel()) for each in (first, second)]
    spreads = [each.std() for each in ranked]
    if min(spreads) == 0:
        return None
    product = np.mean((ranked[0] - ranked[0].mean()) * (ranked[1] - ranked[1].mean()))
    return round(float(product / (spreads[0] * spreads[1])), 4)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Places in order; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
