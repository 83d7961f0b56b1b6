"""Pictures of a regression model's answers: true against predicted, and errors. Each function returns a PNG as
bytes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png, short

POINTS = 5_000
"""The largest number of samples that are drawn; of more, some are taken evenly."""
PANELS = 12
"""The largest number of panels, one for each number; the first numbers are drawn."""
_WIDE, _HIGH = 4.6, 4.4


def scatter(true: np.ndarray, predicted: np.ndarray, names: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Draws predicted over true numbers, one panel for each number; on the diagonal both are equal. true, predicted:
    [samples, numbers]."""
    figure, panels = _panels(names, theme)
    step = max(1, math.ceil(len(true) / POINTS))
    for place, axes in enumerate(panels):
        across, up = true[::step, place], predicted[::step, place]
        low, high = (
            min(true[:, place].min(), predicted[:, place].min()),
            max(true[:, place].max(), predicted[:, place].max()),
        )
        edge = 0.04 * (high - low) or 1.0
        ends = [low - edge, high + edge]
        axes.plot(ends, ends, color=theme.ink, linewidth=1.2, linestyle="--", zorder=2)
        faint = min(0.8, max(0.15, 40 / math.sqrt(len(across) + 1) / 4))
        axes.scatter(across, up, s=14, color=theme.train, alpha=faint, linewidths=0, zorder=3)
        axes.set(xlim=ends, ylim=ends)
        axes.set_xlabel("true", color=theme.soft)
        axes.set_ylabel("predicted", color=theme.soft)
    return png(figure)


def residuals(true: np.ndarray, predicted: np.ndarray, names: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Draws a histogram of predicted minus true, one panel for each number. true, predicted: [samples, numbers]."""
    figure, panels = _panels(names, theme)
    for place, axes in enumerate(panels):
        errors = predicted[:, place] - true[:, place]
        reach = float(np.abs(errors).max()) or 1.0
        axes.hist(errors, bins=min(41, 2 * math.ceil(math.sqrt(len(errors))) + 1), range=(-reach, reach),
                  color=theme.train, zorder=3)  # fmt: skip
        axes.axvline(0, color=theme.ink, linewidth=1.2, linestyle="--", zorder=4)
        axes.set_xlabel("predicted less true", color=theme.soft)
        axes.set_ylabel("samples", color=theme.soft)
    return png(figure)


def _panels(names: Sequence[str], theme: Theme) -> tuple[Any, list[Any]]:
    """Makes a figure with titled axes for each of the first numbers, three in a row."""
    shown = names[:PANELS]
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    # The labels along the axes decide how much room the panels have, so matplotlib computes the layout.
    figure = blank_figure(_WIDE * columns, _HIGH * rows, theme, layout="constrained")
    panels = []
    for place, name in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        dress(axes, theme)
        axes.set_title(short(name, 30), color=theme.ink, fontsize=11, parse_math=False)
        panels.append(axes)
    return figure, panels
