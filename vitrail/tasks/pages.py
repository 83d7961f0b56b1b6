"""The interface of a task's page.py: the task's sections of the reports on a training and on an evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Headline:
    """The first lines of a report."""

    cards: list[tuple[str, str, str]]
    """Large numbers in boxes, each as (number, what it is, CSS class or "")."""
    lines: list[str]
    """Sentences below the boxes."""


class Page(ABC):
    """Shows a meter's numbers in a report, as HTML, PNG and CSV."""

    @abstractmethod
    def __init__(self, meter: Any, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None:
        """Takes the numbers and pictures that the page shows.

        Args:
            meter: the task's meter, after all samples were added.
            names: what to call each of the model's outputs.
            samples: pixels of the samples that `chosen` named, in its order, each uint8 [rows, columns, channels].
        """

    @staticmethod
    @abstractmethod
    def chosen(meter: Any) -> list[str]:
        """Chooses the ids of the samples of `meter` to show: some taken evenly from all of them, then the worst."""

    @abstractmethod
    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        """Returns the first lines of the report; loss and skipped samples are added to them elsewhere.

        Args:
            result: what the meter's `result` returned, and the name of the `split` that was measured.
            brief: whether the report is on a training, which shows fewer numbers.
        """

    @abstractmethod
    def training(self) -> list[str]:
        """Returns the HTML sections of a report on a training."""

    @abstractmethod
    def evaluation(self) -> list[str]:
        """Returns the HTML sections of a report on an evaluation."""

    curves: ClassVar[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]]
    """The panels of a run's curves by title, each as (label of the vertical axis, lines). A line is (kind of record in
    metrics.jsonl, key in that record). An axis whose label ends in % shows fractions of 1 as percentages."""
    files: ClassVar[tuple[str, ...]]
    """The names of all pictures that `pictures` may return."""

    @abstractmethod
    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        """Draws the pictures that lie beside the page, as PNG by file name; with `brief`, those of a report on a
        training."""

    @abstractmethod
    def table(self) -> str:
        """Returns the text of predictions.csv: a row for each sample that was measured."""

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Writes sentences on the best of the validations of a run; each of `records` is a result of the meter with its
        `step`."""
        return []
