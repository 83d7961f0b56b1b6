"""The pictures of a run: curves, confusion, sample predictions. Each function returns a PNG as bytes.

matplotlib is imported when a picture is drawn, and only its objects are used, never pyplot: nothing global is changed,
so any thread may draw.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
from PIL import Image

from vitrail.data.page import visible

COUNTED_CLASSES = 20
"""Up to so many classes the confusion picture has its counts written in."""
NAMED_CLASSES = 60
"""Up to so many, the names stand along the axes."""
GRID_SAMPLES = 32

Record = dict[str, Any]


@dataclass(frozen=True)
class SamplePrediction:
    """What a model said of one sample."""

    id: str
    pixels: np.ndarray
    """uint8 [rows, columns, channels], 1 or 3 channels."""
    label: str
    predicted: str
    score: float
    """The probability of what it predicted."""

    @property
    def right(self) -> bool:
        return self.label == self.predicted


@dataclass(frozen=True)
class Theme:
    """Colours after Okabe and Ito, which colour-blind people can tell apart."""

    paper: str
    ink: str
    soft: str
    line: str
    train: str
    val: str
    full: str
    """The strongest colour of a heat map, which begins at the paper's."""


LIGHT = Theme("#ffffff", "#1d2026", "#666b75", "#dfdcd4", "#0072b2", "#d55e00", "#08306b")
DARK = Theme("#1e2126", "#e8e6e1", "#9aa0aa", "#33373e", "#56b4e9", "#e69f00", "#9bd4f7")


def curve_panels(records: Sequence[Record], theme: Theme = LIGHT) -> dict[str, bytes]:
    """Each panel alone, by its title: beside each other on a wide page, below each other on a phone."""
    pictures = {}
    for title, draw in _panels(records).items():
        figure = _figure(4.8, 3.5, theme)
        # Known margins: to have them computed takes longer than to draw the picture.
        draw(figure.add_axes((0.17, 0.145, 0.78, 0.665)), theme)
        pictures[title] = _png(figure)
    return pictures


def tiled(pictures: Sequence[bytes], columns: int = 2) -> bytes:
    """PNGs of one size as one picture, row by row."""
    images = [Image.open(io.BytesIO(each)).convert("RGB") for each in pictures]
    wide, high = images[0].size
    columns = min(columns, len(images))
    whole = Image.new("RGB", (wide * columns, high * math.ceil(len(images) / columns)), LIGHT.paper)
    for place, image in enumerate(images):
        whole.paste(image, (place % columns * wide, place // columns * high))
    stream = io.BytesIO()
    whole.save(stream, "PNG")
    return stream.getvalue()


def _panels(records: Sequence[Record]) -> dict[str, Callable[[Any, Theme], None]]:
    """title -> what draws it, for those that have at least one value."""
    content = {
        "Loss": ("loss", [("train", "loss"), ("val", "loss")]),
        "Accuracy": ("accuracy, %", [("train", "accuracy"), ("val", "top1")]),
        "Learning rate": ("learning rate", [("train", "lr")]),
        "Gradient norm": ("global norm before clipping", [("train", "gradient_norm")]),
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
    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

        factor = 100 if title == "Accuracy" else 1
        for kind, (steps, values) in lines.items():
            _line(axes, kind, steps, values * factor, theme, steady=title == "Learning rate")
        text = label
        if title in ("Loss", "Gradient norm") and _spans_decades([smooth(values) for _, values in lines.values()]):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            text += " (log scale)"
        elif title != "Accuracy":
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        _dress(axes, theme)
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


def _line(axes: Any, kind: str, steps: np.ndarray, values: np.ndarray, theme: Theme, steady: bool) -> None:
    if kind == "val":
        # Marks as well as another colour: the two are told apart in grey too.
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
    """(steps, values) of one measure in order of steps, without what is missing or not finite."""
    pairs = [
        (record["step"], record[name])
        for record in records
        if record.get("kind") == kind and _number(record.get("step")) and _number(record.get(name))
    ]
    pairs.sort(key=lambda pair: pair[0])
    return np.array([step for step, _ in pairs], dtype=float), np.array([value for _, value in pairs], dtype=float)


def epochs_per_step(records: Sequence[Record]) -> float | None:
    """From the last record that knows its epoch; None where none does."""
    for record in reversed(records):
        step, epoch = record.get("step"), record.get("epoch")
        if _number(step) and _number(epoch) and step > 0 and epoch > 0:
            return epoch / step
    return None


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def smooth(values: np.ndarray) -> np.ndarray:
    """The mean of a window around each value, so that nothing lags; fewer than 20 values are left alone."""
    if len(values) < 20:
        return values
    half = max(2, len(values) // 30)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def thin(steps: np.ndarray, values: np.ndarray, bins: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """At most the least and the most of each bin: a long run draws fast, and no spike is lost."""
    if len(values) <= 2 * bins:
        return steps, values
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        kept |= {start + int(values[start:stop].argmin()), start + int(values[start:stop].argmax())}
    places = np.array(sorted(kept))
    return steps[places], values[places]


def _spans_decades(lines: list[np.ndarray]) -> bool:
    values = np.concatenate(lines)
    return bool(values.min() > 0 and values.max() > 30 * values.min())


def confusion(counts: np.ndarray, classes: Sequence[str], theme: Theme = LIGHT) -> bytes:
    """Rows are true classes, each as shares of its own samples. counts: [classes, classes] of integers."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm
    from matplotlib.ticker import MaxNLocator

    number = len(counts)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    colours = LinearSegmentedColormap.from_list("shares", [theme.paper, theme.train, theme.full])
    colours = colours.with_extremes(bad=theme.line)
    side = min(10.0, max(5.0, 2.6 + 0.42 * number)) if number <= COUNTED_CLASSES else 10.0
    # The names decide how much room is left, so here the layout is computed.
    figure = _figure(side + 1.0, side, theme, layout="constrained")
    axes = figure.add_subplot()
    # Of many classes single mistakes are faint and thin: the root of the share makes them visible.
    norm = PowerNorm(0.5 if number > COUNTED_CLASSES else 1.0, vmin=0, vmax=1)
    extent = (-0.5, number - 0.5, number - 0.5, -0.5)
    picture = axes.imshow(_pool(shares), cmap=colours, norm=norm, extent=extent, interpolation="nearest")
    _dress(axes, theme, grid=False)
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
    return _png(figure)


def _pool(shares: np.ndarray, most: int = 500) -> np.ndarray:
    """The largest of each block of cells, so that no cell falls between two pixels."""
    block = math.ceil(len(shares) / most)
    if block == 1:
        return shares
    missing = -len(shares) % block
    padded = np.pad(np.nan_to_num(shares), ((0, missing), (0, missing)))
    rows = len(padded) // block
    return padded.reshape(rows, block, rows, block).max(axis=(1, 3))


def _write_counts(axes: Any, counts: np.ndarray, shares: np.ndarray, colour: Callable[[float], Any]) -> None:
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
    """A grid of the first samples; a wrong one has a cross, and a thick frame of another colour."""
    shown = samples[:GRID_SAMPLES]
    columns = min(8, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    wide, high, edge = 1.6, 2.1, 0.12
    figure = _figure(wide * columns + edge, high * rows + edge, theme)
    for place, sample in enumerate(shown):
        left = (place % columns * wide + edge) / (wide * columns + edge)
        bottom = ((rows - 1 - place // columns) * high + 0.36) / (high * rows + edge)
        size = ((wide - edge) / (wide * columns + edge), (wide - edge) / (high * rows + edge))
        axes = figure.add_axes((left, bottom, *size))
        pixels = sample.pixels
        if pixels.ndim == 3 and pixels.shape[2] != 3:
            pixels = pixels[:, :, 0]
        small = max(pixels.shape[:2]) <= 64
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest" if small else "antialiased")
        # A square around every picture, whatever its shape: the words stand in lines.
        high_pixels, wide_pixels = pixels.shape[:2]
        half = max(high_pixels, wide_pixels) / 2
        middle = (wide_pixels - 1) / 2, (high_pixels - 1) / 2
        axes.set(xticks=[], yticks=[], facecolor=theme.line)
        axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] + half, middle[1] - half))
        colour = theme.train if sample.right else theme.val
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=1.2 if sample.right else 3.5)
        sign = "✓" if sample.right else "✗"
        axes.set_title(f"true: {short(sample.label, 14)}", color=theme.ink, fontsize=9, parse_math=False, pad=5)
        axes.set_xlabel(
            f"{sign} {short(sample.predicted, 11)}  {sample.score:.0%}",
            color=colour,
            fontsize=9,
            fontweight="normal" if sample.right else "bold",
            parse_math=False,
        )
    return _png(figure)


def short(name: str, length: int) -> str:
    """The middle is left out: names that begin alike are common, and so are those that end alike."""
    # What the font lacks would be drawn as a box too, but with a warning for each; the HTML shows it rightly.
    name = "".join(each if ord(each) in _glyphs() else "□" for each in visible(name))
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1 - length // 2) :]}"


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    plain, bold = (get_font(findfont(FontProperties(weight=weight))).get_charmap() for weight in ("normal", "bold"))
    return frozenset(plain) & frozenset(bold)


def _figure(columns: float, rows: float, theme: Theme, layout: Any = None) -> Any:
    """In inches, with the backend that draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns, rows), dpi=144, layout=layout, facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def _dress(axes: Any, theme: Theme, grid: bool = True) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.soft, which="both")
    for spine in axes.spines.values():
        spine.set_color(theme.line)
    if grid:
        axes.grid(color=theme.line, linewidth=0.6)
        axes.set_axisbelow(True)


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
