"""What a model said of its samples, in pictures and on a page: confusion, accuracy by class, the surest mistakes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.drawing.page import picture, section, table, text, thumbnail
from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, lay, png, sheet, short

COUNTED_CLASSES = 20
"""Up to so many classes the confusion picture has its counts written in."""
NAMED_CLASSES = 60
"""Up to so many, the names stand along the axes."""
GRID_SAMPLES = 32
_SHOWN_PAIRS = 10
_SHOWN_MISTAKES = 12
_SHOWN_CLASSES = 20

STYLE = """
pre { margin: 0 0 10px; padding: 10px 14px; background: var(--page); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 13px; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }
picture img { display: block; width: 100%; height: auto; }
.heat { margin: 0 auto 14px; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(108px, 1fr)); gap: 14px; }
.samples figure { width: auto; }
.samples img { width: 100%; height: 108px; border: 2px solid var(--line); margin-bottom: 4px; }
.samples .wrong img { border: 4px double var(--bad); }
.samples .wrong b { color: var(--bad); }
td .bar { width: 200px; background: var(--line); margin-top: 5px; }
td.number { white-space: nowrap; }
details { margin-top: 12px; }
details:first-child { margin-top: 0; }
summary { cursor: pointer; color: var(--soft); }
@media (max-width: 520px) {
  main { padding: 20px 12px 40px; }
  section { padding: 14px; }
  .share { display: none; }
}
"""


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
    figure = blank_figure(side + 1.0, side, theme, layout="constrained")
    axes = figure.add_subplot()
    # Of many classes single mistakes are faint and thin: the root of the share makes them visible.
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
    figure, axes = sheet(wide * columns + edge, high * rows + edge, theme)
    side = wide - edge
    for place, sample in enumerate(shown):
        left, bottom = place % columns * wide + edge, (rows - 1 - place // columns) * high + 0.36
        colour = theme.train if sample.right else theme.val
        lay(axes, sample.pixels, (left, bottom), side, theme, colour, 1.2 if sample.right else 3.5)
        words = {"ha": "center", "fontsize": 9, "parse_math": False}
        label, said = short(sample.label, 14), short(sample.predicted, 11)
        axes.text(left + side / 2, bottom + side + 0.07, f"true: {label}", va="bottom", color=theme.ink, **words)
        axes.text(
            left + side / 2,
            bottom - 0.06,
            f"{'✓' if sample.right else '✗'} {said}  {sample.score:.0%}",
            va="top",
            color=colour,
            fontweight="normal" if sample.right else "bold",
            **words,
        )
    return png(figure)


def confused_pairs(confusion: np.ndarray, most: int = _SHOWN_PAIRS) -> list[tuple[int, int, int, float]]:
    """(true, predicted, count, share of the true class) of the commonest mistakes, the commonest first.

    Of equal counts the larger share goes first, then the order of the classes.
    """
    totals = confusion.sum(axis=1)
    pairs = [
        (int(true), int(predicted), int(confusion[true, predicted]), float(confusion[true, predicted] / totals[true]))
        for true, predicted in np.argwhere(confusion)
        if true != predicted
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], -pair[3]))[:most]


def confusion_section(confusion: np.ndarray | None, classes: Sequence[str], heat: tuple[bytes, bytes] | None) -> str:
    if confusion is None or heat is None:
        return ""
    drawn = picture(*heat, "Confusion of the classes")
    rows = [
        (classes[true], classes[predicted], f"{count:,}", percent(share))
        for true, predicted, count, share in confused_pairs(confusion)
    ]
    heads = ("true class", "taken for", "times", "share of the class")
    pairs = f"<h2>Most confused</h2>{table(heads, rows)}" if rows else "<p>No class was taken for another.</p>"
    about = "Each row is a true class, each column what the model said; the diagonal is right."
    return section(
        "Confusion",
        f'<div class="heat" style="max-width:{min(760, 420 + 20 * len(classes))}px">{drawn}</div>{pairs}',
        about,
    )


def classes_section(final: dict[str, Any], confusion: np.ndarray | None, classes: Sequence[str]) -> str:
    per_class = final.get("per_class") or {}
    rows = [(name, each["n"], each["top1"]) for name, each in per_class.items() if {"n", "top1"} <= set(each)]
    if not rows and confusion is not None:
        totals = confusion.sum(axis=1)
        rows = [
            (name, int(n), confusion[i, i] / n) for i, (name, n) in enumerate(zip(classes, totals, strict=True)) if n
        ]
    if not rows:
        return ""
    many = len(rows) > _SHOWN_CLASSES
    if many:
        rows.sort(key=lambda row: row[2])
    shown = _class_table(rows[:_SHOWN_CLASSES])
    if many:
        rest = _class_table(rows[_SHOWN_CLASSES:])
        shown += f"<details><summary>The other {len(rows) - _SHOWN_CLASSES:,} classes</summary>{rest}</details>"
    return section("Accuracy by class", shown, f"The {_SHOWN_CLASSES} hardest classes first." if many else "")


def _class_table(rows: Sequence[tuple[str, int, float]]) -> str:
    body = "".join(
        f'<tr><td>{text(name)}</td><td class="number">{n:,}</td><td class="number">{percent(share)}</td>'
        f'<td class="share"><div class="bar"><i class="train" style="width:{100 * share:.1f}%"></i></div></td></tr>'
        for name, n, share in rows
    )
    return '<table><tr><th>class</th><th>samples</th><th>accuracy</th><th class="share"></th></tr>' + body + "</table>"


def _sample(sample: SamplePrediction) -> str:
    sign = "✓" if sample.right else "✗"
    instead = "" if sample.right else f"<br>true: {text(sample.label)}"
    return (
        f'<figure class="{"right" if sample.right else "wrong"}" title="{text(sample.id)}">'
        f"{thumbnail(sample.pixels)}<br><b>{sign} {text(sample.predicted)}</b> {percent(sample.score)}{instead}"
        "</figure>"
    )


def samples_section(samples: Sequence[SamplePrediction]) -> str:
    shown = samples[:GRID_SAMPLES]
    about = "✓ right, ✗ wrong: what the model said, how sure it was, and what is true where it was wrong."
    return section("Sample predictions", _grid(shown), about)


def mistakes_section(samples: Sequence[SamplePrediction]) -> str:
    # A sample may be given twice: by chance, and again for being wrong.
    wrong = list({sample.id: sample for sample in samples if not sample.right}.values())
    wrong.sort(key=lambda sample: -sample.score)
    if samples and not wrong:
        return section("Most confident mistakes", f"<p>None among the {len(samples):,} samples kept.</p>")
    about = "Where the model was surest and wrong. Look here for wrong labels first."
    return section("Most confident mistakes", _grid(wrong[:_SHOWN_MISTAKES], names=True), about)


def _grid(samples: Sequence[SamplePrediction], names: bool = False) -> str:
    if not samples:
        return ""
    listed = "".join(
        f"<tr><td>{text(each.id)}</td><td>{text(each.label)}</td><td>{text(each.predicted)}</td>"
        f'<td class="number">{percent(each.score)}</td></tr>'
        for each in samples
    )
    files = (
        "<details><summary>Their names</summary><table><tr><th>sample</th><th>true</th><th>predicted</th><th>score</th>"
        f"</tr>{listed}</table></details>"
    )
    return f'<div class="samples">{"".join(map(_sample, samples))}</div>{files if names else ""}'


def percent(share: float) -> str:
    """As many digits as tell 99.9 from 100."""
    return f"{share:.1%}" if share < 0.995 or share == 1 else f"{share:.2%}"


def interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval, which stays honest near 0 and 1 where accuracies live."""
    z = 1.96
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
