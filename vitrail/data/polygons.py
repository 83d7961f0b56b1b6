"""Which pixels a polygon covers, exactly as COCO counts them.

COCO walks along the outline on a grid that is five times as fine as the pixels. Where a step crosses the middle of a
column of pixels, the column changes between outside and inside, from the first pixel whose centre is not above it.
"""

import numpy as np

from vitrail.masks_and_boxes import Size

_FINE = 5
"""The steps of the fine grid in a pixel."""
_MOST_STEPS = 1 << 21
"""The longest outline of a polygon in such steps, far longer than that of any object."""
_FARTHEST = 1e6
"""The largest coordinate, in pixels."""

PixelWindow = tuple[slice, slice]
"""The rows and columns of a picture that hold an object."""


def polygon_pixels(points: np.ndarray, size: Size) -> tuple[PixelWindow, np.ndarray]:
    """Finds the pixels that a polygon covers.

    Args:
        points: Its corners (x, y), float64 [corners, 2].
        size: The size of the picture.

    Returns:
        A window of the picture, and which of its pixels are covered: bool of the window's size.

    Raises:
        ValueError: If a coordinate is not finite or too large, or the outline is too long to be an object's.
    """
    nothing = (slice(0, 0), slice(0, 0)), np.zeros((0, 0), dtype=np.bool_)
    if not (np.abs(points) <= _FARTHEST).all():  # NaN is not below anything
        raise ValueError("has a polygon with coordinates that are no places in a picture")
    if len(points) < 3:
        return nothing
    x, y = _walked(np.trunc(_FINE * points + 0.5).astype(np.int64))
    crossed = np.minimum(x[1:], x[:-1])
    steps = np.flatnonzero((x[1:] != x[:-1]) & (crossed % _FINE == _FINE // 2))
    columns = crossed[steps] // _FINE
    edges = (np.minimum(y[1:], y[:-1])[steps] + 0.5) / _FINE - 0.5
    inside = (columns >= 0) & (columns < size[1])
    columns, rows = columns[inside], np.ceil(np.clip(edges[inside], 0, size[0])).astype(np.int64)
    if not len(columns):
        return nothing
    top, left = rows.min(), columns.min()
    changes = np.zeros((columns.max() - left + 1, rows.max() - top + 1), dtype=np.uint8)
    np.add.at(changes, (columns - left, rows - top), 1)  # more than 255 wrap around, and stay odd or even
    covered = np.bitwise_xor.accumulate(changes & 1, axis=1)[:, :-1].T.astype(np.bool_)
    window = slice(top, top + covered.shape[0]), slice(left, left + covered.shape[1])
    return window, covered


def _walked(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walks along a closed outline on the fine grid, int64 [corners, 2]; returns x and y of each step.

    Along each side every value of the longer coordinate occurs once. The shorter one is rounded from the end where the
    longer one is least, so that a side gives the same steps in both directions.
    """
    ends = np.roll(corners, -1, axis=0)
    lengths = np.abs(ends - corners)  # [sides, 2]
    steps = lengths.max(axis=1)
    if int(steps.sum()) + len(steps) > _MOST_STEPS:
        raise ValueError("has a polygon whose outline is too long for an object")
    flat = lengths[:, 0] >= lengths[:, 1]  # x is the longer coordinate
    side = np.arange(len(corners))
    longer = np.where(flat, 0, 1)
    backwards = corners[side, longer] > ends[side, longer]
    first, last = np.where(backwards[:, None], ends, corners), np.where(backwards[:, None], corners, ends)
    slopes = (last - first)[side, 1 - longer] / np.maximum(steps, 1)
    counts = steps + 1
    owner = np.repeat(side, counts)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = np.where(backwards[owner], steps[owner] - step, step)
    along = first[owner, longer[owner]] + step
    across = np.trunc(first[owner, 1 - longer[owner]] + slopes[owner] * step + 0.5).astype(np.int64)
    return np.where(flat[owner], along, across), np.where(flat[owner], across, along)
