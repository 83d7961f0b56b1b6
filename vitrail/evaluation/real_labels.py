"""ImageNet-ReaL: the 50,000 validation images labelled again, each with all classes that are in it, or with none.

The published file is a JSON list, one list of class numbers an image, in the order of the images' own numbers:
ILSVRC2012_val_00000001 is the first. An answer is right if it is among them; images with no label are left out.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vitrail.errors import UserError

IMAGES, CLASSES = 50_000, 1_000
_LARGEST = 64 * 2**20
_NUMBER = re.compile(r"(?<![0-9A-Za-z])ILSVRC2012_val_([0-9]{8})(?![0-9])")
_WORDNET = re.compile(r"n[0-9]{8}")

RealLabels = tuple[frozenset[int], ...]


def read(path: str | Path) -> RealLabels:
    """The labels of each image. Whatever else the file is ends in a UserError that names the place."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: is not a file; --real takes ImageNet-ReaL's real.json")
        if path.stat().st_size > _LARGEST:
            raise UserError(f"{path}: too large to be ImageNet-ReaL's real.json")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, list):
        raise UserError(f"{path}: must hold a JSON list of {IMAGES:,} lists, not a {type(document).__name__}")
    if len(document) != IMAGES:
        raise UserError(f"{path}: has {len(document):,} entries; ImageNet-ReaL has {IMAGES:,}, one a validation image")
    for place, labels in enumerate(document):
        if not isinstance(labels, list):
            raise UserError(f"{path}: entry {place} is a {type(labels).__name__}, not a list of class numbers")
        for label in labels:
            # True and 1.0 compare like numbers, but nobody who labels images writes them.
            if type(label) is not int or not 0 <= label < CLASSES:
                shown = repr(label) if len(repr(label)) <= 40 else repr(label)[:37] + "..."
                raise UserError(f"{path}: entry {place} has {shown}, which is not a class number (0 to {CLASSES - 1})")
    return tuple(frozenset(labels) for labels in document)


def image_number(name: str) -> int:
    """1 to 50,000, from an image's name."""
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
    """ImageNet's number of each class of a model.

    Numbers go by WordNet id. A model whose classes are named otherwise is taken to have them in ImageNet's order.
    """
    if len(label_names) != CLASSES:
        raise UserError(f"--real needs a model of ImageNet's {CLASSES:,} classes; this one has {len(label_names):,}")
    if all(_WORDNET.fullmatch(name) for name in label_names):
        places = {name: place for place, name in enumerate(sorted(label_names))}
        return [places[name] for name in label_names]
    return list(range(CLASSES))


def score(real: RealLabels, numbers: Sequence[int], predictions: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """From (id, predicted class of the model): `n` images that have labels, `without_label` those left out, `top1`."""
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
