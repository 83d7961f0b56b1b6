"""Cuts large pictures into overlapping tiles, runs the model on each, and blends what it says where tiles overlap.

A model's input is small: a large picture that is resized to it loses its details. Tiles are cut out at the picture's
own resolution. Near its edges a tile sees least of what is around, so the scores of a tile count by a weight that falls
smoothly from its middle to its edges (a Hann window along both axes), and add up to 1 in every pixel. The rows of the
picture are finished from top to bottom, in bands, so that however large it is, only its pixels and its answer are in
memory as a whole.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import ValueLimits, decode_planes, from_array, to_array
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits
from vitrail.data.inputs import Input, Prepared, writable
from vitrail.data.preparation import ArrayNormaliser, Preparation
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.inference.engines import Engine
from vitrail.masks_and_boxes import Frame, Size
from vitrail.tasks import task
from vitrail.tasks.answers import AnswerOptions, Prediction

_OVERLAP = 0.25
"""The share of a tile's side that it has in common with the next one, at least."""
_LEAST_SIDE = 16
"""The smallest side of tiles, in pixels."""
_CELLS = 1 << 24
"""How many scores are held at a time while bands are blended: 64 MB of them."""
NOT_FINITE = "the model's outputs are not numbers (nan or infinite)"
"""The error in the row of a picture that a model has no answer for."""


@dataclass(frozen=True)
class Tiling:
    """Tiles of one size that cover a picture; the first begins and the last ends at its edges."""

    size: Size
    """The picture's rows and columns."""
    tile: Size
    """A tile's rows and columns."""
    tops: tuple[int, ...]
    """The first row of each row of tiles."""
    lefts: tuple[int, ...]
    """The first column of each column of tiles."""

    @classmethod
    def of(cls, size: Size, wanted: Size) -> "Tiling":
        """Covers a picture of a size with tiles of the `wanted` size; along a side that is shorter, with one tile."""
        tile = min(size[0], wanted[0]), min(size[1], wanted[1])
        return cls(size, tile, *(_starts(whole, part) for whole, part in zip(size, tile, strict=True)))

    @property
    def count(self) -> int:
        """Returns the number of tiles."""
        return len(self.tops) * len(self.lefts)

    @cached_property
    def _weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the windows down and across a tile, float32 [rows of a tile] and [columns of a tile]."""
        down, across = (np.sin(np.pi * (np.arange(side) + 0.5) / side) ** 2 for side in self.tile)
        return down.astype(np.float32), across.astype(np.float32)

    @cached_property
    def _totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sums of all windows, float32 [rows] and [columns]: since tiles form a grid, the weights of a
        pixel add up to the product of both."""
        totals = []
        for side, window, starts in zip(self.size, self._weights, (self.tops, self.lefts), strict=True):
            total = np.zeros(side, dtype=np.float32)
            for start in starts:
                total[start : start + len(window)] += window
            totals.append(total)
        return totals[0], totals[1]

    def blended(self, scores: "Sequence[_TileRow]", first: int, last: int) -> np.ndarray:
        """Blends the scores of tiles in the picture's rows from `first` up to but not including `last`.

        scores: the rows of tiles that these rows lie in. Returns float32 [classes, rows, columns].
        """
        (down, across), (down_total, across_total) = self._weights, self._totals
        frame = Frame.of(self.tile, self.tile)
        blended = np.zeros((len(scores[0].scores[0]), last - first, self.size[1]), dtype=np.float32)
        for row in scores:
            begin, end = max(first, row.top), min(last, row.top + self.tile[0])
            if begin >= end:
                continue
            own = slice(begin - row.top, end - row.top)
            weight = down[own, None] * across
            for left, each in zip(self.lefts, row.scores, strict=True):
                found = frame.inverse_scores(each, own)
                blended[:, begin - first : end - first, left : left + self.tile[1]] += found * weight
        blended /= down_total[first:last, None] * across_total
        return blended


@dataclass(frozen=True)
class _TileRow:
    """The scores of the tiles side by side."""

    top: int
    """Their first row in the picture."""
    scores: list[np.ndarray]
    """The scores of each tile from left to right, float32 [classes, rows, columns], which cover it."""


@dataclass(frozen=True)
class _WholePicture:
    """Decodes a picture at its full size; it can be sent to a process that decodes."""

    channels: int
    limits: ValueLimits

    def __call__(self, content: Any) -> np.ndarray:
        """Returns [rows, columns, channels], uint8 or float32 from 0 to 1."""
        return to_array(decode_planes(content, self.channels, limits=self.limits))


class TilePredictor:
    """Answers pictures from tiles, one picture after the other; the tiles of a picture share the processors.

    Args:
        engine: What runs the model.
        batch_size: The number of tiles that are computed at a time.
        tiles: The longer side of a tile in pixels of the picture; True for the size of the model's input.
        limits: What decoding a picture may take.
    """

    def __init__(self, engine: Engine, batch_size: int, tiles: int, limits: DecodeLimits | None = None) -> None:
        preprocessing = engine.facts.preprocessing
        self.engine, self.batch_size = engine, batch_size
        self.tile = tile_size(preprocessing.rows_columns, tiles)
        self._prepare = Preparation(preprocessing, limits)
        self._decoder = BoundedDecoder((limits or DecodeLimits()).for_whole_pictures())
        self._decode = _WholePicture(len(preprocessing.mean), preprocessing.range)
        self._resize = EvaluationTransform(replace(preprocessing, crop="squash"))
        self._normalise = ArrayNormaliser(preprocessing)
        self._answer = task(engine.facts.config.task).answer
        if not self._answer.tiled:
            raise UserError(
                "--tiles is for models that give the class of each pixel; this one answers for a whole picture: "
                "leave it out"
            )

    def predictions(self, inputs: Iterable[Input], asked: AnswerOptions) -> Iterator[list[Prediction]]:
        """Yields the answer to each input, in their order, in lists of one."""
        self._answer.check(asked, self.engine.facts.meaning)
        with self.engine.running(), ThreadPoolExecutor(self.engine.workers, "vitrail-tiles") as pool:
            for each in inputs:
                yield [self._answered(pool, each, asked)]

    def _answered(self, pool: ThreadPoolExecutor, picture: Input, asked: AnswerOptions) -> Prediction:
        path = None if picture.path is None else writable(picture.path)
        meaning = self.engine.facts.meaning
        try:
            content = picture.read()
            if isinstance(content, Prepared):
                raise BadImage("is prepared input, which has no pixels to cut into tiles")
            pixels = self._decoder(self._decode, content)
            tiling = Tiling.of(pixels.shape[:2], self.tile)
            if tiling.count > 1:
                del content
                bands = self._bands(pool, pixels, tiling)
                return self._answer.of_bands(path, bands, tiling.size, meaning, asked)
            # One tile is the whole picture, and prepared as without tiles.
            images, errors, frames = self._prepare([Input(picture.path, lambda: content)])
            if errors[0] is not None:
                raise BadImage(errors[0])
            output = _finite(self.engine.outputs(images))[0]
            return self._answer.prediction(path, output, None, meaning, asked, frames[0])
        except BadImage as error:
            return self._answer.prediction(path, None, str(error), meaning, asked)
        except MemoryError:
            return self._answer.prediction(path, None, "does not fit into memory", meaning, asked)

    def _bands(
        self, pool: ThreadPoolExecutor, pixels: np.ndarray, tiling: Tiling
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields the rows of the picture from top to bottom, a band at a time, with their blended scores."""
        kept: deque[_TileRow] = deque()
        ends = (*tiling.tops[1:], tiling.size[0])
        for top, end in zip(tiling.tops, ends, strict=True):
            kept.append(_TileRow(top, self._scores(pool, pixels, tiling, top)))
            while kept[0].top + tiling.tile[0] <= top:
                kept.popleft()
            step = max(1, _CELLS // (len(kept[0].scores[0]) * tiling.size[1]))
            for first in range(top, end, step):
                last = min(first + step, end)
                yield slice(first, last), tiling.blended(kept, first, last)

    def _scores(self, pool: ThreadPoolExecutor, pixels: np.ndarray, tiling: Tiling, top: int) -> list[np.ndarray]:
        """Computes the scores of the tiles that begin in one row."""

        def computed(lefts: Sequence[int]) -> list[np.ndarray]:
            """Runs the model on a batch of tiles."""
            rows, columns = tiling.tile
            cut = [pixels[top : top + rows, left : left + columns] for left in lefts]
            images = self._normalise(np.stack([self._resize(from_array(each)) for each in cut]))
            return [self._answer.place_scores(output) for output in _finite(self.engine.outputs(images))]

        size = self.batch_size
        parts = [tiling.lefts[place : place + size] for place in range(0, len(tiling.lefts), size)]
        return [each for part in pool.map(computed, parts) for each in part]


def tile_size(input_size: Size, tiles: int) -> Size:
    """Returns the rows and columns of tiles.

    Args:
        input_size: The rows and columns of the model's input, whose shape tiles have.
        tiles: Their longer side in pixels; True for the size of the input.

    Raises:
        UserError: If they would be too small.
    """
    if tiles is True:
        return input_size
    if tiles < _LEAST_SIDE:
        raise UserError(f"--tiles {tiles}: tiles have at least {_LEAST_SIDE} pixels along their longer side")
    rows, columns = (max(1, round(side * tiles / max(input_size))) for side in input_size)
    return rows, columns


def _starts(whole: int, part: int) -> tuple[int, ...]:
    """Spreads tiles evenly along a side, as few as leave the overlap that is wanted."""
    if part >= whole:
        return (0,)
    common = min(math.ceil(_OVERLAP * part), part - 1)
    count = math.ceil((whole - common) / (part - common))
    return tuple(round(place * (whole - part) / (count - 1)) for place in range(count))


def _finite(outputs: np.ndarray) -> np.ndarray:
    """Returns the outputs of a model; raises BadImage if they are not finite, as those of damaged weights."""
    if not np.isfinite(outputs).all():
        raise BadImage(NOT_FINITE)
    return outputs
