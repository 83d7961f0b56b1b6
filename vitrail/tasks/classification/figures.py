"""Pictures of a classifier's answers: confusion matrix, samples, calibration. Each function returns a PNG as bytes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, lay, png, sheet, short
from vitrail.tasks.classification.calibration import Calibration

COUNTED_CLASSES = 20
"""The confusion matrix has its counts written in, up to this number of classes."""
NAMED_CLASSES = 60
"""The confusion matrix has class names along its axes, up to this number of classes; beyond it, class numbers."""
GRID_SAMPLES = 32
"""How many samples the grid of predictions shows."""


@dataclass(frozen=True)
class SamplePrediction:
    """A sample and the class that a model predicted for it."""

    id: str
    pixels: np.ndarray
    """uint8 [rows, columns, channels], 1 or 3 channels."""
    label: str
    predicted: str
    score: float
    """The probability of the predicted class."""

    @property
    def right(self) -> bool:
        """Whether the predicted class is the true one."""
        return self.label == self.predicted


def confusion(counts: np.ndarray, classes: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Draws the confusion matrix, each row as shares of the samples of its true class. counts: int [true,
    predicted]."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.ticker import MaxNLocator

    number = len(counts)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    colours = LinearSegmentedColormap.from_list("shares", [theme.paper, theme.train, theme.full])
    colours = colours.with_extremes(bad=theme.line)
    side = min(10.0, max(5.0, 2.6 + 0.42 * number)) if number <= COUNTED_CLASSES else 10.0
    # The class names decide how much room the matrix has, so matplotlib computes the layout.
    figure = blank_figure(side + 1.0, side, theme, layout="constrained")
    axes = figure.add_subplot()
    # With many classes single mistakes would be too faint to see: colours go by the root of the share.
    norm = PowerNorm(0.5 if number > COUNTED_CLASSES else 1.0, vmin=0, vmax=1)
    extent = (-0.5, number - 0.5, number - 0.5, -0.5)
    picture = axes.imshow(_pool(shares), cmap=colours, norm=norm, extent=extent, interpolation="nearest")
    dress(axes, theme, grid=False)
    if number <= NAMED_CLASSES:
        names = [short(name, 18) for name in classes]
        size = 10 if number <= COUNTED_CLASSES else 7
        turned = 0 if max(map(len, names), default=0) <= 3 else 90 if number > COUNTED_CLASSES else 45
        axes.set_xticks(range(number), names, rotation=turned, fontsize=size, parse_math=False)
        axes.set_yticks(range(number), names, fontsize=size, parse_math=False)
        if turned == 45:
            for label in axes.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    if number <= COUNTED_CLASSES:
        _write_counts(axes, counts, shares, lambda share: colours(float(norm(share))))
    unit = "" if number <= NAMED_CLASSES else " (by number)"
    axes.set_xlabel(f"predicted class{unit}", color=theme.soft)
    axes.set_ylabel(f"true class{unit}", color=theme.soft)
    bar = figure.colorbar(picture, ax=axes, shrink=0.8, format=lambda share, _: f"{share:.0%}")
    bar.set_label("share of the true class" + (", drawn by its root" if number > COUNTED_CLASSES else ""))
    bar.ax.yaxis.label.set_color(theme.soft)
    bar.ax.tick_params(colors=theme.soft)
    bar.outline.set_edgecolor(theme.line)  # pyright: ignore[reportCallIssue]
    return png(figure)


def _pool(shares: np.ndarray, most: int = 500) -> np.ndarray:
    """Takes the largest value of each block of cells, so that at most `most` rows remain and no cell falls between two
    pixels."""
    block = math.ceil(len(shares) / most)
    if block == 1:
        return shares
    missing = -len(shares) % block
    padded = np.pad(np.nan_to_num(shares), ((0, missing), (0, missing)))
    rows = len(padded) // block
    return padded.reshape(rows, block, rows, block).max(axis=(1, 3))


def _write_counts(axes: Any, counts: np.ndarray, shares: np.ndarray, colour: Callable[[float], Any]) -> None:
    """Writes each count into its cell, dark on bright cells and bright on dark ones. colour: share -> RGB of the
    cell."""
    size = 10 if len(counts) <= 12 else 7.5
    for row, column in np.argwhere(counts > 0):
        red, green, blue = colour(float(shares[row, column]))[:3]
        bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        axes.text(
            column,
            row,
            f"{counts[row, column]}",
            ha="center",
            va="center",
            fontsize=size,
            color="#1d2026" if bright else "#ffffff",
        )


def predictions(samples: Sequence[SamplePrediction], theme: Theme = LIGHT) -> bytes:
    """Draws the first samples in a grid; a wrong prediction has a cross, and a thick frame of another colour."""
    shown = samples[:GRID_SAMPLES]
    columns = min(8, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    wide, high, edge = 1.6, 2.1, 0.12
    figure, axes = sheet(wide * columns + edge, high * rows + edge, theme)
    side = wide - edge
    for place, sample in enumerate(shown):
        left, bottom = place % columns * wide + edge, (rows - 1 - place // columns) * high + 0.36
        colour = theme.train if sample.right else theme.val
        lay(axes, sample.pixels, (left, bottom), side, theme, colour, 1.2 if sample.right else 3.5)
        words = {"ha": "center", "fontsize": 9, "parse_math": False}
        label, predicted = short(sample.label, 14), short(sample.predicted, 11)
        axes.text(left + side / 2, bottom + side + 0.07, f"true: {label}", va="bottom", color=theme.ink, **words)
        axes.text(
            left + side / 2,
            bottom - 0.06,
            f"{'✓' if sample.right else '✗'} {predicted}  {sample.score:.0%}",
            va="top",
            color=colour,
            fontweight="normal" if sample.right else "bold",
            **words,
        )
    return png(figure)


def reliability(calibration: Calibration, theme: Theme = LIGHT) -> bytes:
    """Draws a reliability diagram: above, the share of right answers by score; below, the number of answers."""
    bins = len(calibration.counts)
    middles = (np.arange(bins) + 0.5) / bins
    some = calibration.counts > 0
    figure = blank_figure(5.6, 5.2, theme)
    upper, lower = figure.add_axes((0.13, 0.33, 0.83, 0.58)), figure.add_axes((0.13, 0.1, 0.83, 0.17))
    upper.plot([0, 1], [0, 1], color=theme.ink, linewidth=1.2, linestyle="--", label="as sure as right", zorder=4)
    upper.bar(middles[some], calibration.accuracy[some], 0.92 / bins, color=theme.train, label="share right", zorder=2)
    upper.plot(
        calibration.scores[some],
        calibration.accuracy[some],
        color=theme.val,
        linestyle="none",
        marker="o",
        markersize=4.5,
        label="at its mean score",
        zorder=5,
    )
    lower.bar(middles[some], calibration.counts[some], 0.92 / bins, color=theme.train, zorder=2)
    for axes in (upper, lower):
        dress(axes, theme)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.tick_params(labelsize=9)
    lower.yaxis.set_major_locator(_few_whole_numbers())
    upper.set_ylim(0, 1.02)
    upper.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    upper.tick_params(labelbottom=False)
    upper.set_ylabel("share that was right", color=theme.soft)
    # The legend is above the plot, since bars may stand anywhere in it.
    upper.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, frameon=False, labelcolor=theme.ink
    )
    lower.set_ylabel("samples", color=theme.soft)
    lower.set_xlabel("score of the answer", color=theme.soft)
    return png(figure)


def _few_whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3, integer=True)
