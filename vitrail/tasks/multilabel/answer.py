"""From logits to the labels whose scores reach their thresholds, and how they stand in rows, tables and lines."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Asked, Meaning, Row
from vitrail.tasks.multilabel.scores import DEFAULT_THRESHOLD, sigmoid
from vitrail.tasks.multilabel.target import JOIN

if TYPE_CHECKING:
    import pyarrow

_BAR = 20
"""Characters of the bar of a label that is certain."""


@dataclass(frozen=True)
class Label:
    """A label and how likely it is."""

    label: str
    description: str
    """Words for a label that is a code; empty where there are none."""
    score: float
    """The sigmoid of its logit, a fraction of 1."""


@dataclass(frozen=True)
class Prediction(base.Prediction):
    """The labels of one picture, the likeliest first; or why there are none."""

    path: str | None
    labels: tuple[Label, ...] = ()
    error: str | None = None

    def to_json(self) -> Row:
        return {"path": self.path, "labels": [dict(vars(label)) for label in self.labels], "error": self.error}


def thresholds_of(meaning: Meaning, outputs: int) -> np.ndarray:
    """Gives the score from which each label counts, float64 [outputs]: as found on validation, else 0.5."""
    found = meaning.constants.get("thresholds")
    if found is None:
        return np.full(outputs, DEFAULT_THRESHOLD)
    if len(found) != outputs:
        raise UserError(f"the model has {len(found)} thresholds for {outputs} labels: its bundle is damaged")
    return np.array(found, dtype=np.float64)


class LabelAnswer(base.Answer):
    output = "logits"

    def check(self, asked: Asked, meaning: Meaning) -> None:
        base.check_threshold(asked.threshold)

    def prediction(
        self, path: str | None, output: np.ndarray | None, error: str | None, meaning: Meaning, asked: Asked
    ) -> Prediction:
        """Returns the labels whose scores reach their thresholds, or the one that was asked for; the likeliest first,
        of equal ones the earlier label. output: float32 [labels]."""
        if output is None:
            return Prediction(path, (), error)
        scores = sigmoid(output)
        least = thresholds_of(meaning, len(output)) if asked.threshold is None else asked.threshold
        said = scores >= least
        order = [int(index) for index in np.argsort(-output, kind="stable") if said[index]]
        return Prediction(path, tuple(Label(*meaning.named(index), float(scores[index])) for index in order), error)

    def columns(self, meaning: Meaning, asked: Asked) -> "LabelColumns":
        return LabelColumns()

    def schema(self) -> dict[str, Any]:
        words = {"type": "string"}
        label = {"label": words, "description": words, "score": {"type": "number"}}
        return {"labels": {"type": "array", "items": base.object_schema(label)}}


@dataclass(frozen=True)
class LabelColumns(base.Columns):
    """How rows {path, labels: [{label, description, score}], error} become text, tables and lines.

    CSV has path, labels, scores and error: the labels joined by "|", as tables to learn from have them, and their
    scores alike.
    """

    @property
    def names(self) -> list[str]:
        return ["path", "labels", "scores", "error"]

    @property
    def given(self) -> str:
        return "a model of labels"

    def row(self, prediction: base.Prediction) -> Row:
        return prediction.to_json()

    def cells(self, row: Row) -> list[str]:
        labels = JOIN.join(each["label"] for each in row["labels"])
        scores = JOIN.join(f"{each['score']:.6f}" for each in row["labels"])
        return [row["path"], labels, scores, row["error"] or ""]

    def document(self, row: Row) -> Row:
        """Rounds each score to six digits: they are all that float32 can promise."""
        return {**row, "labels": [{**each, "score": round(each["score"], 6)} for each in row["labels"]]}

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        text = pyarrow.string()
        label = pyarrow.struct([("label", text), ("description", text), ("score", pyarrow.float32())])
        return pyarrow.schema([("path", text), ("labels", pyarrow.list_(label)), ("error", text)])

    def lines(self, row: Row) -> list[str]:
        """Returns a line for each label, with its score, a bar and its name."""
        from vitrail.drawing.page import visible

        if not row["labels"]:
            return [] if row["error"] else ["no label is likely enough"]
        width = max(len(visible(each["label"])) for each in row["labels"])
        lines = []
        for each in row["labels"]:
            bar = "█" * round(_BAR * each["score"])
            words = f"{visible(each['label']):<{width}}  {visible(each['description'])}".rstrip()
            lines.append(f"{each['score']:>6.1%}  {bar:<{_BAR}}  {words}")
        return lines


PART = LabelAnswer()
