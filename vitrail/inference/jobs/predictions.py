"""Rows of what a model says of pictures."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from vitrail.data.inputs import Input
from vitrail.inference.engines.facts import Facts
from vitrail.inference.jobs.sorting import Sorting
from vitrail.inference.predictor import Predictor
from vitrail.tasks import task
from vitrail.tasks.base import PLAIN, Asked, Columns, Prediction, Row


@dataclass(frozen=True)
class PredictionRows:
    """The answer to each picture, as the task of the model has it."""

    formats: ClassVar[tuple[str, ...]] = (".csv", ".jsonl", ".parquet")

    asked: Asked = PLAIN
    sorting: Sorting | None = None
    """The folders that pictures are put into besides."""

    def columns(self, facts: Facts) -> Columns:
        """Returns how the answers of a model are written; a UserError where it cannot be asked so."""
        answer = task(facts.config.task).answer
        answer.check(self.asked, facts.meaning)
        return answer.columns(facts.meaning, self.asked)

    def batches(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Row]]:
        """Gives a row for each input, in their order, a list a batch."""
        columns = self.columns(predictor.engine.facts)
        for batch in self._predictions(predictor, inputs):
            yield [columns.row(each) for each in batch]

    def _predictions(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Prediction]]:
        if self.sorting is None:
            return predictor.predictions(inputs, self.asked)
        facts = predictor.engine.facts
        answer = task(facts.config.task).answer
        return self.sorting.sort(
            inputs,
            lambda found: predictor.predictions(found, self.asked),
            lambda prediction: answer.folder(prediction, self.asked),
            answer.folders(facts.meaning, facts.config.num_classes),
        )
