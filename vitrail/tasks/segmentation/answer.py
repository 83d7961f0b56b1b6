"""From logits on the grid of patches to a mask in the picture's own pixels, and how masks are written and shown."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame, Size
from vitrail.tasks import answers
from vitrail.tasks.answers import AnswerOptions, Row, ServedOptions
from vitrail.tasks.base import Meaning
from vitrail.tasks.segmentation.colours import class_colours, mask_png, paint_mask
from vitrail.tasks.segmentation.rle import encode_classes
from vitrail.tasks.segmentation.target import IGNORE

if TYPE_CHECKING:
    import pyarrow

_CELLS = 1 << 24
"""How many scores are held at a time while a mask is computed: 64 MB of them."""
_DECIMALS = 6


def mask_of(logits: np.ndarray, frame: Frame, threshold: float | None = None) -> np.ndarray:
    """Returns the class of each pixel of a picture, uint8 [rows, columns]: the one with the highest logit, interpolated
    between patches.

    Args:
        logits: float32 [classes, grid rows, grid columns].
        frame: the map between the picture and the model's input.
        threshold: the probability below which a pixel has no class; None: every pixel has one.

    Returns:
        Classes; `IGNORE` for pixels that the model did not see, or that have no class.
    """
    mask = np.empty(frame.size, dtype=np.uint8)
    step = max(1, _CELLS // (len(logits) * frame.size[1]))
    for first in range(0, frame.size[0], step):
        rows = slice(first, min(first + step, frame.size[0]))
        mask[rows] = classes_of(frame.inverse_scores(logits, rows), threshold)
    return mask


def classes_of(scores: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Returns the class of each pixel, uint8 [rows, columns], from logits [classes, rows, columns].

    A pixel whose logits are nan, or whose probability is below the `threshold`, becomes `IGNORE`.
    """
    found = scores.argmax(axis=0).astype(np.uint8)
    unseen = np.isnan(scores[0])
    if threshold is not None:
        best = np.take_along_axis(scores, found[None].astype(np.intp), axis=0)
        unseen |= 1 / np.exp(scores - best).sum(axis=0) < threshold
    return np.where(unseen, IGNORE, found)


def pixel_counts(mask: np.ndarray) -> np.ndarray:
    """Counts the pixels of each value of a mask, uint8 [rows, columns]: int64 [256].

    Some rows at a time, since counting takes eight bytes a pixel.
    """
    step = max(1, _CELLS // max(1, mask.shape[1]))
    parts = [np.bincount(mask[row : row + step].ravel(), minlength=256) for row in range(0, len(mask), step)]
    return np.sum(parts, axis=0)


@dataclass(frozen=True)
class Prediction(answers.Prediction):
    """The mask of one picture, or the reason why there is none."""

    path: str | None
    mask: np.ndarray | None = None
    """uint8 [rows, columns] of the picture: the index of each pixel's class, 255 for none."""
    names: tuple[str, ...] = ()
    """The names of the classes, in order."""
    error: str | None = None
    file: str | None = field(default=None, compare=False)
    """The path of the PNG that holds the mask, if one was written."""

    @property
    def shares(self) -> dict[str, float]:
        """Returns the share of the picture's pixels that each class has, by name; classes without pixels are left
        out."""
        if self.mask is None:
            return {}
        counts = pixel_counts(self.mask)
        present = np.flatnonzero(counts[: len(self.names)]).tolist()
        return {self.names[index]: counts[index] / self.mask.size for index in present}

    def to_json(self) -> Row:
        """Returns path, mask, shares and error. The mask is the path of its file, or an object with the pixels of each
        class as COCO's run lengths."""
        return {"path": self.path, "mask": self._written(), "shares": self.shares, "error": self.error}

    def _written(self) -> Any:
        if self.mask is None or self.file is not None:
            return self.file
        shares = self.shares
        present = [index for index, name in enumerate(self.names) if name in shares]
        return {self.names[index]: runs for index, runs in encode_classes(self.mask, present).items()}


def _names(meaning: Meaning, classes: int) -> tuple[str, ...]:
    """Returns the names of the classes; their numbers stand for names that are not known."""
    return meaning.names or tuple(str(index) for index in range(classes))


class MaskAnswer(answers.Answer):
    """Turns logits [classes, grid rows, grid columns] into masks in the pictures' own pixels."""

    output = "mask_logits"
    tiled = True

    def check(self, asked: AnswerOptions, meaning: Meaning) -> None:
        """Accepts all options: `top` says nothing of masks, and a threshold leaves uncertain pixels without a class."""

    def prediction(
        self,
        path: str | None,
        output: np.ndarray | None,
        error: str | None,
        meaning: Meaning,
        asked: AnswerOptions,
        frame: Frame | None = None,
    ) -> Prediction:
        """Computes the mask from the logits. Without a frame it has the size of the grid."""
        if output is None:
            return Prediction(path, error=error)
        grid = (output.shape[1], output.shape[2])
        mask = mask_of(output, Frame.of(grid, grid) if frame is None else frame, asked.threshold)
        return Prediction(path, mask, _names(meaning, len(output)))

    def place_scores(self, output: np.ndarray) -> np.ndarray:
        return output

    def of_bands(
        self,
        path: str | None,
        bands: Iterable[tuple[slice, np.ndarray]],
        size: Size,
        meaning: Meaning,
        asked: AnswerOptions,
    ) -> Prediction:
        mask, classes = np.full(size, IGNORE, dtype=np.uint8), 0
        for rows, scores in bands:
            mask[rows], classes = classes_of(scores, asked.threshold), len(scores)
        return Prediction(path, mask, _names(meaning, classes))

    def output_shape(self, config: ModelConfig) -> tuple[int, ...]:
        return config.num_classes, *config.grid

    def cells(self, outputs: int, size: Size) -> int:
        return outputs * size[0] * size[1]

    def legend(self, meaning: Meaning, outputs: int) -> list[dict[str, str]]:
        colours = class_colours(outputs)[:outputs].tolist()
        named = [meaning.named(index) for index in range(outputs)]
        return [
            {"label": label, "description": words, "colour": "#" + bytes(colour).hex()}
            for (label, words), colour in zip(named, colours, strict=True)
        ]

    def served(self, prediction: Prediction, meaning: Meaning, options: ServedOptions) -> Row:
        """Returns the shares of the classes and the mask: run lengths by class, a PNG in base64, or None."""
        mask = None
        if prediction.mask is not None and options.mask == "png":
            mask = base64.b64encode(self.mask_file(prediction, meaning)).decode()
        elif prediction.mask is not None and options.mask == "rle":
            mask = prediction.to_json()["mask"]
        size = None if prediction.mask is None else list(prediction.mask.shape)
        return {"mask": mask, "size": size, "shares": prediction.shares}

    def columns(self, meaning: Meaning, asked: AnswerOptions) -> "MaskColumns":
        return MaskColumns(meaning.names)

    def schema(self) -> dict[str, Any]:
        lengths = answers.object_schema(
            {"size": {"type": "array", "items": {"type": "integer"}}, "counts": {"type": "string"}}
        )
        coded = {
            "type": "string",
            "description": "a PNG in base64 whose pixels are the numbers of classes, 255 for none",
        }
        size = {"type": "array", "items": {"type": "integer"}, "description": "the picture's rows and columns"}
        return {
            "mask": {"anyOf": [{"type": "object", "additionalProperties": lengths}, coded, {"type": "null"}]},
            "size": {"anyOf": [size, {"type": "null"}]},
            "shares": {"type": "object", "additionalProperties": {"type": "number"}},
        }

    def mask_file(self, prediction: Prediction, meaning: Meaning) -> bytes:
        """Writes the mask as a PNG with a palette: a byte for each pixel, its class, 255 for none."""
        assert prediction.mask is not None
        return mask_png(prediction.mask, len(prediction.names))

    def with_mask_file(self, prediction: Prediction, path: str) -> Prediction:
        return replace(prediction, file=path)

    def painted(self, prediction: Prediction, pixels: np.ndarray, meaning: Meaning) -> np.ndarray:
        assert prediction.mask is not None
        return paint_mask(pixels, prediction.mask, len(prediction.names))

    def folders(self, meaning: Meaning, outputs: int) -> list[str]:
        raise UserError("--sort-into puts pictures into folders of classes; this model gives masks: leave it out")


@dataclass(frozen=True)
class MaskColumns(answers.Columns):
    """Turns rows {path, mask, shares: {name: share}, error} into text, tables and lines.

    A .csv file has the columns path, mask, one for the share of each class, and error.
    """

    classes: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        return ["path", "mask", *(f"share of {name}" for name in self.classes), "error"]

    @property
    def given(self) -> str:
        return f"a model of {len(self.classes)} classes of pixels"

    def row(self, prediction: answers.Prediction) -> Row:
        return prediction.to_json()

    def cells(self, row: Row) -> list[str]:
        mask, shares = row["mask"], row["shares"]
        empty = row["error"] is not None
        texts = ["" if empty else f"{shares.get(name, 0.0):.{_DECIMALS}f}" for name in self.classes]
        return [row["path"], mask if isinstance(mask, str) else "", *texts, row["error"] or ""]

    def document(self, row: Row) -> Row:
        return {**row, "shares": {name: round(share, _DECIMALS) for name, share in row["shares"].items()}}

    def schema(self) -> "pyarrow.Schema":
        import pyarrow

        text = pyarrow.string()
        shares = pyarrow.map_(text, pyarrow.float64())
        return pyarrow.schema([("path", text), ("mask", text), ("shares", shares), ("error", text)])

    def lines(self, row: Row) -> list[str]:
        """Returns a line for each class that the picture shows, the largest share first; and the file of the mask."""
        shares: dict[str, float] = row["shares"]
        ordered = sorted(shares.items(), key=lambda each: -each[1])
        lines = answers.guess_lines([{"label": name, "description": "", "score": share} for name, share in ordered])
        return [*lines, row["mask"]] if isinstance(row["mask"], str) else lines


PART = MaskAnswer()
