"""Classes are known by name. A label is only a place in a list of names, and lists can differ."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks.base import sorted_classes


def namesakes(name: str, others: Sequence[str]) -> list[str]:
    """Gives those of the other names that differ from a name only by upper and lower case or spaces."""
    return [each for each in others if each != name and _plain(each) == _plain(name)]


def namesake_notes(classes: Sequence[str]) -> list[str]:
    """Says which classes are probably one: `tulip` and `Tulip`."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(_plain(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    names, more = " and ".join(map(repr, alike[0])), f", and {len(alike) - 1} more like them," if alike[1:] else ""
    told = f"the classes {names}{more} differ only by case or spaces, and are learned as different ones"
    return [f"{told}: if they are one class, put their images into one folder"]


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def match_classes(
    model: Sequence[str], source: Sequence[str], *, subset: bool = False, plural: str = "classes"
) -> np.ndarray:
    """For each class of the source, its place in the model's list: `match_classes(...)[labels]`.

    The same names in another order are matched by name. Names that differ are a UserError: labels are never
    shifted to fit. With `subset`, the source may lack some of the model's classes (500 of ImageNet's 1000). plural:
    what the task calls them.
    """
    doubled = [each for each, count in Counter(model).items() if count > 1]
    if doubled:
        raise UserError(f"the model's class list: the class name {doubled[0]!r} occurs more than once")
    unknown = [name for name in source if name not in set(model)]
    missing = [name for name in model if name not in set(source)]
    if unknown or (missing and not subset):
        parts = []
        if unknown:
            known = namesakes(unknown[0], model)
            meant = f" (is {unknown[0]!r} its {known[0]!r}?)" if known else ""
            parts.append(f"the data has {_some(unknown)}, unknown to the model{meant}")
        if missing and not subset:
            parts.append(f"the data lacks {_some(missing)}, known to the model")
        raise UserError(
            f"the {plural} of data ({len(source)}) and model ({len(model)}) do not match: {'; '.join(parts)}. "
            f"Rename the {plural} of the data, or fine-tune the model on them"
        )
    places = {name: place for place, name in enumerate(model)}
    return np.array([places[name] for name in source], dtype=np.int64)


def _some(names: Sequence[str], limit: int = 5) -> str:
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def labels_by_name(names: Sequence[str | None]) -> tuple[tuple[str, ...], np.ndarray]:
    """Classes in order, and each sample's place in them; None stays unlabelled."""
    classes = sorted_classes({name for name in names if name is not None})
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
