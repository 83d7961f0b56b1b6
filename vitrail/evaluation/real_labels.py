"""ImageNet-ReaL: new labels for the 50,000 validation images; an image has all classes that it shows, or none.

The published file is a JSON list with a list of class numbers for each image, in the order of the images' numbers,
beginning with ILSVRC2012_val_00000001. An answer is right if it is among them; images without labels are left out.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitrail.errors import UserError
from vitrail.io.documents import read_document

IMAGES, CLASSES = 50_000, 1_000
"""How many images and classes there are."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z])ILSVRC2012_val_([0-9]{8})(?![0-9])")
_WORDNET = re.compile(r"n[0-9]{8}")

RealLabels = tuple[frozenset[int], ...]
"""The class numbers of each image."""


def read_real_labels(path: str | Path) -> RealLabels:
    """Reads the labels of all images; a UserError says where a file is not as it should be."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: is not a file; --real takes ImageNet-ReaL's real.json")
    document = read_document(path, finite=False)  # each entry is looked at below
    if not isinstance(document, list):
        raise UserError(f"{path}: must hold a JSON list of {IMAGES:,} lists, not a {type(document).__name__}")
    if len(document) != IMAGES:
        raise UserError(f"{path}: has {len(document):,} entries; ImageNet-ReaL has {IMAGES:,}, one a validation image")
    for place, labels in enumerate(document):
        if not isinstance(labels, list):
            raise UserError(f"{path}: entry {place} is a {type(labels).__name__}, not a list of class numbers")
        for label in labels:
            # True and 1.0 would pass as numbers, but the published file has neither.
            if type(label) is not int or not 0 <= label < CLASSES:
                shown = repr(label) if len(repr(label)) <= 40 else repr(label)[:37] + "..."
                raise UserError(f"{path}: entry {place} has {shown}, which is not a class number (0 to {CLASSES - 1})")
    return tuple(frozenset(labels) for labels in document)


def image_number(name: str) -> int:
    """Returns the number of a validation image, 1 to 50,000, from its name."""
    match = _NUMBER.search(name.rpartition("/")[2])
    if match is None:
        raise UserError(
            f"{name}: --real finds the labels of an image by its name, which must be ILSVRC2012_val_ and eight digits"
        )
    number = int(match[1])
    if not 1 <= number <= IMAGES:
        raise UserError(f"{name}: there are {IMAGES:,} validation images, and none has the number {number}")
    return number


def class_numbers(label_names: Sequence[str]) -> list[int]:
    """Returns ImageNet's class number for each class of a model.

    Classes named by WordNet id are found by it. A model with other names is assumed to have its classes in ImageNet's
    order.
    """
    if len(label_names) != CLASSES:
        raise UserError(f"--real needs a model of ImageNet's {CLASSES:,} classes; this one has {len(label_names):,}")
    if all(_WORDNET.fullmatch(name) for name in label_names):
        places = {name: place for place, name in enumerate(sorted(label_names))}
        return [places[name] for name in label_names]
    return list(range(CLASSES))


def score(real: RealLabels, numbers: Sequence[int], predictions: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Compares answers with the labels.

    Args:
        real: the labels.
        numbers: what `class_numbers` returned.
        predictions: pairs of an image's name and the class that the model predicted.

    Returns:
        n: images that have labels; without_label: images left out; top1: share of right answers, None if n is 0.
    """
    n = right = without = 0
    seen: dict[int, str] = {}
    for name, predicted in predictions:
        number = image_number(name)
        if number in seen:
            raise UserError(f"{name}: is the same validation image as {seen[number]}; each counts once")
        seen[number] = name
        labels = real[number - 1]
        if not labels:
            without += 1
            continue
        n += 1
        right += numbers[predicted] in labels
    return {"n": n, "without_label": without, "top1": right / n if n else None}
