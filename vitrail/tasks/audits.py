"""What a check of a data set (`vitrail data check`) hands to a task, and what the task finds. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class StoredAnnotation:
    """A right answer in pixels as it is stored, with the picture that it belongs to."""

    values: np.ndarray | None
    """The answer in the form of its task, without what is not valid; None if it cannot be read."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with its file: kind of fault -> what was found, as a predicate."""
    strange: Mapping[str, int] = field(default_factory=dict)
    """The ids or colours in it that have no meaning, with the number of their pixels."""
    palette: Mapping[int, str] = field(default_factory=dict)
    """The colours that a palette gives to the ids in it."""
    picture_digest: bytes = b""
    """A digest of the pixels of its picture."""


@dataclass(frozen=True)
class CheckedSplit:
    """A split of a data set that is checked: the ids and the targets of its samples."""

    ids: Sequence[str]
    targets: np.ndarray
    facts: Sequence[Any] = ()
    """For right answers in pixels what `Target.examined` returned for each sample, None for samples without one."""
    unused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The files of right answers that belong to no sample of any split, by the kind of fault. One split has them."""


@dataclass(frozen=True)
class FaultySample:
    """A sample that a page shows, with what is wrong with it."""

    split: str
    index: int
    """Its place in the split."""
    why: str
    """"" for a sample without faults."""


@dataclass(frozen=True)
class CheckedPicture:
    """A sample as a page shows it: its pixels and its right answer."""

    id: str
    split: str
    why: str
    """What is wrong with it; "" for a sample without faults."""
    pixels: np.ndarray
    """uint8 [rows, columns, 3]"""
    annotation: np.ndarray | None
    """The right answer in the form of its task; None if it cannot be read."""


@dataclass(frozen=True)
class Audit:
    """The findings of a check of a data set (`vitrail data check`) about its targets."""

    balance: dict[str, dict[str, int]] = field(default_factory=dict)
    """How many samples of each split have each name: name -> split -> count. Empty if samples do not have names."""
    findings: dict[str, Any] = field(default_factory=dict)
    """Keys and values that the task adds to check.json."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """What a terminal shows: pairs of a heading and the finding."""
    tables: list[tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]] = field(default_factory=list)
    """What the HTML page shows: (title, explanation, column heads, rows)."""
    samples: list[FaultySample] = field(default_factory=list)
    """The samples that the HTML page shows with their right answers, the worst first and some without faults last."""
    cards: list[tuple[str, str, str]] = field(default_factory=list)
    """Main numbers of the HTML page: (number, what it is, "good", "bad" or "")."""
