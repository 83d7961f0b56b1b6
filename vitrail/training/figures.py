"""Pictures of a run: its curves, and what an objective has learned. Each function returns a PNG as bytes.

matplotlib is imported when a picture is drawn, and pyplot is not used: nothing global is changed, so any thread may
draw.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, lay, png, sheet, short
from vitrail.training.objectives.base import Illustration

Record = dict[str, Any]
"""A line of metrics.jsonl."""


Curves = Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]
"""Panels by title: (label of the vertical axis, the (kind of record, key) of each line)."""

_WITHOUT_LABELS: Curves = {
    "Accuracy of patches": ("right colours, %", (("train", "accuracy"), ("val", "accuracy"))),
    "Neighbours": ("accuracy of 20 nearest, %", (("val", "knn_top1"),)),
    "Entropy of the teacher": ("share of the most there can be", (("train", "entropy"), ("val", "entropy"))),
    "Usage of the outputs": ("share of the most there can be", (("train", "usage"), ("val", "usage"))),
}
"""The panels of a run without labels, besides those of every run."""


def curve_panels(records: Sequence[Record], theme: Theme = LIGHT, own: Curves = _WITHOUT_LABELS) -> dict[str, bytes]:
    """Draws each panel as a picture of its own, by title. own: the panels of the task, besides those of every run."""
    pictures = {}
    for title, draw in _panels(records, own).items():
        figure = blank_figure(4.8, 3.5, theme)
        # Fixed margins: matplotlib takes longer to compute them than to draw the picture.
        draw(figure.add_axes((0.17, 0.145, 0.78, 0.665)), theme)
        pictures[title] = png(figure)
    return pictures


def _panels(records: Sequence[Record], own: Curves) -> dict[str, Callable[[Any, Theme], None]]:
    """Returns functions that draw the panels, by title, for those that have a value to show."""
    content: Curves = {
        "Loss": ("loss", (("train", "loss"), ("val", "loss"))),
        **own,
        "Learning rate": ("learning rate", (("train", "lr"),)),
        "Gradient norm": ("global norm before clipping", (("train", "gradient_norm"),)),
    }
    per_step = epochs_per_step(records)
    panels = {}
    for title, (label, wanted) in content.items():
        lines = {kind: series(records, kind, name) for kind, name in wanted}
        lines = {kind: line for kind, line in lines.items() if len(line[0])}
        if lines:
            panels[title] = _panel(title, label, lines, per_step)
    return panels


def _panel(
    title: str, label: str, lines: dict[str, tuple[np.ndarray, np.ndarray]], per_step: float | None
) -> Callable[[Any, Theme], None]:
    """Makes a function that draws a panel. lines: kind of record -> (steps, values); per_step: epochs in a step."""

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

        percent = label.endswith("%")
        factor = 100 if percent else 1
        for kind, (steps, values) in lines.items():
            _line(axes, kind, steps, values * factor, theme, steady=title == "Learning rate")
        text = label
        if title in ("Loss", "Gradient norm") and _spans_decades([smooth(values) for _, values in lines.values()]):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            text += " (log scale)"
        elif not percent:
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        dress(axes, theme)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
        axes.tick_params(labelsize=9)
        axes.set_title(title, color=theme.ink, fontsize=12, loc="left", fontweight="bold", y=1.12, pad=0)
        axes.set_xlabel("step", color=theme.soft)
        axes.set_ylabel(text, color=theme.soft)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if per_step:
            top = axes.secondary_xaxis("top", functions=(lambda step: step * per_step, lambda epoch: epoch / per_step))
            top.set_xlabel("epoch", color=theme.soft, loc="right", labelpad=3)
            top.tick_params(colors=theme.soft, labelsize=8)
            top.spines["top"].set_color(theme.line)
        if len(axes.lines) > 1:
            axes.legend(fontsize=9, labelcolor=theme.ink, facecolor=theme.paper, edgecolor=theme.line, framealpha=0.85)

    return draw


def illustration(shown: Illustration, theme: Theme = LIGHT) -> bytes:
    """Draws samples in rows, with a named column for each thing that is shown of them. If there are few columns, two
    samples stand side by side."""
    count, side, edge, gap, head = len(shown.columns), 1.35, 0.08, 0.3, 0.34
    beside = 2 if count <= 4 and len(shown.rows) > 1 else 1
    lines, block = math.ceil(len(shown.rows) / beside), count * (side + edge) + edge
    wide, high = beside * block + (beside - 1) * gap, lines * (side + edge) + head
    figure, axes = sheet(wide, high, theme)
    for place, pictures in enumerate(shown.rows):
        row, start = place // beside, place % beside * (block + gap)
        for column, pixels in enumerate(pictures):
            left, bottom = start + edge + column * (side + edge), high - head - (row + 1) * (side + edge) + edge
            lay(axes, pixels, (left, bottom), side, theme, theme.line)
            if not row:
                name, middle = short(shown.columns[column], 22), left + side / 2
                words = {"ha": "center", "va": "bottom", "fontsize": 8, "parse_math": False}
                axes.text(middle, bottom + side + 0.07, name, color=theme.soft, **words)
    return png(figure)


def _line(axes: Any, kind: str, steps: np.ndarray, values: np.ndarray, theme: Theme, steady: bool) -> None:
    """Draws one line: validations with markers, training smoothed over its single records. steady: whether it needs no
    smoothing."""
    if kind == "val":
        # Markers as well as another colour, so that the lines differ in grey too.
        axes.plot(steps, values, color=theme.val, linewidth=1.6, marker="o", markersize=4, label="validation", zorder=4)
        return
    smoothed = values if steady else smooth(values)
    if smoothed is values:
        marker = "." if len(values) < 20 else None
        axes.plot(*thin(steps, values), color=theme.train, linewidth=1.6, marker=marker, label="training", zorder=3)
        return
    axes.plot(*thin(steps, values), color=theme.train, alpha=0.3, linewidth=0.8, label="training, each record")
    axes.plot(*thin(steps, smoothed), color=theme.train, linewidth=1.8, label="training, smoothed", zorder=3)


def series(records: Sequence[Record], kind: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (steps, values) of one measure, in order of steps, without those that are missing or not finite."""
    pairs = [
        (record["step"], record[name])
        for record in records
        if record.get("kind") == kind and _number(record.get("step")) and _number(record.get(name))
    ]
    pairs.sort(key=lambda pair: pair[0])
    return np.array([step for step, _ in pairs], dtype=float), np.array([value for _, value in pairs], dtype=float)


def epochs_per_step(records: Sequence[Record]) -> float | None:
    """Returns how many epochs a step is, from the last record that has its epoch; None if none has."""
    for record in reversed(records):
        step, epoch = record.get("step"), record.get("epoch")
        if _number(step) and _number(epoch) and step > 0 and epoch > 0:
            return epoch / step
    return None


def _number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def smooth(values: np.ndarray) -> np.ndarray:
    """Averages a window around each value, so that the curve does not lag; fewer than 20 values are returned
    unchanged."""
    if len(values) < 20:
        return values
    half = max(2, len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def thin(steps: np.ndarray, values: np.ndarray, bins: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Keeps the smallest and the largest value of each bin: a long run is drawn fast, and no spike is lost."""
    if len(values) <= 2 * bins:
        return steps, values
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        kept |= {start + int(values[start:stop].argmin()), start + int(values[start:stop].argmax())}
    places = np.array(sorted(kept))
    return steps[places], values[places]


def _spans_decades(lines: list[np.ndarray]) -> bool:
    """Whether values are above 0 and differ by more than a factor of 30, so that a log scale shows them better."""
    values = np.concatenate(lines)
    return bool(values.min() > 0 and values.max() > 30 * values.min())
