"""The map between a picture's own pixels and a model's input, alike for pixels, masks, boxes and points.

Coordinates are continuous: the pixel in column i and row j covers x from i to i + 1 and y from j to j + 1, with its
centre at (i + 0.5, j + 0.5). Points are (x, y), boxes [left, top, right, bottom]; sizes and arrays go by (rows,
columns). A picture's own pixels are those of the upright picture at its full size, however it is stored or decoded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Size = tuple[int, int]
"""(rows, columns)"""
Box = tuple[float, float, float, float]
"""left, top, right, bottom in pixels."""
Matrix = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): what lies at (x, y) after a step was at (a x + b y + c, d x + e y + f) before it. This is the way
round in which Pillow's affine transform takes its numbers; it, too, counts from the corner of the first pixel."""
Moves = list[Matrix] | None
"""Where steps that move a picture append their matrices; None where nobody asks for them."""

_Polygon = list[tuple[float, float]]
_IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True)
class Frame:
    """Says where each point of a model's input lies in the picture, and where in the input the picture shows at all."""

    size: Size
    """Of the picture."""
    input_size: Size
    source: Matrix
    """From points of the input to points of the picture."""
    cuts: tuple[Matrix, ...] = ()
    """From points of the input to where they were before a step that moved the picture within the input. What was
    outside of the input then is cut off: padding shows in its place."""

    @classmethod
    def of(cls, size: Size, input_size: Size, box: Box | None = None) -> "Frame":
        """Makes the frame of a picture of which a box, or all of it, is resized to the input."""
        left, top, right, bottom = box or _whole(size)
        across, down = (right - left) / input_size[1], (bottom - top) / input_size[0]
        return cls(size, input_size, (across, 0.0, float(left), 0.0, down, float(top)))

    def then(self, *moves: Matrix) -> "Frame":
        """Returns the frame after further steps, each of which moves the input within its own size."""
        source, cuts = self.source, self.cuts
        for move in moves:
            source, cuts = _joined(source, move), tuple(_joined(cut, move) for cut in cuts)
            if _uncovers(move, self.input_size):
                cuts = (*cuts, move)
        return Frame(self.size, self.input_size, source, cuts)

    # From the picture to the input

    def points(self, points: ArrayLike) -> np.ndarray:
        """Moves points (..., 2) of the picture to the input. They may land outside of it; see `shows`."""
        return _moved_points(_inverse(self.source), points)

    def boxes(self, boxes: ArrayLike, *, clip: bool = True) -> np.ndarray:
        """Moves boxes (n, 4) of the picture to the input: the least upright boxes (n, 4) around where they land.

        clip: around what shows of them alone. A box of which nothing shows becomes [0, 0, 0, 0].
        """
        corners = self.points(_corners(boxes))  # (n, 4, 2)
        moved = _hulls(corners)
        if clip:
            for index in np.flatnonzero(~self.shows(corners).all(axis=1)):
                shown = self._clipped([(x, y) for x, y in corners[index].tolist()])
                moved[index] = _hulls(np.array([shown]))[0] if shown else 0.0
            moved[(moved[:, 2:] <= moved[:, :2]).any(axis=1)] = 0.0  # nothing but an edge is left
        return moved

    def mask(self, mask: np.ndarray, ignore: int = 255) -> np.ndarray:
        """Moves a mask (..., *size) of the picture to the input, (..., *input_size), by the nearest pixel.

        `ignore` stands where padding shows in place of the picture.
        """
        assert mask.shape[-2:] == self.size, f"a mask of {mask.shape[-2:]} for a picture of {self.size}"
        x, y = _centres(self.input_size)
        return _nearest(mask, _moved(self.source, x, y), self._shows(x, y), ignore)

    def shows(self, points: ArrayLike) -> np.ndarray:
        """Says of points (..., 2) of the input whether the picture shows there, as booleans (...)."""
        places = np.asarray(points, dtype=np.float64)
        return self._shows(places[..., 0], places[..., 1])

    # Back from the input to the picture

    def inverse_points(self, points: ArrayLike) -> np.ndarray:
        """Brings points (..., 2) of the input back to the picture."""
        return _moved_points(self.source, points)

    def inverse_boxes(self, boxes: ArrayLike, *, clip: bool = True) -> np.ndarray:
        """Brings boxes (n, 4) of the input back to the picture: the least upright boxes (n, 4) around where they land.

        clip: cut down to the picture.
        """
        brought = _hulls(self.inverse_points(_corners(boxes)))
        return np.clip(brought, 0.0, [*self.size[::-1], *self.size[::-1]]) if clip else brought

    def inverse_mask(self, mask: np.ndarray, unknown: int = 255) -> np.ndarray:
        """Brings a mask (..., *input_size) back to the picture, (..., *size), by the nearest pixel.

        `unknown` stands where the picture does not show in the input.
        """
        assert mask.shape[-2:] == self.input_size, f"a mask of {mask.shape[-2:]} for an input of {self.input_size}"
        x, y = _moved(_inverse(self.source), *_centres(self.size))
        return _nearest(mask, (x, y), self._shows(x, y), unknown)

    def inverse_scores(self, scores: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Brings maps of scores (..., rows, columns) back to the picture, (..., *size), by bilinear interpolation.

        The maps are of floats and cover the input, at its own size or a smaller one such as that of the grid. NaN
        stands where the picture does not show in the input. `rows` asks for some of the picture's rows alone: many
        maps of a large picture take much memory.
        """
        assert np.issubdtype(scores.dtype, np.floating), f"scores of {scores.dtype}"
        across, down = _centres(self.size)
        x, y = _moved(_inverse(self.source), across, down[rows])
        known = self._shows(x, y)
        x, y = x * (scores.shape[-1] / self.input_size[1]), y * (scores.shape[-2] / self.input_size[0])
        return np.where(known, _bilinear(scores, x, y), scores.dtype.type(np.nan))

    def _windows(self) -> list[tuple[Matrix, Size]]:
        """Returns all that a point of the input must have been inside of to show the picture."""
        return [
            (self.source, self.size),
            *((cut, self.input_size) for cut in self.cuts),
            (_IDENTITY, self.input_size),
        ]

    def _shows(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Says so of coordinates that broadcast; like Pillow, a window does not hold its right and lower edge."""
        shown = np.array(True)
        for matrix, (rows, columns) in self._windows():
            inner_x, inner_y = _moved(matrix, x, y)
            shown = shown & (inner_x >= 0) & (inner_x < columns) & (inner_y >= 0) & (inner_y < rows)
        return shown

    def _clipped(self, polygon: _Polygon) -> _Polygon:
        """Cuts a convex polygon of the input down to where the picture shows (Sutherland and Hodgman 1974)."""
        for (a, b, c, d, e, f), (rows, columns) in self._windows():
            for p, q, r in ((a, b, c), (-a, -b, columns - c), (d, e, f), (-d, -e, rows - f)):
                sides = [p * x + q * y + r for x, y in polygon]  # below 0: beyond this edge of the window
                kept: _Polygon = []
                for index, (x, y) in enumerate(polygon):
                    before, side = sides[index - 1], sides[index]
                    if (before < 0) != (side < 0):
                        part = before / (before - side)
                        from_x, from_y = polygon[index - 1]
                        kept.append((from_x + part * (x - from_x), from_y + part * (y - from_y)))
                    if side >= 0:
                        kept.append((x, y))
                polygon = kept
        return polygon


def mirror(size: Size) -> Matrix:
    """Returns the move that exchanges left and right."""
    return (-1.0, 0.0, float(size[1]), 0.0, 1.0, 0.0)


def upside_down(size: Size) -> Matrix:
    """Returns the move that exchanges top and bottom."""
    return (1.0, 0.0, 0.0, 0.0, -1.0, float(size[0]))


def translation(right: float, down: float) -> Matrix:
    """Returns the move by so many pixels to the right and down."""
    return (1.0, 0.0, -float(right), 0.0, 1.0, -float(down))


def _joined(first: Matrix, then: Matrix) -> Matrix:
    """Returns one matrix for two steps: what lies at a point after both was at `first` of `then` of it."""
    a, b, c, d, e, f = first
    g, h, i, j, k, m = then
    return (a * g + b * j, a * h + b * k, a * i + b * m + c, d * g + e * j, d * h + e * k, d * i + e * m + f)


def _uncovers(move: Matrix, size: Size) -> bool:
    """Says whether a move within a size leaves some of it empty: whether a corner was outside before."""
    a, b, c, d, e, f = move
    rows, columns = size
    corners = ((0, 0), (columns, 0), (columns, rows), (0, rows))
    return not all(0 <= a * x + b * y + c <= columns and 0 <= d * x + e * y + f <= rows for x, y in corners)


def _inverse(matrix: Matrix) -> Matrix:
    a, b, c, d, e, f = matrix
    area = a * e - b * d
    return (e / area, -b / area, (b * f - c * e) / area, -d / area, a / area, (c * d - a * f) / area)


def _moved(matrix: Matrix, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Applies a matrix to coordinates that broadcast.

    What does not depend on x or on y keeps its shape: a row and a column of coordinates stay a row and a column unless
    the matrix turns or shears, so that large pictures need no maps of coordinates.
    """
    a, b, c, d, e, f = matrix
    return (a * x + (b * y + c) if b else a * x + c), (d * x + (e * y + f) if d else e * y + f)


def _moved_points(matrix: Matrix, points: ArrayLike) -> np.ndarray:
    places = np.asarray(points, dtype=np.float64)
    return np.stack(_moved(matrix, places[..., 0], places[..., 1]), axis=-1)


def _whole(size: Size) -> Box:
    return (0.0, 0.0, float(size[1]), float(size[0]))


def _centres(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Returns x as a row (1, columns) and y as a column (rows, 1) of the centres of all pixels."""
    return np.arange(size[1])[None] + 0.5, np.arange(size[0])[:, None] + 0.5


def _corners(boxes: ArrayLike) -> np.ndarray:
    """Returns the corners (n, 4, 2) of boxes (n, 4), going around."""
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def _hulls(corners: np.ndarray) -> np.ndarray:
    """Returns the least boxes (n, 4) that hold the points (n, m, 2)."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _nearest(values: np.ndarray, place: tuple[np.ndarray, np.ndarray], known: np.ndarray, other: int) -> np.ndarray:
    """Samples values (..., rows, columns) at (x, y), with `other` where they are not known."""
    assert values.dtype.type(other) == other, f"{other} cannot be told from other values of {values.dtype}"
    x, y = (np.floor(each).astype(np.intp) for each in place)
    rows, columns = values.shape[-2:]
    found = values[..., np.clip(y, 0, rows - 1), np.clip(x, 0, columns - 1)]
    return np.where(known, found, values.dtype.type(other))


def _bilinear(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Samples values (..., rows, columns) at (x, y), between pixels' centres; beyond the outermost, these hold."""
    rows, columns = values.shape[-2:]
    x, y = np.clip(x - 0.5, 0, columns - 1), np.clip(y - 0.5, 0, rows - 1)
    left, top = x.astype(np.intp), y.astype(np.intp)
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    across, down = (x - left).astype(values.dtype), (y - top).astype(values.dtype)
    upper = values[..., top, left] * (1 - across) + values[..., top, right] * across
    lower = values[..., bottom, left] * (1 - across) + values[..., bottom, right] * across
    return upper * (1 - down) + lower * down
