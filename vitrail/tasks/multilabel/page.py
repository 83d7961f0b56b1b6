"""A multi-label model's sections of the reports: precision and recall, a table by label, samples."""

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from vitrail.drawing.page import picture, section, table, text, thumbnail
from vitrail.drawing.plots import LIGHT, Theme, blank_figure, both, dress, png
from vitrail.drawing.results import percent
from vitrail.tasks import pages
from vitrail.tasks.multilabel.meter import LabelMeter
from vitrail.tasks.multilabel.scores import precision_recall, sigmoid
from vitrail.tasks.multilabel.target import JOIN
from vitrail.tasks.pages import Headline

_GRID_SAMPLES = 32
"""How many samples the grid of predictions shows."""
_SHOWN_MISTAKES = 12
_SHOWN_LABELS = 20


class SampleLabels(NamedTuple):
    """A sample and the labels that a model predicted for it."""

    id: str
    true: np.ndarray
    """int8 [labels], 1 for each label that the sample has."""
    predicted: np.ndarray
    """bool [labels]."""
    scores: np.ndarray
    """float64 [labels]."""

    @property
    def mistakes(self) -> int:
        """The number of labels that were missed or predicted wrongly."""
        return int(((self.true > 0) != self.predicted).sum())


class LabelPage(pages.Page):
    """Shows a multi-label model's numbers in the reports."""

    curves = MappingProxyType({"mAP": ("mAP, %", (("val", "map"),)), "F1": ("F1 (micro), %", (("val", "f1"),))})
    files = ("precision-recall.png",)

    def __init__(self, meter: LabelMeter, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None:
        self.meter = meter
        places: list[int] = meter.measured.tolist()
        self.names = [names[place] for place in places]
        self.samples = list(zip(_chosen(meter), samples, strict=False))
        self.drawn = both(lambda theme: precision_recall_picture(meter, theme)) if meter.n else None

    @staticmethod
    def chosen(meter: LabelMeter) -> list[str]:
        """Chooses some samples evenly from all of them, then those with the most mistakes."""
        return [each.id for each in _chosen(meter)]

    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        n, split = result["n"], "" if result.get("split") in (None, "all") else f"{result['split']} "
        values = [
            (percent(result["map"]), f"mean average precision on {n:,} {split}samples", ""),
            (percent(result["f1"]), "F1 of all labels in one count (micro)", ""),
        ]
        if not brief:
            values.append((percent(result["macro_f1"]), "F1, every label counts alike (macro)", ""))
        measured = result.get("per_class", {})
        present = sum(bool(facts["n"]) for facts in measured.values())
        line = f"Means are over the {present:,} of {len(measured):,} labels that some sample has."
        return Headline(values, [line] if measured else [])

    def training(self) -> list[str]:
        return [self._curve(), self._labels(), self._grid()]

    def evaluation(self) -> list[str]:
        return [self._curve(), self._labels(), self._mistakes(), self._grid()]

    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        return {} if self.drawn is None else {"precision-recall.png": self.drawn[0]}

    def table(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "labels", "predicted", "right", *(f"score {name}" for name in self.meter.labels)))
        for each in _samples(self.meter):
            true, predicted = (
                JOIN.join(self._named(chosen, self.meter.labels)) for chosen in (each.true, each.predicted)
            )
            writer.writerow(
                (each.id, true, predicted, int(not each.mistakes), *(f"{score:.6f}" for score in each.scores))
            )
        return stream.getvalue()

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        measured = [record for record in records if "map" in record and "step" in record]
        if not measured:
            return []
        best = max(measured, key=lambda record: record["map"])
        return [f"Best on validation: mAP {percent(best['map'])} at step {best['step']:,}."]

    def _curve(self) -> str:
        if self.drawn is None:
            return ""
        drawn = picture(*self.drawn, "Precision by recall of all labels")
        about = "How many of the answers are right, by how many of the true labels are found: all labels in one count."
        return section("Precision and recall", f'<div class="heat" style="max-width:560px">{drawn}</div>', about)

    def _labels(self) -> str:
        found = list(self.meter.result()["per_class"].values())
        rows = [(name, facts) for name, facts in zip(self.names, found, strict=True) if facts["n"]]
        many = len(rows) > _SHOWN_LABELS
        if many:
            rows.sort(key=lambda row: row[1]["ap"])
        shown = _label_table(rows[:_SHOWN_LABELS]) if rows else ""
        if many:
            rest = _label_table(rows[_SHOWN_LABELS:])
            shown += f"<details><summary>The other {len(rows) - _SHOWN_LABELS:,} labels</summary>{rest}</details>"
        return section("By label", shown, f"The {_SHOWN_LABELS} hardest labels first." if many else "")

    def _grid(self) -> str:
        shown = [self._sample(each, pixels) for each, pixels in self.samples[:_GRID_SAMPLES]]
        about = "✓ right, ✗ predicted but not true, ○ true but not predicted."
        return section("Sample predictions", f'<div class="samples">{"".join(shown)}</div>' if shown else "", about)

    def _mistakes(self) -> str:
        # A sample may be among those taken evenly and again among those with most mistakes: show it once.
        wrong = list({each.id: (each, pixels) for each, pixels in self.samples if each.mistakes}.values())
        wrong.sort(key=lambda pair: -pair[0].mistakes)
        shown = [self._sample(*pair) for pair in wrong[:_SHOWN_MISTAKES]]
        about = "Where most labels were missed or predicted wrongly. Look here for wrong labels first."
        return section("Most mistakes", f'<div class="samples">{"".join(shown)}</div>' if shown else "", about)

    def _sample(self, each: SampleLabels, pixels: np.ndarray) -> str:
        lines = []
        for index in np.flatnonzero((each.true > 0) | each.predicted):
            sign = "○" if not each.predicted[index] else "✓" if each.true[index] else "✗"
            lines.append(f"{sign} {text(self.names[index])} {percent(float(each.scores[index]))}")
        kind = "wrong" if each.mistakes else "right"
        told = "<br>".join(lines) or "no label"
        return f'<figure class="{kind}" title="{text(each.id)}">{thumbnail(pixels)}<br>{told}</figure>'

    @staticmethod
    def _named(chosen: np.ndarray, names: Sequence[str]) -> list[str]:
        return [names[index] for index in np.flatnonzero(chosen).tolist()]


def _label_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    heads = ("label", "samples", "average precision", "precision", "recall", "F1", "threshold")
    shares = ("ap", "precision", "recall", "f1")
    return table(
        heads,
        [
            (name, f"{facts['n']:,}", *(percent(facts[key]) for key in shares), f"{facts['threshold']:.3g}")
            for name, facts in rows
        ],
    )


def _samples(meter: LabelMeter) -> list[SampleLabels]:
    thresholds = meter.thresholds
    found = []
    for name, true, logits in meter.kept:
        scores = sigmoid(logits)
        found.append(SampleLabels(name, true, scores >= thresholds, scores))
    return found


def _chosen(meter: LabelMeter) -> list[SampleLabels]:
    """Returns some samples taken evenly from all of them, then those with the most mistakes."""
    every = _samples(meter)
    fair = every[:: max(1, len(every) // _GRID_SAMPLES)][:_GRID_SAMPLES]
    wrong = sorted((each for each in every if each.mistakes), key=lambda each: -each.mistakes)[:_SHOWN_MISTAKES]
    return [*fair, *wrong]


def precision_recall_picture(meter: LabelMeter, theme: Theme = LIGHT) -> bytes:
    """Draws precision by recall over the answers of all labels together, and marks the model's thresholds; returns a
    PNG."""
    precision, recall = precision_recall(sigmoid(meter.logits).ravel(), meter.truths.ravel())
    result = meter.result()["per_class"].values()
    found = sum(facts["recall"] * facts["n"] for facts in result)
    answered = sum(int(each.predicted.sum()) for each in _samples(meter))
    true = sum(facts["n"] for facts in result)
    figure = blank_figure(5.6, 4.4, theme)
    axes = figure.add_axes((0.13, 0.13, 0.83, 0.78))
    axes.plot(recall, precision, color=theme.train, linewidth=1.6, drawstyle="steps-pre", label="any one threshold")
    axes.plot(
        [found / max(true, 1)],
        [found / max(answered, 1)],
        color=theme.val,
        linestyle="none",
        marker="o",
        markersize=6,
        label="the model's thresholds",
    )
    dress(axes, theme)
    axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("recall: true labels that are found", color=theme.soft)
    axes.set_ylabel("precision: answers that are right", color=theme.soft)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9, frameon=False, labelcolor=theme.ink)
    return png(figure)


PART = LabelPage
