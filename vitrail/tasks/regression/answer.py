"""From standardised outputs to named numbers in the user's units, and how these are written to tables and shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.tasks import answers
from vitrail.tasks.answers import AnswerOptions, Row
from vitrail.tasks.base import Meaning
from vitrail.tasks.regression.scale import TargetScale

if TYPE_CHECKING:
    import pyarrow

_WRITTEN, _SHOWN = 7, 3
"""Significant figures of a number, counted from the first figure of its standard deviation: in files (the precision of
float32), and on a terminal."""


@dataclass(frozen=True)
class Prediction(answers.Prediction):
    """The numbers of one picture by name, in the user's units; or why there are none."""

    path: str | None
    values: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> Row:
        return {"path": self.path, "values": dict(self.values), "error": self.error}


class NumberAnswer(answers.Answer):
    """Turns standardised outputs [numbers] into numbers in the user's units."""

    output = "values"

    def check(self, asked: AnswerOptions, meaning: Meaning) -> None:
        if asked.threshold is not None:
            raise UserError("--threshold is for scores of classes; this model gives numbers: leave it out")

    def prediction(
        self,
        path: str | None,
        output: np.ndarray | None,
        error: str | None,
        meaning: Meaning,
        asked: AnswerOptions,
        frame: Frame | None = None,
    ) -> Prediction:
        """Converts the outputs, float32 [numbers], to the user's units."""
        if output is None:
            return Prediction(path, {}, error)
        values = TargetScale.of(meaning.constants, len(output)).restored(output).tolist()
        return Prediction(path, {meaning.named(place)[0]: value for place, value in enumerate(values)}, error)

    def columns(self, meaning: Meaning, asked: AnswerOptions) -> "NumberColumns":
        outputs = len(meaning.constants.get("mean", meaning.names))
        names = tuple(meaning.named(place)[0] for place in range(outputs))
        scale = TargetScale.of(meaning.constants, outputs)
        return NumberColumns(names, scale.decimals(_WRITTEN), scale.decimals(_SHOWN))

    def schema(self) -> dict[str, Any]:
        return {"values": {"type": "object", "additionalProperties": {"type": "number"}}}

    def folders(self, meaning: Meaning, outputs: int) -> list[str]:
        raise UserError("--sort-into puts pictures into folders of classes; this model gives numbers: leave it out")


@dataclass(frozen=True)
class NumberColumns(answers.Columns):
    """Turns rows {path, values: {name: number}, error} into text, tables and lines.

    A .csv file has the columns path, one for each number, and error. The numbers of a picture without an answer are
    empty.
    """

    numbers: tuple[str, ...]
    """The names of the numbers."""
    written: Sequence[int]
    """How many decimals each number has in files."""
    shown: Sequence[int]
    """How many decimals each number has on a terminal."""

    @property
    def names(self) -> list[str]:
        return ["path", *self.numbers, "error"]

    @property
    def given(self) -> str:
        return f"a model of {', '.join(self.numbers)}"

    def row(self, prediction: answers.Prediction) -> Row:
        return prediction.to_json()

    def cells(self, row: Row) -> list[str]:
        return [row["path"], *self._texts(row, self.written), row["error"] or ""]

    def document(self, row: Row) -> Row:
        """Returns a row with each number rounded to the precision of the model's outputs."""
        values, written = row["values"], dict(zip(self.numbers, self.written, strict=True))
        return {**row, "values": {name: round(value, written[name]) for name, value in values.items()}}

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        text = pyarrow.string()
        values = pyarrow.struct([(name, pyarrow.float64()) for name in self.numbers])
        return pyarrow.schema([("path", text), ("values", values), ("error", text)])

    def lines(self, row: Row) -> list[str]:
        """Returns a line for each number: its name and its value."""
        from vitrail.drawing.page import visible

        if not row["values"]:
            return []
        names, texts = [visible(name) for name in self.numbers], self._texts(row, self.shown)
        width, wide = max(map(len, names)), max(map(len, texts))
        return [f"{name:<{width}}  {text:>{wide}}" for name, text in zip(names, texts, strict=True)]

    def _texts(self, row: Row, decimals: Sequence[int]) -> list[str]:
        if not row["values"]:
            return [""] * len(self.numbers)
        return [f"{row['values'][name]:.{places}f}" for name, places in zip(self.numbers, decimals, strict=True)]


PART = NumberAnswer()
