"""Draws the pictures of studies: lines with error bars, or dots by name."""

from collections.abc import Sequence
from typing import Any

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png, short
from vitrail.studies.comparison import Point

_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b5558e", "#8a6d00")
"""The colours of lines on a light page; distinct for the colour-blind."""
_DARK = ("#56b4e9", "#e69f00", "#3ccf9b", "#e59fc5", "#f0e442")
"""The colours of lines on a dark page."""
_MARKS = "osD^v"
"""The marks of lines."""


def lines(
    series: dict[str, list[tuple[float, Point]]], across: str, theme: Theme = LIGHT, logarithmic: bool = True
) -> bytes:
    """Draws accuracy against a number, as one line with error bars for each name; lines differ in mark and colour."""
    figure = blank_figure(7.2, 4.6, theme, layout="constrained")
    axes = figure.add_subplot()
    dress(axes, theme)
    for place, (name, points) in enumerate(series.items()):
        places, means = [x for x, _ in points], [100 * point.mean for _, point in points]
        spreads = [100 * (point.spread or 0) for _, point in points]
        axes.errorbar(places, means, spreads, label=name, **_style(place, theme))
    if logarithmic:
        axes.set_xscale("log")
        ticks = sorted({x for points in series.values() for x, _ in points})
        if len(ticks) <= 8:
            axes.set_xticks(ticks, [f"{x:,.0f}" if x >= 1000 else f"{x:.4g}" for x in ticks])
            axes.minorticks_off()
    axes.set_xlabel(across, color=theme.soft)
    _finish(axes, theme)
    return png(figure)


def dots(groups: dict[str, list[tuple[str, Point]]], theme: Theme = LIGHT) -> bytes:
    """Draws accuracy by name: a row with an error bar for each point, with a colour and mark for each group."""
    rows = [(group, name, point) for group, points in groups.items() for name, point in points]
    figure = blank_figure(7.2, 1.3 + 0.36 * len(rows), theme, layout="constrained")
    axes = figure.add_subplot()
    dress(axes, theme)
    for place, group in enumerate(groups):
        own = [(index, point) for index, (of, _, point) in enumerate(rows) if of == group]
        style = {**_style(place, theme), "linestyle": "none"}
        means, spreads = [100 * point.mean for _, point in own], [100 * (point.spread or 0) for _, point in own]
        axes.errorbar(means, [-index for index, _ in own], xerr=spreads, label=group, **style)
    axes.set_yticks([-index for index in range(len(rows))], [short(name, 40) for _, name, _ in rows])
    axes.set_xlabel("top-1 accuracy on the test split, %", color=theme.soft)
    if len(groups) > 1:
        figure.legend(loc="outside upper center", ncols=len(groups), frameon=False, labelcolor=theme.ink)
    return png(figure)


def _style(place: int, theme: Theme) -> dict[str, Any]:
    """Returns the colour and mark of the line at `place`."""
    colours: Sequence[str] = _LIGHT if theme == LIGHT else _DARK
    return {
        "color": colours[place % len(colours)],
        "marker": _MARKS[place % len(_MARKS)],
        "markersize": 6,
        "linewidth": 1.6,
        "capsize": 3.5,
    }


def _finish(axes: Any, theme: Theme) -> None:
    """Adds the label of the vertical axis and the legend."""
    axes.set_ylabel("top-1 accuracy on the test split, %", color=theme.soft)
    legend = axes.legend(facecolor=theme.paper, edgecolor=theme.paper, framealpha=1.0, labelcolor=theme.ink)
    legend.set_zorder(1)  # above the grid, below the lines
