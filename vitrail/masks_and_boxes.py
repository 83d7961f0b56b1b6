"""Frame: the map between a picture's own pixels and a model's input, for masks, boxes and points.

Coordinates are continuous: the pixel in column i and row j covers x from i to i + 1 and y from j to j + 1, and its
centre is (i + 0.5, j + 0.5). Points are (x, y), boxes [left, top, right, bottom]; sizes and arrays are (rows, columns).
A picture's own pixels are those of the upright picture at its full size, however it is stored or decoded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Size = tuple[int, int]
"""(rows, columns)"""
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels"""
Matrix = tuple[float, float, float, float, float, float]
"""The affine map (a, b, c, d, e, f) of a step: what is at (x, y) after it was at (a x + b y + c, d x + e y + f) before.
Pillow's affine transform takes its numbers in this direction too, and from the corner of the first pixel."""
Moves = list[Matrix] | None
"""A list to which each step that moves a picture appends its matrix; None if they are not needed."""

_Polygon = list[tuple[float, float]]
"""The corners (x, y) of a polygon, in order."""
_IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # changes nothing


@dataclass(frozen=True)
class Frame:
    """The map between a picture and a model's input made of it by cropping, resizing and moving.

    It tells where each point of the input is in the picture, and which parts of the input show the picture at all.
    """

    size: Size
    """The size of the picture."""
    input_size: Size
    """The size of the model's input."""
    source: Matrix
    """Maps points of the input to points of the picture."""
    cuts: tuple[Matrix, ...] = ()
    """For each step that moved the picture within the input and so left a part empty: maps points of the input to where
    they were before that step. A point that was outside the input then shows padding and not the picture."""

    @classmethod
    def of(cls, size: Size, input_size: Size, box: Box | None = None) -> "Frame":
        """Returns the frame of a picture of which a box is cut out and resized to the input.

        size: the picture's rows and columns. input_size: the input's. box: (left, top, right, bottom) in the picture's
        pixels; None for all of it.
        """
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
        """Maps points (..., 2) of the picture to the input, float64 (..., 2). Some may be outside it; see `shows`."""
        return _moved_points(_inverse(self.source), points)

    def boxes(self, boxes: ArrayLike, *, clip: bool = True) -> np.ndarray:
        """Maps boxes (n, 4) of the picture to the input: the smallest upright boxes (n, 4) around the mapped corners.

        clip: bound only the part of a box that shows in the input; if nothing of it shows it becomes [0, 0, 0, 0].
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
        """Maps a mask (..., *size) of the picture to the input, (..., *input_size), by the nearest pixel.

        ignore: the value for pixels of the input that show padding.
        """
        assert mask.shape[-2:] == self.size, f"a mask of {mask.shape[-2:]} for a picture of {self.size}"
        x, y = _centres(self.input_size)
        return _nearest(mask, _moved(self.source, x, y), self._shows(x, y), ignore)

    def shows(self, points: ArrayLike) -> np.ndarray:
        """Tells for points (..., 2) of the input whether the picture shows there, bool (...)."""
        coordinates = np.asarray(points, dtype=np.float64)
        return self._shows(coordinates[..., 0], coordinates[..., 1])

    # Back from the input to the picture

    def inverse_points(self, points: ArrayLike) -> np.ndarray:
        """Maps points (..., 2) of the input back to the picture, float64 (..., 2)."""
        return _moved_points(self.source, points)

    def inverse_boxes(self, boxes: ArrayLike, *, clip: bool = True) -> np.ndarray:
        """Maps boxes (n, 4) of the input back to the picture: the smallest upright boxes (n, 4) around the mapped
        corners.

        clip: cut them off at the borders of the picture.
        """
        mapped = _hulls(self.inverse_points(_corners(boxes)))
        return np.clip(mapped, 0.0, [*self.size[::-1], *self.size[::-1]]) if clip else mapped

    def inverse_mask(self, mask: np.ndarray, unknown: int = 255) -> np.ndarray:
        """Maps a mask (..., *input_size) back to the picture, (..., *size), by the nearest pixel.

        unknown: the value for pixels of the picture that do not show in the input.
        """
        assert mask.shape[-2:] == self.input_size, f"a mask of {mask.shape[-2:]} for an input of {self.input_size}"
        x, y = _moved(_inverse(self.source), *_centres(self.size))
        return _nearest(mask, (x, y), self._shows(x, y), unknown)

    def inverse_scores(self, scores: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        """Maps scores (..., rows, columns) back to the picture, (..., *size), by bilinear interpolation.

        Args:
            scores: Floats that cover the input, at its own size or a smaller one such as that of the grid.
            rows: The rows of the picture to compute, since all rows of a large picture take much memory.

        Returns:
            The scores in the picture's pixels, NaN where the picture does not show in the input.
        """
        assert np.issubdtype(scores.dtype, np.floating), f"scores of {scores.dtype}"
        across, down = _centres(self.size)
        x, y = _moved(_inverse(self.source), across, down[rows])
        known = self._shows(x, y)
        x, y = x * (scores.shape[-1] / self.input_size[1]), y * (scores.shape[-2] / self.input_size[0])
        return np.where(known, _bilinear(scores, x, y), scores.dtype.type(np.nan))

    def _windows(self) -> list[tuple[Matrix, Size]]:
        """Returns matrices and sizes: a point of the input shows the picture if each matrix maps it into its size."""
        return [
            (self.source, self.size),
            *((cut, self.input_size) for cut in self.cuts),
            (_IDENTITY, self.input_size),
        ]

    def _shows(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Computes `shows` for coordinates x and y that broadcast. As in Pillow, a window does not include its right
        and lower edge."""
        shown = np.array(True)
        for matrix, (rows, columns) in self._windows():
            inner_x, inner_y = _moved(matrix, x, y)
            shown = shown & (inner_x >= 0) & (inner_x < columns) & (inner_y >= 0) & (inner_y < rows)
        return shown

    def _clipped(self, polygon: _Polygon) -> _Polygon:
        """Clips a convex polygon of the input to the part where the picture shows (Sutherland and Hodgman 1974)."""
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
    """Returns the matrix that exchanges left and right."""
    return (-1.0, 0.0, float(size[1]), 0.0, 1.0, 0.0)


def upside_down(size: Size) -> Matrix:
    """Returns the matrix that exchanges top and bottom."""
    return (1.0, 0.0, 0.0, 0.0, -1.0, float(size[0]))


def translation(right: float, down: float) -> Matrix:
    """Returns the matrix that moves a picture by `right` pixels to the right and `down` pixels down."""
    return (1.0, 0.0, -float(right), 0.0, 1.0, -float(down))


def _joined(first: Matrix, then: Matrix) -> Matrix:
    """Returns one matrix for two steps, `first` and after it `then`: it maps a point to `first` of `then` of it."""
    a, b, c, d, e, f = first
    g, h, i, j, k, m = then
    return (a * g + b * j, a * h + b * k, a * i + b * m + c, d * g + e * j, d * h + e * k, d * i + e * m + f)


def _uncovers(move: Matrix, size: Size) -> bool:
    """Tells whether moving a picture within its size leaves a part empty: whether a corner was outside it before."""
    a, b, c, d, e, f = move
    rows, columns = size
    corners = ((0, 0), (columns, 0), (columns, rows), (0, rows))
    return not all(0 <= a * x + b * y + c <= columns and 0 <= d * x + e * y + f <= rows for x, y in corners)


def _inverse(matrix: Matrix) -> Matrix:
    """Returns the matrix of the opposite direction."""
    a, b, c, d, e, f = matrix
    area = a * e - b * d
    return (e / area, -b / area, (b * f - c * e) / area, -d / area, a / area, (c * d - a * f) / area)


def _moved(matrix: Matrix, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Applies a matrix to coordinates that broadcast.

    Without rotation or shear, a row x (1, columns) and a column y (rows, 1) keep their shapes, so that a large picture
    needs no coordinates for each of its pixels.
    """
    a, b, c, d, e, f = matrix
    return (a * x + (b * y + c) if b else a * x + c), (d * x + (e * y + f) if d else e * y + f)


def _moved_points(matrix: Matrix, points: ArrayLike) -> np.ndarray:
    """Applies a matrix to points (..., 2)."""
    coordinates = np.asarray(points, dtype=np.float64)
    return np.stack(_moved(matrix, coordinates[..., 0], coordinates[..., 1]), axis=-1)


def _whole(size: Size) -> Box:
    """Returns the box around a whole picture."""
    return (0.0, 0.0, float(size[1]), float(size[0]))


def _centres(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres of all pixels: x as a row (1, columns) and y as a column (rows, 1)."""
    return np.arange(size[1])[None] + 0.5, np.arange(size[0])[:, None] + 0.5


def _corners(boxes: ArrayLike) -> np.ndarray:
    """Returns the corners (n, 4, 2) of boxes (n, 4), clockwise from the upper left."""
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4)[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]


def _hulls(corners: np.ndarray) -> np.ndarray:
    """Returns the smallest boxes (n, 4) that contain the points (n, m, 2)."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def _nearest(values: np.ndarray, points: tuple[np.ndarray, np.ndarray], known: np.ndarray, other: int) -> np.ndarray:
    """Samples values (..., rows, columns) at points (x, y) by the nearest pixel; `other` where `known` is False."""
    assert values.dtype.type(other) == other, f"{other} does not fit into {values.dtype}"
    x, y = (np.floor(coordinates).astype(np.intp) for coordinates in points)
    rows, columns = values.shape[-2:]
    found = values[..., np.clip(y, 0, rows - 1), np.clip(x, 0, columns - 1)]
    return np.where(known, found, values.dtype.type(other))


def _bilinear(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Samples values (..., rows, columns) at points (x, y), interpolated between the centres of pixels.

    Beyond the centres of the outermost pixels, their values hold.
    """
    rows, columns = values.shape[-2:]
    x, y = np.clip(x - 0.5, 0, columns - 1), np.clip(y - 0.5, 0, rows - 1)
    left, top = x.astype(np.intp), y.astype(np.intp)
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    across, down = (x - left).astype(values.dtype), (y - top).astype(values.dtype)
    if len(x) == 1 and y.shape[-1] == 1:  # neither rotated nor sheared: each row of values is interpolated once
        wide = values[..., left[0]] * (1 - across[0]) + values[..., right[0]] * across[0]
        return wide[..., top[:, 0], :] * (1 - down) + wide[..., bottom[:, 0], :] * down
    upper = values[..., top, left] * (1 - across) + values[..., top, right] * across
    lower = values[..., bottom, left] * (1 - across) + values[..., bottom, right] * across
    return upper * (1 - down) + lower * down
