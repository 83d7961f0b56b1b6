"""From logits to the most likely classes, and how these are written to tables and shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.tasks import answers
from vitrail.tasks.answers import UNKNOWN, AnswerOptions, Guess, Row
from vitrail.tasks.base import Meaning
from vitrail.tasks.classification.top1 import ordered

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Prediction(answers.Prediction):
    """The most likely classes of one picture, the best first; or why there are none."""

    path: str | None
    top: tuple[Guess, ...] = ()
    error: str | None = None

    def label(self, threshold: float = 0.0) -> str | None:
        """Returns the best class, or "unknown" if its score is below the threshold; None if the picture could not be
        read."""
        if not self.top:
            return None
        return self.top[0].label if self.top[0].score >= threshold else UNKNOWN

    def to_json(self) -> Row:
        return {"path": self.path, "top": [dict(vars(guess)) for guess in self.top], "error": self.error}


class ClassAnswer(answers.Answer):
    """Turns logits [num_classes] into the most likely classes."""

    output = "logits"

    def check(self, asked: AnswerOptions, meaning: Meaning) -> None:
        if asked.top < 1:
            raise UserError(f"--top must be at least 1, not {asked.top}")
        answers.check_threshold(asked.threshold)

    def prediction(
        self,
        path: str | None,
        output: np.ndarray | None,
        error: str | None,
        meaning: Meaning,
        asked: AnswerOptions,
        frame: Frame | None = None,
    ) -> Prediction:
        """Returns the `top` most likely classes, the best first; the earlier of two equal ones comes first. output:
        float32 [num_classes].
        """
        if output is None:
            return Prediction(path, (), error)
        scores = np.exp(output - output.max(), dtype=np.float64)
        scores /= scores.sum()
        best = ordered(output)[: asked.top]
        return Prediction(path, tuple(Guess(*meaning.named(int(index)), float(scores[index])) for index in best), error)

    def columns(self, meaning: Meaning, asked: AnswerOptions) -> "ClassColumns":
        return ClassColumns(asked.top, asked.threshold, described=bool(meaning.descriptions))

    def folders(self, meaning: Meaning, outputs: int) -> list[str]:
        return [meaning.named(index)[0] for index in range(outputs)]

    def folder(self, prediction: Prediction, asked: AnswerOptions) -> str | None:
        return prediction.label(asked.threshold or 0.0)

    def schema(self) -> dict[str, Any]:
        words = {"type": "string"}
        guess = {"label": words, "description": words, "score": {"type": "number"}}
        return {"top": {"type": "array", "items": answers.object_schema(guess)}}


@dataclass(frozen=True)
class ClassColumns(answers.Columns):
    """Turns rows {path, top: [{label, description, score}], error} into text, tables and lines.

    A .csv file has the columns path, label1, score1, ... labelK, scoreK, error. If classes have descriptions, each
    stands between label and score. With a threshold, a column `label` follows the path.
    """

    top: int
    """How many classes a row lists."""
    threshold: float | None = None
    """A picture whose best score is below it has the label "unknown". None: rows have no `label`."""
    described: bool = False
    """Whether a .csv file has columns for the descriptions."""

    @property
    def names(self) -> list[str]:
        guesses = [f"{field}{place}" for place in range(1, self.top + 1) for field in self._fields]
        return ["path", *(["label"] if self._labelled else []), *guesses, "error"]

    @property
    def given(self) -> str:
        return f"--top {self.top} {'with' if self._labelled else 'without'} --threshold"

    def row(self, prediction: answers.Prediction) -> Row:
        assert isinstance(prediction, Prediction)
        row = prediction.to_json()
        if self.threshold is None:
            return row
        return {"path": row["path"], "label": prediction.label(self.threshold), **row}

    def cells(self, row: Row) -> list[str]:
        cells: list[str] = []
        for guess in row["top"]:
            words = [guess["description"]] if self.described else []
            cells += [guess["label"], *words, f"{guess['score']:.6f}"]
        label = [row["label"] or ""] if self._labelled else []
        missing = [""] * (self.top * len(self._fields) - len(cells))
        return [row["path"], *label, *cells, *missing, row["error"] or ""]

    def document(self, row: Row) -> Row:
        """Returns a row with scores rounded to six digits, which is the precision of float32."""
        return {**row, "top": [{**guess, "score": round(guess["score"], 6)} for guess in row["top"]]}

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        text = pyarrow.string()
        guess = pyarrow.struct([("label", text), ("description", text), ("score", pyarrow.float32())])
        label: list[Any] = [("label", text)] if self._labelled else []
        return pyarrow.schema([("path", text), *label, ("top", pyarrow.list_(guess)), ("error", text)])

    def lines(self, row: Row) -> list[str]:
        """Returns a line for each class: its score, a bar and its name."""
        unsure = [f"{UNKNOWN}: no class is likely enough"] if row.get("label") == UNKNOWN else []
        return unsure + answers.guess_lines(row["top"])

    @property
    def _labelled(self) -> bool:
        return self.threshold is not None

    @property
    def _fields(self) -> Sequence[str]:
        return ("label", "description", "score") if self.described else ("label", "score")


PART = ClassAnswer()
