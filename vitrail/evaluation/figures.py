"""The pictures of an evaluation: calibration, and accuracy against shots. Each function returns a PNG as bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png
from vitrail.evaluation.accuracy import Calibration
from vitrail.evaluation.few_shot import Row

_NAMES = {"ridge": "least squares (the paper)", "knn": "nearest neighbours", "probe": "trained linear probe"}
_MARKS = {"ridge": "o", "knn": "s", "probe": "^"}


def reliability(calibration: Calibration, theme: Theme = LIGHT) -> bytes:
    """Above, how often answers were right by how sure the model was; below, how many there were."""
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
    # Above the plot: bars may stand anywhere in it.
    upper.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, frameon=False, labelcolor=theme.ink
    )
    lower.set_ylabel("samples", color=theme.soft)
    lower.set_xlabel("score of the answer", color=theme.soft)
    return png(figure)


def _few_whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3, integer=True)


def shots_curve(rows: Sequence[Row], chance: float, theme: Theme = LIGHT) -> bytes:
    """A line a method: the mean over the seeds, with one standard deviation either way."""
    places = {shots: place for place, shots in enumerate(dict.fromkeys(row.shots for row in rows))}
    colours = {"ridge": theme.train, "knn": theme.val, "probe": theme.ink}
    figure = blank_figure(6.4, 4.4, theme)
    axes = figure.add_axes((0.12, 0.12, 0.84, 0.79))
    methods = list(dict.fromkeys(row.method for row in rows))
    for number, method in enumerate(methods):
        own = [row for row in rows if row.method == method]
        # A little apart, so that the bars of equal results are all seen.
        aside = (number - (len(methods) - 1) / 2) * 0.06
        axes.errorbar(
            [places[row.shots] + aside for row in own],
            [row.mean for row in own],
            [row.std for row in own],
            color=colours[method],
            marker=_MARKS[method],
            markersize=6,
            linewidth=1.6,
            capsize=4,
            label=_NAMES[method],
            zorder=3,
        )
    axes.axhline(chance, color=theme.soft, linewidth=1.2, linestyle=":")
    axes.text(len(places) - 0.62, chance + 0.01, "chance", color=theme.soft, fontsize=9, ha="right", va="bottom")
    dress(axes, theme)
    axes.set_xticks(list(places.values()), [str(shots) for shots in places])
    axes.set_xlim(-0.4, len(places) - 0.6)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(labelsize=9)
    axes.set_xlabel("labelled images a class", color=theme.soft)
    seeds = max(len(row.accuracies) for row in rows)
    bars = f" (bars: ± 1 std over {seeds} seeds)" if seeds > 1 else ""
    axes.set_ylabel(f"test accuracy{bars}", color=theme.soft)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=9, frameon=False, labelcolor=theme.ink)
    return png(figure)
