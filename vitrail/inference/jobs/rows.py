"""What a job writes: rows, and the objects that know what is in them. Writers and jobs know no task, only these."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow

    from vitrail.data.inputs import Input
    from vitrail.inference.engines.facts import Facts
    from vitrail.inference.predictor import Predictor

Row = dict[str, Any]
"""What is known of one picture: `path`, `error` (None where it could be read), and what was asked for."""


class Columns(Protocol):
    """How rows become lines of a table."""

    @property
    def names(self) -> Sequence[str]:
        """The header of a .csv file; the first is `path`."""
        ...

    @property
    def given(self) -> str:
        """What gives these columns and no others, such as "--top 5": for a file that has others."""
        ...

    def cells(self, row: Row) -> list[str]:
        """Returns the row as text, a cell for each of `names`."""
        ...

    def schema(self) -> "pyarrow.Schema":
        """Returns the columns of a .parquet file, `path` among them. A column `id` is filled by the writer, which
        numbers the rows from 0; one of fixed-size lists is filled from arrays."""
        ...


@runtime_checkable
class AnswerColumns(Columns, Protocol):
    """How rows with the answers of a model become JSON, or lines for a person, besides."""

    def document(self, row: Row) -> Row:
        """Returns the row as JSON gives it."""
        ...

    def lines(self, row: Row) -> list[str]:
        """Returns what a terminal shows of the answer below the path, safe to print."""
        ...


class Rows(Protocol):
    """What is asked of a model, and so which rows a job writes."""

    formats: ClassVar[tuple[str, ...]]
    """The endings of the files that can hold them."""

    def columns(self, facts: "Facts") -> Columns:
        """Returns what the rows of a model hold."""
        ...

    def batches(self, predictor: "Predictor", inputs: "Iterable[Input]") -> Iterator[list[Row]]:
        """Gives a row for each input, in their order, a list a batch."""
        ...
