"""Classes are known by name. A label is only a place in a list of names, and lists can differ."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitrail.errors import UserError


def check_classes(name: str, classes: Sequence[str]) -> None:
    """Refuse lists that cannot be learned from, or that would make labels ambiguous."""
    doubled = [each for each, count in Counter(classes).items() if count > 1]
    if doubled:
        raise UserError(f"{name}: the class name {doubled[0]!r} occurs more than once")
    if len(classes) < 2:
        have = f"only one class, {classes[0]!r}" if classes else "no classes"
        raise UserError(f"{name} has {have}; telling classes apart needs at least two")


def match_classes(model: Sequence[str], source: Sequence[str], *, subset: bool = False) -> np.ndarray:
    """For each class of the source, its place in the model's list: `match_classes(...)[labels]`.

    The same names in another order are matched by name. Names that differ are a UserError: labels are never
    shifted to fit. With `subset`, the source may lack some of the model's classes (500 of ImageNet's 1000).
    """
    check_classes("the model's class list", model)
    unknown = [name for name in source if name not in set(model)]
    missing = [name for name in model if name not in set(source)]
    if unknown or (missing and not subset):
        parts = []
        if unknown:
            parts.append(f"the data has {_some(unknown)}, unknown to the model")
        if missing and not subset:
            parts.append(f"the data lacks {_some(missing)}, known to the model")
        raise UserError(
            f"the classes of data ({len(source)}) and model ({len(model)}) do not match: {'; '.join(parts)}. "
            "Rename the classes of the data, or fine-tune the model on them"
        )
    places = {name: place for place, name in enumerate(model)}
    return np.array([places[name] for name in source], dtype=np.int64)


def _some(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def labels_by_name(names: Sequence[str | None]) -> tuple[tuple[str, ...], np.ndarray]:
    """Classes in sorted order, and each sample's place in them; None stays unlabelled."""
    classes = tuple(sorted({name for name in names if name is not None}))
    places: dict[str | None, int] = {name: place for place, name in enumerate(classes)}
    return classes, np.array([places.get(name, -1) for name in names], dtype=np.int64)


def numbered_classes(name: str, labels: Sequence[int] | np.ndarray, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of number labels: the given ones, or the numbers themselves. Labels outside are refused."""
    highest = int(np.max(labels)) if len(labels) else -1
    if len(labels) and int(np.min(labels)) < -1:
        raise UserError(f"{name}: the label {int(np.min(labels))} is negative")
    if names is None:
        if highest > 1_000_000:
            raise UserError(f"{name}: the label {highest} is not a class number; labels count up from 0")
        return tuple(str(number) for number in range(highest + 1))
    if highest >= len(names):
        raise UserError(f"{name}: there is a label {highest}, but only {len(names)} class names")
    return tuple(names)
