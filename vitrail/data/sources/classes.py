"""Matching classes by their names. A label is only an index into a list of names, and lists can differ."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks.base import sorted_classes


def namesakes(name: str, others: Sequence[str]) -> list[str]:
    """Returns the other names that differ from a name only by upper and lower case or by spaces."""
    return [other for other in others if other != name and _plain(other) == _plain(name)]


def namesake_notes(classes: Sequence[str]) -> list[str]:
    """Returns a note on classes that are probably meant to be one, such as `tulip` and `Tulip`."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(_plain(name), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    names, more = " and ".join(map(repr, alike[0])), f", and {len(alike) - 1} more like them," if alike[1:] else ""
    finding = f"the classes {names}{more} differ only by case or spaces, and are learned as different ones"
    return [f"{finding}: if they are one class, put their images into one folder"]


def _plain(name: str) -> str:
    """Removes from a name what `namesakes` ignores."""
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def match_classes(
    model: Sequence[str], source: Sequence[str], *, subset: bool = False, plural: str = "classes"
) -> np.ndarray:
    """Finds the index of each class of a source among those of a model, by name.

    Args:
        model: The class names of the model, in order.
        source: The class names of the source, in order.
        subset: Whether the source may lack some of the model's classes (500 of ImageNet's 1000).
        plural: The task's word for its classes, for messages.

    Returns:
        int64 [source classes]; `match_classes(...)[labels]` are the labels in the model's numbers.

    Raises:
        UserError: If the source has a class that the model does not know, or lacks one and may not.
    """
    doubled = [name for name, count in Counter(model).items() if count > 1]
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
    numbers = {name: index for index, name in enumerate(model)}
    return np.array([numbers[name] for name in source], dtype=np.int64)


def _some(names: Sequence[str], limit: int = 5) -> str:
    """Lists the first names, and says how many more there are."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def labels_by_name(names: Sequence[str | None]) -> tuple[tuple[str, ...], np.ndarray]:
    """Makes the list of classes from the class name of each sample, None for none.

    Returns the sorted names, and the label of each sample, int64 [samples], -1 for none.
    """
    classes = sorted_classes({name for name in names if name is not None})
    numbers: dict[str | None, int] = {name: index for index, name in enumerate(classes)}
    return classes, np.array([numbers.get(name, -1) for name in names], dtype=np.int64)


def numbered_classes(name: str, labels: Sequence[int] | np.ndarray, names: Sequence[str] | None) -> tuple[str, ...]:
    """Makes the list of classes for labels that are numbers: the given names, or else the numbers from 0 as text.

    name: the source, for messages. Raises UserError if a label is negative (but -1 is none) or has no name.
    """
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
