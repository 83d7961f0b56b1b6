"""The interface of a task's answer.py: from a model's output to what is shown and written. Without torch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame, Size
from vitrail.tasks.base import Meaning

if TYPE_CHECKING:
    import pyarrow

_BAR = 20
"""Length, in characters, of the bar that a terminal draws for a score of 1."""
UNKNOWN = "unknown"
"""The label of a picture whose best class scores below the threshold."""
Row = dict[str, Any]
"""The answer to one picture as a dictionary: `path`, `error` (None where the picture could be read), and the keys of
the task."""


@dataclass(frozen=True)
class AnswerOptions:
    """Options of answers: how many classes to list, and from which score on."""

    top: int = 5
    """How many of the best classes an answer lists, in tasks that rank classes."""
    threshold: float | None = None
    """The score, from 0 to 1, below which an answer does not count. None: the task's default."""


@dataclass(frozen=True)
class ServedOptions:
    """The form in which a server sends answers."""

    mask: Literal["rle", "png", "none"] = "rle"
    """Masks as COCO's run lengths of each class, as a PNG file in base64, or not at all."""


PLAIN = AnswerOptions()
"""The defaults."""


def check_threshold(threshold: float | None) -> None:
    """Raises a UserError for a threshold outside 0 to 1."""
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"--threshold {threshold:g}: scores go from 0 to 1; give a number such as 0.6")


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Makes the JSON schema of an object, all of whose properties are required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


@dataclass(frozen=True)
class Guess:
    """A class or a label, and how likely it is."""

    label: str
    description: str
    """The label in words, if it is a code; else empty."""
    score: float
    """From 0 to 1: the softmax of the logits at this class, or the sigmoid of this label's logit."""


def guess_lines(guesses: Sequence[Row]) -> list[str]:
    """Returns a line for each guess, given as a dictionary of its fields: its score, a bar and its name."""
    from vitrail.drawing.page import visible

    width = max((len(visible(guess["label"])) for guess in guesses), default=0)
    lines = []
    for guess in guesses:
        bar = "█" * round(_BAR * guess["score"])
        words = f"{visible(guess['label']):<{width}}  {visible(guess['description'])}".rstrip()
        lines.append(f"{guess['score']:>6.1%}  {bar:<{_BAR}}  {words}")
    return lines


class Prediction(ABC):
    """The answer to one picture, or the reason why there is none."""

    path: str | None
    """The picture's path; None for a picture that was given in memory."""
    error: str | None
    """Why the picture could not be read; None if it could."""

    @abstractmethod
    def to_json(self) -> Row:
        """Returns path, error and the answer as values that JSON can hold."""


class Columns(ABC):
    """Turns predictions into rows, and rows into lines of a table. Writers of files use only this and know no task."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Returns the header of a .csv file; the first name is `path`."""

    @property
    @abstractmethod
    def given(self) -> str:
        """Returns the flags or the model that lead to these columns, such as "--top 5": for the message about a file
        with others."""

    @abstractmethod
    def row(self, prediction: Any) -> Row:
        """Returns the row of one picture."""

    @abstractmethod
    def cells(self, row: Row) -> list[str]:
        """Returns a row as text, one cell for each of `names`."""

    @abstractmethod
    def document(self, row: Row) -> Row:
        """Returns a row as it is written to JSON, with numbers rounded."""

    @abstractmethod
    def schema(self) -> "pyarrow.Schema":
        """Returns the schema of a .parquet file, `path` among its columns."""

    @abstractmethod
    def lines(self, row: Row) -> list[str]:
        """Returns the lines that a terminal shows below the path, with control characters made visible."""


class Answer(ABC):
    """Turns a model's outputs into answers. Without torch."""

    output: ClassVar[str]
    """The name of the model's output in an exported file, such as "logits"."""
    tiled: ClassVar[bool] = False
    """Whether the answer to a large picture can be put together from overlapping tiles of it, by `place_scores` and
    `of_bands`."""

    @abstractmethod
    def check(self, asked: AnswerOptions, meaning: Meaning) -> None:
        """Raises a UserError for options `asked` that do not fit a model whose outputs have this `meaning`."""

    @abstractmethod
    def prediction(
        self,
        path: str | None,
        output: np.ndarray | None,
        error: str | None,
        meaning: Meaning,
        asked: AnswerOptions,
        frame: Frame | None = None,
    ) -> Prediction:
        """Makes the answer to one picture.

        Args:
            path: the picture's path; None if it was given in memory.
            output: what the model returned for it, without the batch axis; None if there was an error.
            error: why the picture could not be read, or None.
            meaning: what the model's outputs stand for.
            asked: how many classes to list, and from which score on.
            frame: the map between the picture and the model's input, for answers in the picture's pixels.
        """

    @abstractmethod
    def columns(self, meaning: Meaning, asked: AnswerOptions) -> Columns:
        """Returns how the answers `asked` for, of a model whose outputs have this `meaning`, are written to tables and
        shown."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Returns JSON schemas by key of what `to_json` has besides path and error: for the description of the server's
        API."""

    def place_scores(self, output: np.ndarray) -> np.ndarray:
        """Returns scores that may be interpolated and averaged, float32 [classes, rows, columns]; they cover the
        model's input. output: what the model returned for a tile, without the batch axis."""
        raise NotImplementedError

    def of_bands(
        self,
        path: str | None,
        bands: Iterable[tuple[slice, np.ndarray]],
        size: Size,
        meaning: Meaning,
        asked: AnswerOptions,
    ) -> Prediction:
        """Makes the answer to a picture from the scores of its pixels.

        Args:
            path: the picture's path; None if it was given in memory.
            bands: rows of the picture, from top to bottom, and their scores, float32 [classes, rows, columns].
            size: the rows and columns of the picture.
            meaning: what the model's outputs stand for.
            asked: the options of the answer.
        """
        raise NotImplementedError

    def mask_file(self, prediction: Any, meaning: Meaning) -> bytes:
        """Writes the mask of a picture as a PNG whose pixels are the numbers of classes.

        Args:
            prediction: the answer, which has a mask.
            meaning: what the model's outputs stand for.
        """
        raise UserError("--masks is for models that give the class of each pixel; this one does not")

    def with_mask_file(self, prediction: Any, path: str) -> Any:
        """Returns the prediction with the path of its mask in place of the mask itself, in what is written of it."""
        raise NotImplementedError

    def painted(self, prediction: Any, pixels: np.ndarray, meaning: Meaning) -> np.ndarray:
        """Draws an answer over its picture, uint8 [rows, columns, 3].

        Args:
            prediction: the answer, which is no error.
            pixels: the upright picture, uint8 [rows, columns, channels].
            meaning: what the model's outputs stand for.
        """
        raise UserError("--overlay is for models whose answers lie in the picture, such as masks; this one has none")

    def output_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Returns the shape of the output for one picture. config: the model's configuration."""
        return (config.num_classes,)

    def cells(self, outputs: int, size: Size) -> int:
        """Returns how many scores are computed for the answer to a picture: 0 if its size makes no difference.

        Args:
            outputs: the number of the model's outputs.
            size: the picture's rows and columns.
        """
        return 0

    def legend(self, meaning: Meaning, outputs: int) -> list[dict[str, str]] | None:
        """Returns label, description and colour of each of the `outputs`, by their `meaning`, for answers that are
        drawn over the picture; None for other answers."""
        return None

    def served(self, prediction: Any, meaning: Meaning, options: ServedOptions) -> Row:
        """Returns what a server sends of an answer, without the picture's path and error.

        Args:
            prediction: the answer, which may be an error.
            meaning: what the model's outputs stand for.
            options: in what form it is sent.
        """
        return {key: value for key, value in prediction.to_json().items() if key not in ("path", "error")}

    def folders(self, meaning: Meaning, outputs: int) -> list[str]:
        """Returns the folder names that pictures may be sorted into, one by `meaning` for each of the `outputs`."""
        raise UserError("--sort-into is for models that give each picture one class; this one does not")

    def folder(self, prediction: Any, asked: AnswerOptions) -> str | None:
        """Returns the name of the folder that a picture with this `prediction` is sorted into, None if by the
        threshold of `asked` it has no answer."""
        raise NotImplementedError
