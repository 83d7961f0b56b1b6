"""Which patches a model took together, as a picture: a mosaic of the photo."""

import numpy as np

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, png


def merged_patches(pixels: np.ndarray, groups: np.ndarray, theme: Theme = LIGHT, side: float = 4.0) -> bytes:
    """The photo, and beside it every group of patches in the average colour of its pixels, with a line around it.

    pixels: uint8 [rows, columns] or [rows, columns, channels]; groups: [grid rows, grid columns], a number a patch.
    """
    photo = pixels if pixels.ndim == 2 else pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    mosaic, lines = tiles(photo, groups)
    high, wide = photo.shape[:2]
    gap, room = 0.15, 0.32
    figure = blank_figure(2 * side + 3 * gap, side * high / wide + room + gap, theme)
    whole = figure.get_size_inches()
    titles = ("the picture", f"{groups.size} patches in {len(np.unique(groups))} tokens")
    for place, (title, shown) in enumerate(zip(titles, (photo, mosaic), strict=True)):
        left, bottom = (gap + place * (side + gap)) / whole[0], gap / whole[1]
        axes = figure.add_axes((left, bottom, side / whole[0], side * high / wide / whole[1]))
        axes.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest", extent=(0, wide, high, 0))
        axes.set(xticks=[], yticks=[], xlim=(0, wide), ylim=(high, 0))
        axes.set_title(title, color=theme.ink, fontsize=11, pad=5)
        for spine in axes.spines.values():
            spine.set_color(theme.line)
        if place:
            for start, end in lines:
                axes.plot(*zip(start, end, strict=True), color="#ffffff", linewidth=1.1, solid_capstyle="round")
    return png(figure)


Line = tuple[tuple[int, int], tuple[int, int]]


def tiles(photo: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, list[Line]]:
    """The photo with each group in its average colour, and the lines, (x, y) to (x, y), where two groups meet."""
    rows, columns = groups.shape
    high, wide = photo.shape[0] // rows, photo.shape[1] // columns
    whose = np.kron(groups, np.ones((high, wide), dtype=groups.dtype))
    photo = photo[: rows * high, : columns * wide]
    mosaic = np.empty_like(photo)
    for group in np.unique(groups):
        inside = whose == group
        mosaic[inside] = photo[inside].mean(axis=0).round()
    upright = [
        (((column + 1) * wide, row * high), ((column + 1) * wide, (row + 1) * high))
        for row, column in np.argwhere(groups[:, 1:] != groups[:, :-1])
    ]
    level = [
        ((column * wide, (row + 1) * high), ((column + 1) * wide, (row + 1) * high))
        for row, column in np.argwhere(groups[1:] != groups[:-1])
    ]
    return mosaic, [*upright, *level]
