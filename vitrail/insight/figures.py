"""Draws the figures as PNG: filters, positions, distances, attention, maps, features, nearest patches, merged
patches."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png, short
from vitrail.insight.attention_distance import GLOBAL, LOCAL, Distances
from vitrail.insight.filters import Filters, filter_pictures
from vitrail.insight.findings import ImageFindings, Neighbours
from vitrail.insight.overlays import coloured, marked, mosaic, overlay, palette, shown
from vitrail.models.positions import Grid

COLUMNS = 7
"""The number of filters in a row."""
WIDTH, GAP, DOTS = 1180, 9, 144
"""The width of a row of pictures, the gap between two, in pixels; and pixels per inch, as in `blank_figure`."""
MOST_MAPS = 14
"""The largest number of rows and columns of small maps in a figure; of more, evenly spaced ones are drawn."""


def filters(found: Filters, theme: Theme = LIGHT) -> bytes:
    """Draws one tile for each component, with the share of the variance that it explains."""
    pictures = filter_pictures(found.tiles)
    below = [f"{place}: {share:.1%}" for place, share in enumerate(found.explained, 1)]
    starts = range(0, len(pictures), COLUMNS)
    rows = [list(pictures[start : start + COLUMNS]) for start in starts]
    return _table(rows, [], [""] * len(rows), theme, [below[start : start + COLUMNS] for start in starts])


def positions(similarity: np.ndarray, by_distance: Sequence[dict[str, Any]], theme: Theme = LIGHT) -> bytes:
    """Draws the similarity of each position with all others as a grid of grids, and by distance."""
    figure = blank_figure(10.4, 4.9, theme, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    rows, columns = (spaced(side) for side in similarity.shape[:2])
    tiled = grid_of_grids(similarity[np.ix_(rows, columns)])
    drawn = left.imshow(tiled, cmap="viridis", vmin=min(-1.0, np.nanmin(tiled)), vmax=1, interpolation="nearest")
    high, wide = (side + 1 for side in similarity.shape[2:])
    for axis, chosen, step in (("x", columns, wide), ("y", rows, high)):
        every = max(1, len(chosen) // 7)
        ticks = np.arange(len(chosen))[::every]
        names = [str(chosen[each] + 1) for each in ticks]
        getattr(left, f"set_{axis}ticks")(ticks * step + (step - 2) / 2, names)
    dress(left, theme, grid=False)
    left.set_xlabel("column of the patch", color=theme.soft)
    left.set_ylabel("row of the patch", color=theme.soft)
    _bar(figure, drawn, left, "cosine similarity", theme)
    dress(right, theme)
    right.axhline(0, color=theme.soft, linewidth=0.8)
    distance, cosine = ([each[key] for each in by_distance] for key in ("distance", "cosine"))
    right.plot(distance, cosine, "o-", color=theme.train, markersize=5)
    right.set_xlabel("distance in patches", color=theme.soft)
    right.set_ylabel("mean cosine similarity", color=theme.soft)
    _whole_numbers(right.xaxis)
    return png(figure)


def spaced(count: int, most: int = MOST_MAPS) -> list[int]:
    """Returns all indices below `count`, or `most` evenly spaced ones."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, most))})


def grid_of_grids(similarity: np.ndarray) -> np.ndarray:
    """Arranges maps [rows, columns, r, c] as one picture, with a line of NaN between them."""
    padded = np.pad(similarity, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    rows, columns, high, wide = padded.shape
    return padded.transpose(0, 2, 1, 3).reshape(rows * high, columns * wide)[:-1, :-1]


def distance(found: Distances, theme: Theme = LIGHT) -> bytes:
    """Draws the mean distance of each head as a dot against depth, and each layer's mean as a line."""
    steps, heads = found.mean.shape
    figure = blank_figure(8.4, 4.6, theme, layout="constrained")
    axes = figure.add_subplot()
    dress(axes, theme)
    layers = np.arange(1, steps + 1)
    axes.scatter(np.repeat(layers, heads), found.mean.ravel(), s=34, color=theme.train, alpha=0.75, label="a head")
    axes.plot(layers, found.mean.mean(axis=1), color=theme.val, linewidth=2, label="mean of the layer")
    axes.axhline(found.uniform, color=theme.ink, linestyle="--", linewidth=1.2, label="attending to all patches alike")
    for share, name in ((GLOBAL, "global from here up"), (LOCAL, "local from here down")):
        axes.axhline(share * found.uniform, color=theme.soft, linestyle=":", linewidth=1)
        axes.annotate(name, (1, share * found.uniform), xycoords=("axes fraction", "data"), xytext=(-6, 3),
                      textcoords="offset points", ha="right", fontsize=8, color=theme.soft)  # fmt: skip
    axes.set_ylim(0, 1.12 * max(found.uniform, found.mean.max(), 1e-9))
    axes.set_xlim(0.4, steps + 0.6)
    if found.names == [str(layer) for layer in layers]:
        _whole_numbers(axes.xaxis)
    else:
        turned = 0 if steps <= 6 else 60
        axes.set_xticks(layers, found.names, rotation=turned, ha="right" if turned else "center", fontsize=8)
    axes.set_xlabel("layer", color=theme.soft)
    axes.set_ylabel("mean attention distance (pixels)", color=theme.soft)
    legend = axes.legend(loc="lower right", fontsize=8, facecolor=theme.paper, edgecolor=theme.line, framealpha=0.9)
    for entry in legend.get_texts():
        entry.set_color(theme.ink)
    return png(figure)


def attention(maps: ImageFindings, names: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Draws what the classifier reads attends to: a column for each layer, a row for each head, each map scaled to its
    own maximum."""
    steps, heads = (spaced(count, 12) for count in maps.attention.shape[:2])
    high, wide = maps.attention.shape[2:]
    each_wide = min(1.5, 9.6 / len(steps))
    each_high = each_wide * high / wide
    figure = blank_figure(each_wide * len(steps) + 0.8, each_high * len(heads) + 0.5, theme)
    across, down = figure.get_size_inches()
    colours = _colours()
    for row, head in enumerate(heads):
        for column, step in enumerate(steps):
            corner = (0.7 + column * each_wide, 0.1 + (len(heads) - 1 - row) * each_high)
            size = (each_wide - 0.05, each_high - 0.05)
            axes = figure.add_axes((corner[0] / across, corner[1] / down, size[0] / across, size[1] / down))
            values = np.sqrt(maps.attention[step, head])
            axes.imshow(values, cmap=colours, vmin=0, interpolation="nearest", aspect="auto")
            _bare(axes)
            if row == 0:
                name = names[step].replace(" ", "\n")
                axes.set_title(f"layer {name}" if column == 0 else name, fontsize=8, color=theme.ink, pad=4)
            if column == 0:
                style = {"fontsize": 8, "color": theme.ink, "rotation": 0, "ha": "right", "va": "center"}
                axes.set_ylabel(f"head {head + 1}", **style)
    return png(figure)


def maps(found: Sequence[ImageFindings], theme: Theme = LIGHT) -> bytes:
    """Draws a row for each image: the image, then the maps over it."""
    heads = ["image", "last layer's attention", "rollout", "gradient rollout", "occlusion"]
    with_occlusion = any(each.occlusion is not None for each in found)
    heads = heads if with_occlusion else heads[:4]
    rows = [[shown(each.pixels), *(overlay(each.pixels, values) for _, values in named_maps(each))] for each in found]
    captions = [_class_caption(each) for each in found]
    return _table(rows, heads, captions, theme)


def named_maps(maps: ImageFindings) -> list[tuple[str, np.ndarray]]:
    """Lists an image's maps with their names."""
    named = [
        ("last layer's attention", maps.attention[-1].mean(axis=0)),
        ("rollout", maps.rollout),
        ("gradient rollout", maps.gradient),
    ]
    if maps.occlusion is None:
        return named
    # Where hiding a patch raises the score, the answer does not depend on it.
    return [*named, ("occlusion", np.maximum(maps.occlusion, 0))]


def _class_caption(maps: ImageFindings) -> str:
    """Returns the class and its probability, broken into lines."""
    if maps.label is None:
        return ""
    sure = "" if maps.probability is None else f"\n{maps.probability:.0%}"
    return textwrap.fill(short(maps.label.split(",")[0], 32), 15) + sure


def features(found: Sequence[ImageFindings], colours: np.ndarray, theme: Theme = LIGHT) -> bytes:
    """Draws images above, and their patches' features as colours below."""
    pairs = list(zip(found, colours, strict=True))
    rows = [[shown(each.pixels) for each, _ in pairs], [coloured(colour, each.pixels) for each, colour in pairs]]
    return _table(rows, [], ["image", "features"], theme)


def merging(found: Sequence[ImageFindings], groups: np.ndarray, theme: Theme = LIGHT) -> bytes:
    """Draws images above, and below them their patches, with merged ones in one colour."""
    rows = [
        [shown(each.pixels) for each in found],
        [mosaic(each.pixels, own) for each, own in zip(found, groups, strict=True)],
    ]
    return _table(rows, [], ["image", "merged"], theme)


def neighbours(
    pixels: Mapping[int, np.ndarray], found: Sequence[Neighbours], grid: Grid, theme: Theme = LIGHT
) -> bytes:
    """Draws a row for each patch: the patch, framed in its image, then those most similar. `pixels` holds each image by
    index."""
    rows, below = [], []
    for each in found:
        places = [each.query, *(tuple(map(int, place)) for place in each.places)]
        rows.append([marked(pixels[image], grid, row, column) for image, row, column in places])
        below.append(["", *(f"cosine {cosine:.2f}" for cosine in each.cosines)])
    heads = ["this patch", "most alike", *("" for _ in range(max(map(len, rows)) - 2))]
    return _table(rows, heads, ["" for _ in rows], theme, below)


def _table(
    rows: Sequence[Sequence[np.ndarray]],
    heads: Sequence[str],
    captions: Sequence[str],
    theme: Theme,
    below: Sequence[Sequence[str]] | None = None,
) -> bytes:
    """Draws pictures of one shape in rows and columns, with text above, at the left and below; rows may differ in
    length."""
    count = max(len(row) for row in rows)
    wide = round(WIDTH / max(count, 4))
    high = round(wide * rows[0][0].shape[0] / rows[0][0].shape[1])
    left, top, under = (175 if any(captions) else 12), (42 if heads else 12), (34 if below else 0)
    across, down = left + count * (wide + GAP) + 6, top + len(rows) * (high + GAP + under) + 6
    canvas = Image.new("RGB", (across, down), theme.paper)
    figure = blank_figure(across / DOTS, down / DOTS, theme)

    def write(words: str, x: float, y: float, size: float, colour: str, **style: Any) -> None:
        """Writes text at a place in pixels from the top left."""
        figure.text(x / across, 1 - y / down, words, fontsize=size, color=colour, parse_math=False, **style)

    for row, pictures in enumerate(rows):
        y = top + row * (high + GAP + under)
        write(captions[row], left - 14, y + high / 2, 9, theme.ink, ha="right", va="center")
        for column, picture in enumerate(pictures):
            x = left + column * (wide + GAP)
            way = Image.Resampling.NEAREST if wide >= 2 * picture.shape[1] else Image.Resampling.LANCZOS
            canvas.paste(Image.fromarray(np.ascontiguousarray(picture)).resize((wide, high), way), (x, y))
            if row == 0 and column < len(heads):
                write(heads[column], x + wide / 2, top - 10, 9, theme.ink, ha="center", va="bottom")
            if below:
                write(below[row][column], x + wide / 2, y + high + 6, 8, theme.soft, ha="center", va="top")
    figure.figimage(np.asarray(canvas))  # as one image, because axes for each would take seconds
    return png(figure)


def _bare(axes: Any) -> None:
    """Removes ticks and frame from axes."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _colours() -> Any:
    """Returns the palette as matplotlib takes it."""
    from matplotlib.colors import ListedColormap

    return ListedColormap((palette() / 255).tolist())


def _whole_numbers(axis: Any) -> None:
    """Puts ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(12, integer=True))


def _bar(figure: Any, drawn: Any, axes: Any, label: str, theme: Theme) -> None:
    """Draws a colour bar beside axes."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.set_label(label, color=theme.soft)
    bar.ax.tick_params(colors=theme.soft)
    bar.outline.set_edgecolor(theme.line)
