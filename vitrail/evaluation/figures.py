"""The picture of a few-shot evaluation: accuracy by number of shots."""

from collections.abc import Sequence

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png
from vitrail.evaluation.few_shot import FewShotRow

_NAMES = {"ridge": "least squares (the paper)", "knn": "nearest neighbours", "probe": "trained linear probe"}
"""What the picture calls the methods."""
_MARKS = {"ridge": "o", "knn": "s", "probe": "^"}
"""The markers of the methods."""


def shots_curve(rows: Sequence[FewShotRow], chance: float, theme: Theme = LIGHT) -> bytes:
    """Draws a line for each method: the mean over the seeds, with one standard deviation either way. Returns a PNG."""
    places = {shots: place for place, shots in enumerate(dict.fromkeys(row.shots for row in rows))}
    colours = {"ridge": theme.train, "knn": theme.val, "probe": theme.ink}
    figure = blank_figure(6.4, 4.4, theme)
    axes = figure.add_axes((0.12, 0.12, 0.84, 0.79))
    methods = list(dict.fromkeys(row.method for row in rows))
    for number, method in enumerate(methods):
        own = [row for row in rows if row.method == method]
        # Methods stand a little apart, so that the error bars of equal results are all visible.
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
