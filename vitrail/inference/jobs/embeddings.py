"""Rows of the features of pictures: what a model's head is given."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from vitrail.data.inputs import Input
from vitrail.inference.engines.facts import Facts
from vitrail.inference.jobs import npy
from vitrail.inference.jobs.rows import Row
from vitrail.inference.predictor import Predictor

if TYPE_CHECKING:
    import pyarrow

Precision = Literal["float16", "float32"]


@dataclass(frozen=True)
class EmbeddingColumns:
    """How rows {path, embedding: [width], error} become tables: in CSV path, error, feature0, feature1, ..., in as many
    digits as give the same numbers again; in parquet they are numbered."""

    width: int
    dtype: Precision = "float32"

    @property
    def names(self) -> list[str]:
        return ["path", "error", *(f"feature{place}" for place in range(self.width))]

    @property
    def given(self) -> str:
        return f"a model of width {self.width}"

    def cells(self, row: Row) -> list[str]:
        vector = row["embedding"]
        values = [""] * self.width if vector is None else [str(each) for each in vector.astype(np.dtype(self.dtype))]
        return [row["path"], row["error"] or "", *values]

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        number = {"float16": pyarrow.float16(), "float32": pyarrow.float32()}[self.dtype]
        fields = [("id", pyarrow.int64()), ("path", pyarrow.string()), ("embedding", pyarrow.list_(number, self.width))]
        return pyarrow.schema([*fields, ("error", pyarrow.string())])


@dataclass(frozen=True)
class EmbeddingRows:
    """The features of each picture."""

    formats: ClassVar[tuple[str, ...]] = (".parquet", npy.ENDING, ".csv")

    dtype: Precision = "float32"

    def columns(self, facts: Facts) -> EmbeddingColumns:
        return EmbeddingColumns(facts.features_width, self.dtype)

    def batches(self, predictor: Predictor, inputs: Iterable[Input]) -> Iterator[list[Row]]:
        for batch in predictor.embeddings(inputs):
            yield [{"path": each.path, "embedding": each.vector, "error": each.error} for each in batch]
