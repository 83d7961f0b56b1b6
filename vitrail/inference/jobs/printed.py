"""Prints rows as they come: as one JSON document, or as lines for a person."""

from collections.abc import Sequence
from json import dumps
from typing import IO

from vitrail.inference.jobs.job import JobProgress, JobRequest, Observer, open_job, stream
from vitrail.inference.jobs.rows import AnswerColumns, Row, RowKind
from vitrail.inference.jobs.writers import RowWriter, Seen


def print_rows(request: JobRequest, rows: RowKind, to: IO[str], json: bool, observer: Observer) -> JobProgress:
    """Prints the answers to all pictures, as one JSON document or as lines for a person."""
    job = open_job(request, observer.say)
    columns = rows.columns(job.facts)
    assert isinstance(columns, AnswerColumns), "only answers can be printed"
    writer: RowWriter = JsonArray(to, columns) if json else Lines(to, columns)
    observer.started(writer.seen, 1)
    return stream(writer, rows.batches(job.predictor, job.inputs), observer)


class JsonArray:
    """Prints one JSON document, a list of rows."""

    def __init__(self, stream: IO[str], columns: AnswerColumns) -> None:
        self._stream, self._columns = stream, columns
        self.seen, self.count = Seen(), 0
        self._begun = False

    def write(self, rows: Sequence[Row]) -> None:
        """Prints rows as elements of the list."""
        for row in rows:
            text = dumps(self._columns.document(row), ensure_ascii=False)
            self._stream.write((",\n  " if self._begun else "[\n  ") + text)
            self._begun = True
        self._stream.flush()

    def close(self, finished: bool) -> None:
        """Ends the list."""
        self._stream.write("\n]\n" if self._begun else "[]\n")


class Lines:
    """Prints the path of each picture and, indented below it, the answer or why there is none."""

    def __init__(self, stream: IO[str], columns: AnswerColumns) -> None:
        self._stream, self._columns = stream, columns
        self.seen, self.count = Seen(), 0

    def write(self, rows: Sequence[Row]) -> None:
        """Prints rows."""
        from vitrail.drawing.page import visible

        for row in rows:
            below = [visible(row["error"])] if row["error"] else []
            below += self._columns.lines(row)
            self._stream.write("\n  ".join([visible(row["path"]), *below]) + "\n")
        self._stream.flush()

    def close(self, finished: bool) -> None:
        """Does nothing: lines need no end."""
