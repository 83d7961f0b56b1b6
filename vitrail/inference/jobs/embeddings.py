"""Makes rows of features: what a model's head is given."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from vitrail.data.inputs import Input
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.jobs import npy
from vitrail.inference.jobs.rows import Row
from vitrail.inference.predictor import Predictor

if TYPE_CHECKING:
    import pyarrow

FeaturePrecision = Literal["float16", "float32"]
"""How features are stored."""


@dataclass(frozen=True)
class EmbeddingColumns:
    """The columns of rows {path, embedding: [width], error}.

    In CSV these are path, error, feature0, feature1, ..., with as many digits as give the same numbers again. In
    parquet rows have an `id` too.
    """

    width: int
    dtype: FeaturePrecision = "float32"

    @property
    def names(self) -> list[str]:
        """Returns the header of a .csv file."""
        return ["path", "error", *(f"feature{place}" for place in range(self.width))]

    @property
    def given(self) -> str:
        """Returns what determines these columns, for a message about a file that has others."""
        return f"a model of width {self.width}"

    def cells(self, row: Row) -> list[str]:
        """Returns a row as text; features of a picture that could not be read are empty."""
        vector = row["embedding"]
        values = [""] * self.width if vector is None else [str(each) for each in vector.astype(np.dtype(self.dtype))]
        return [row["path"], row["error"] or "", *values]

    def schema(self) -> "pyarrow.Schema":
        """Returns the columns of a .parquet file."""
        import pyarrow

        number = {"float16": pyarrow.float16(), "float32": pyarrow.float32()}[self.dtype]
        fields = [("id", pyarrow.int64()), ("path", pyarrow.string()), ("embedding", pyarrow.list_(number, self.width))]
        return pyarrow.schema([*fields, ("error", pyarrow.string())])


@dataclass(frozen=True)
class EmbeddingRows:
    """The features of each picture."""

    formats: ClassVar[tuple[str, ...]] = (".parquet", npy.ENDING, ".csv")

    dtype: FeaturePrecision = "float32"

    def columns(self, facts: ExportMetadata) -> EmbeddingColumns:
        """Returns the columns for a model's features."""
        return EmbeddingColumns(facts.features_width, self.dtype)

    def batches(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Row]]:
        """Yields a row for each input, in their order, one list for each batch."""
        for batch in predictor.embeddings(inputs):
            yield [{"path": each.path, "embedding": each.vector, "error": each.error} for each in batch]
