"""Computes statistics of features and maps: principal components and rank correlation."""

import numpy as np


def principal_components(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Computes the principal components of vectors [n, d], as scikit-learn's PCA does.

    A direction and its opposite are the same component. The largest entry of each is made positive, so that a picture
    of it does not depend on the library that computed it.

    Returns:
        The directions [count, d], and the share of the variance that each explains [count].
    """
    centred = np.asarray(vectors, np.float64)
    centred = centred - centred.mean(axis=0)
    n, d = centred.shape
    count = min(count, n, d)
    if d <= n:  # the smaller of the two square matrices
        values, directions = np.linalg.eigh(centred.T @ centred)
        values, directions = values[::-1], directions.T[::-1]
    else:
        _, singular, directions = np.linalg.svd(centred, full_matrices=False)
        values = singular**2
    values = np.maximum(values, 0)
    total = values.sum()
    directions = directions[:count]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    explained = values[:count] / total if total > 0 else np.zeros(count)
    return directions * np.where(largest < 0, -1.0, 1.0), explained


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Computes Spearman's rank correlation, from -1 to 1; None if one input is constant or there are fewer than three
    values."""
    if np.size(first) < 3:
        return None
    ranked = [_ranks(np.asarray(each, np.float64).ravel()) for each in (first, second)]
    spreads = [each.std() for each in ranked]
    if min(spreads) == 0:
        return None
    product = np.mean((ranked[0] - ranked[0].mean()) * (ranked[1] - ranked[1].mean()))
    return round(float(product / (spreads[0] * spreads[1])), 4)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
