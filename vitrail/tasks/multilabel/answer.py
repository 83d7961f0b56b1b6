"""From logits to the labels whose scores reach their thresholds, and how these are written to tables and shown."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.tasks import answers
from vitrail.tasks.answers import AnswerOptions, Guess, Row
from vitrail.tasks.base import Meaning
from vitrail.tasks.multilabel.scores import DEFAULT_THRESHOLD, sigmoid
from vitrail.tasks.multilabel.target import JOIN

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Prediction(answers.Prediction):
    """The labels of one picture, the likeliest first; or why there are none."""

    path: str | None
    labels: tuple[Guess, ...] = ()
    error: str | None = None

    def to_json(self) -> Row:
        return {"path": self.path, "labels": [dict(vars(label)) for label in self.labels], "error": self.error}


def thresholds_of(meaning: Meaning, outputs: int) -> np.ndarray:
    """Returns the score from which each label counts, float64 [outputs]: what was found on validation data, or else
    0.5."""
    found = meaning.constants.get("thresholds")
    if found is None:
        return np.full(outputs, DEFAULT_THRESHOLD)
    if len(found) != outputs:
        raise UserError(f"the model has {len(found)} thresholds for {outputs} labels: its bundle is damaged")
    return np.array(found, dtype=np.float64)


class LabelAnswer(answers.Answer):
    """Turns logits [labels] into the labels that are likely enough."""

    output = "logits"

    def check(self, asked: AnswerOptions, meaning: Meaning) -> None:
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
        """Returns the labels whose scores reach their thresholds, or `asked.threshold` if it is given. The likeliest
        comes first, and the earlier of two equal ones. output: float32 [labels]."""
        if output is None:
            return Prediction(path, (), error)
        scores = sigmoid(output)
        least = thresholds_of(meaning, len(output)) if asked.threshold is None else asked.threshold
        predicted = scores >= least
        order = [int(index) for index in np.argsort(-output, kind="stable") if predicted[index]]
        return Prediction(path, tuple(Guess(*meaning.named(index), float(scores[index])) for index in order), error)

    def columns(self, meaning: Meaning, asked: AnswerOptions) -> "LabelColumns":
        return LabelColumns()

    def schema(self) -> dict[str, Any]:
        words = {"type": "string"}
        label = {"label": words, "description": words, "score": {"type": "number"}}
        return {"labels": {"type": "array", "items": answers.object_schema(label)}}


@dataclass(frozen=True)
class LabelColumns(answers.Columns):
    """Turns rows {path, labels: [{label, description, score}], error} into text, tables and lines.

    A .csv file has the columns path, labels, scores and error. Labels are joined by "|", as in tables that `vitrail
    train` reads, and so are their scores.
    """

    @property
    def names(self) -> list[str]:
        return ["path", "labels", "scores", "error"]

    @property
    def given(self) -> str:
        return "a model of labels"

    def row(self, prediction: answers.Prediction) -> Row:
        return prediction.to_json()

    def cells(self, row: Row) -> list[str]:
        labels = JOIN.join(each["label"] for each in row["labels"])
        scores = JOIN.join(f"{each['score']:.6f}" for each in row["labels"])
        return [row["path"], labels, scores, row["error"] or ""]

    def document(self, row: Row) -> Row:
        """Returns a row with scores rounded to six digits, which is the precision of float32."""
        return {**row, "labels": [{**each, "score": round(each["score"], 6)} for each in row["labels"]]}

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        text = pyarrow.string()
        label = pyarrow.struct([("label", text), ("description", text), ("score", pyarrow.float32())])
        return pyarrow.schema([("path", text), ("labels", pyarrow.list_(label)), ("error", text)])

    def lines(self, row: Row) -> list[str]:
        """Returns a line for each label: its score, a bar and its name."""
        if not row["labels"]:
            return [] if row["error"] else ["no label is likely enough"]
        return answers.guess_lines(row["labels"])


PART = LabelAnswer()
