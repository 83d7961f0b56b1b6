"""Defines what a job writes: rows, and the objects that know what is in them. Writers and jobs know no task, only
these."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from vitrail.tasks.answers import Row

if TYPE_CHECKING:
    import pyarrow

    from vitrail.data.inputs import Input
    from vitrail.inference.engines.facts import ExportMetadata
    from vitrail.inference.predictor import Predictor


class TableColumns(Protocol):
    """The columns of a table, and how a row fills them."""

    @property
    def names(self) -> Sequence[str]:
        """Returns the header of a .csv file; the first is `path`."""
        ...

    @property
    def given(self) -> str:
        """Returns what determines these columns, such as "--top 5", for a message about a file that has others."""
        ...

    def cells(self, row: Row) -> list[str]:
        """Returns the row as text, a cell for each of `names`."""
        ...

    def schema(self) -> "pyarrow.Schema":
        """Returns the columns of a .parquet file, `path` among them.

        The writer fills a column `id` with the numbers of the rows from 0, and a column of fixed-size lists from
        arrays.
        """
        ...


@runtime_checkable
class AnswerColumns(TableColumns, Protocol):
    """Columns of a model's answers, which can also become JSON or lines for a person."""

    def document(self, row: Row) -> Row:
        """Returns the row as a JSON object."""
        ...

    def lines(self, row: Row) -> list[str]:
        """Returns the lines that a terminal shows below the path, safe to print."""
        ...


class RowKind(Protocol):
    """The kind of rows that a job writes: predictions or features."""

    formats: ClassVar[tuple[str, ...]]
    """The endings of files that can hold these rows."""

    def columns(self, facts: "ExportMetadata") -> TableColumns:
        """Returns the columns for the rows of a model."""
        ...

    def batches(self, predictor: "Predictor", inputs: "Iterable[Input]") -> Iterator[list[Row]]:
        """Yields a row for each input, in their order, one list for each batch."""
        ...
