"""Programs beside each other: how many times as fast, with the spread of the rounds."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.drawing.plots import LIGHT, Theme, blank_figure, dress, png, short

_COLOURS = ("train", "val", "soft", "ink")
_MARKS = ("o", "s", "^", "D")


def ratios(rows: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> bytes:
    """A panel for each `what`: a line for each peer, and on it a mark for each subject with its spread.

    rows: {what, subject, peer, ratio, spread}, all of one unit; right of 1 the subject is faster.
    """
    cases, subjects, peers = (list(dict.fromkeys(row[key] for row in rows)) for key in ("what", "subject", "peer"))
    columns = min(2, len(cases))
    lines = -(-len(cases) // columns)
    figure = blank_figure(1.2 + 5.0 * columns, 0.9 + lines * (0.9 + 0.42 * len(peers)), theme, layout="constrained")
    edges = [edge for row in rows for edge in (*row["spread"], row["ratio"])]
    low, high = min(0.95, *edges), max(1.05, *edges)
    room = 0.06 * (high - low)
    handles: dict[str, Any] = {}
    for place, case in enumerate(cases):
        axes = figure.add_subplot(lines, columns, place + 1)
        dress(axes, theme)
        axes.grid(False, axis="y")
        axes.axvline(1.0, color=theme.soft, linewidth=1.2)
        for number, subject in enumerate(subjects):
            colour = getattr(theme, _COLOURS[number % len(_COLOURS)])
            # Marks of several subjects stand a little above each other, so that none hides another.
            shift = 0.16 * (number - (len(subjects) - 1) / 2)
            for row in (row for row in rows if row["what"] == case and row["subject"] == subject):
                y = peers.index(row["peer"]) + shift
                axes.plot(row["spread"], (y, y), color=colour, linewidth=2.2, solid_capstyle="round")
                (handle,) = axes.plot(row["ratio"], y, _MARKS[number % len(_MARKS)], color=colour, markersize=6)
                handles[subject] = handle
        axes.set(xlim=(low - room, high + room), ylim=(len(peers) - 0.5, -0.5))
        axes.set_yticks(range(len(peers)), [short(peer, 18) for peer in peers], parse_math=False)
        axes.set_title(short(case, 40), color=theme.ink, fontsize=11, loc="left")
    figure.supxlabel("times as fast as the peer (middle half of the rounds)", color=theme.soft, fontsize=10)
    legend = figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False
    )
    for label in legend.get_texts():
        label.set_color(theme.ink)
    return png(figure)
