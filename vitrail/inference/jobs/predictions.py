"""Makes rows of a model's answers to pictures."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from vitrail.data.inputs import Input
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.jobs.answer_files import AnswerFiles
from vitrail.inference.jobs.sorting import Sorting
from vitrail.inference.predictor import Predictor
from vitrail.tasks import task
from vitrail.tasks.answers import PLAIN, AnswerOptions, Columns, Prediction, Row


@dataclass(frozen=True)
class PredictionRows:
    """The answer to each picture, in the form of the model's task."""

    formats: ClassVar[tuple[str, ...]] = (".csv", ".jsonl", ".parquet")

    asked: AnswerOptions = PLAIN
    """How many classes, or other options of the task."""
    sorting: Sorting | None = None
    """The folders into which pictures are sorted by their answers, if any."""
    files: AnswerFiles | None = None
    """The folders that masks and overlays are written into, if any."""

    def columns(self, facts: ExportMetadata) -> Columns:
        """Returns the columns for a model's answers; raises a UserError if the model cannot answer what is asked."""
        answer = task(facts.config.task).answer
        answer.check(self.asked, facts.meaning)
        return answer.columns(facts.meaning, self.asked)

    def batches(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Row]]:
        """Yields a row for each input, in their order, one list for each batch."""
        columns = self.columns(predictor.engine.facts)
        for batch in self._predictions(predictor, inputs):
            yield [columns.row(each) for each in batch]

    def _predictions(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Prediction]]:
        """Yields the predictions; before that, writes their files and puts pictures into the folders of their classes
        if that is wanted."""
        facts = predictor.engine.facts
        answer = task(facts.config.task).answer
        if self.files is not None:
            return self.files.write(
                inputs, lambda found: predictor.predictions(found, self.asked), answer, facts.meaning
            )
        if self.sorting is None:
            return predictor.predictions(inputs, self.asked)
        return self.sorting.sort(
            inputs,
            lambda found: predictor.predictions(found, self.asked),
            lambda prediction: answer.folder(prediction, self.asked),
            answer.folders(facts.meaning, facts.config.num_classes),
        )
