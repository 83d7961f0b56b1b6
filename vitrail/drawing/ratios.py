"""A figure of benchmark results: how many times as fast one program is as another, with the spread over the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png, short

# The colours of a Theme and the marks of matplotlib that the subjects get in turn.
_COLOURS = ("train", "val", "soft", "ink")
_MARKS = ("o", "s", "^", "D")


def ratios(rows: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> bytes:
    """Draws benchmark results: a panel for each `what`, in it a line for each peer, and on it a mark for each subject.

    Args:
        rows: The results, all of one unit, as `vitrail bench --json` has them: {what, subject, peer, ratio, spread}.
            `ratio` is how many times as fast the subject is as the peer, `spread` (low, high) the middle half of the
            rounds.
        theme: The colours of the page that the figure is for.

    Returns:
        The figure as PNG.
    """
    cases, subjects, peers = (list(dict.fromkeys(row[key] for row in rows)) for key in ("what", "subject", "peer"))
    columns = min(2, len(cases))
    lines = -(-len(cases) // columns)
    figure = blank_figure(1.2 + 5.0 * columns, 0.9 + lines * (0.9 + 0.42 * len(peers)), theme, layout="constrained")
    edges = [edge for row in rows for edge in (*row["spread"], row["ratio"])]
    low, high = min(0.95, *edges), max(1.05, *edges)
    margin = 0.06 * (high - low)
    handles: dict[str, Any] = {}
    for index, case in enumerate(cases):
        axes = figure.add_subplot(lines, columns, index + 1)
        dress(axes, theme)
        axes.grid(False, axis="y")
        axes.axvline(1.0, color=theme.soft, linewidth=1.2)
        for number, subject in enumerate(subjects):
            colour = getattr(theme, _COLOURS[number % len(_COLOURS)])
            # The marks of several subjects are moved apart a little, so that none hides another.
            shift = 0.16 * (number - (len(subjects) - 1) / 2)
            for row in (row for row in rows if row["what"] == case and row["subject"] == subject):
                y = peers.index(row["peer"]) + shift
                axes.plot(row["spread"], (y, y), color=colour, linewidth=2.2, solid_capstyle="round")
                (handle,) = axes.plot(row["ratio"], y, _MARKS[number % len(_MARKS)], color=colour, markersize=6)
                handles[subject] = handle
        axes.set(xlim=(low - margin, high + margin), ylim=(len(peers) - 0.5, -0.5))
        axes.set_yticks(range(len(peers)), [short(peer, 18) for peer in peers], parse_math=False)
        axes.set_title(short(case, 40), color=theme.ink, fontsize=11, loc="left")
    figure.supxlabel("times as fast as the peer (middle half of the rounds)", color=theme.soft, fontsize=10)
    legend = figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False
    )
    for label in legend.get_texts():
        label.set_color(theme.ink)
    return png(figure)
