"""Principal components: the few directions along which many vectors differ most."""

import numpy as np


def principal_components(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of vectors (n, d): (directions (count, d), share of the variance each explains), as scikit-learn's PCA has them.

    A direction and its opposite are the same component: the largest entry of each is made positive, so that a picture
    of it does not depend on the library that found it.
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
