"""A classifier's sections of the reports: confusion, accuracy by class, calibration, samples, most confident
mistakes."""

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from vitrail.drawing.page import picture, section, table, text, thumbnail
from vitrail.drawing.plots import both
from vitrail.drawing.results import interval, percent
from vitrail.tasks import pages
from vitrail.tasks.classification.calibration import Calibration
from vitrail.tasks.classification.figures import GRID_SAMPLES, SamplePrediction, confusion, predictions, reliability
from vitrail.tasks.classification.meter import Accuracy
from vitrail.tasks.pages import Headline

_SHOWN_PAIRS = 10
_SHOWN_MISTAKES = 12
_SHOWN_CLASSES = 20


class ClassPage(pages.Page):
    """Shows a classifier's numbers in the reports."""

    curves = MappingProxyType({"Accuracy": ("accuracy, %", (("train", "accuracy"), ("val", "top1")))})
    files = ("confusion.png", "predictions.png", "reliability.png")

    def __init__(self, meter: Accuracy, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None:
        self.meter, self.names = meter, names
        self.confusion = meter.confusion if meter.confusion.sum() else None
        self.heat = None if self.confusion is None else both(lambda theme: confusion(meter.confusion, names, theme))
        self.samples = [
            SamplePrediction(name, pixels, names[label], names[predicted], score)
            for (name, label, predicted, score), pixels in zip(_chosen(meter), samples, strict=False)
        ]

    @staticmethod
    def chosen(meter: Accuracy) -> list[str]:
        """Chooses some samples evenly from all of them, then the most confident mistakes."""
        return [name for name, *_ in _chosen(meter)]

    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        n, split = result["n"], "" if result.get("split") in (None, "all") else f"{result['split']} "
        values = [(percent(result["top1"]), f"of {n:,} {split}samples right (top-1)", "")]
        if len(self.names) > 5:
            values.append((percent(result["top5"]), "right among the first five (top-5)", ""))
        if not brief:
            if (real := result.get("real")) and real["n"]:
                values.append((percent(real["top1"]), f"of {real['n']:,} right by ImageNet-ReaL labels", ""))
            values.append((percent(result["balanced_accuracy"]), "balanced accuracy: every class counts alike", ""))
            values.append((percent(result["ece"]), "expected calibration error", ""))
        if not n:
            return Headline(values, [])
        low, high = interval(result["top1"], n)
        line = f"95 % interval of the accuracy, from {n:,} samples: {percent(low)} to {percent(high)} (Wilson)."
        return Headline(values, [line])

    def training(self) -> list[str]:
        return [
            confusion_section(self.confusion, self.names, self.heat),
            classes_section(self.confusion, self.names),
            samples_section(self.samples),
            mistakes_section(self.samples),
        ]

    def evaluation(self) -> list[str]:
        calibration = self.meter.calibration()
        return [
            confusion_section(self.confusion, self.names, self.heat),
            classes_section(self.confusion, self.names),
            calibration_section(calibration, both(lambda theme: reliability(calibration, theme))),
            mistakes_section(self.samples),
            samples_section(self.samples),
        ]

    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        found = {} if self.heat is None else {"confusion.png": self.heat[0]}
        if not brief:
            return {**found, "reliability.png": reliability(self.meter.calibration())}
        return {**found, "predictions.png": predictions(self.samples)} if self.samples else found

    def table(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "label", "predicted", "score", "right"))
        for name, label, predicted, score in self.meter.kept:
            named = self.meter.classes[label], self.meter.classes[predicted]
            writer.writerow((name, *named, f"{score:.6f}", int(label == predicted)))
        return stream.getvalue()

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        measured = [record for record in records if "top1" in record and "step" in record]
        if not measured:
            return []
        best = max(measured, key=lambda record: record["top1"])
        return [f"Best on validation: {percent(best['top1'])} at step {best['step']:,}."]


def _chosen(meter: Accuracy) -> list[tuple[str, int, int, float]]:
    """Returns rows of `Accuracy.kept`: some taken evenly from all of them, then the most confident mistakes."""
    fair = meter.kept[:: max(1, len(meter.kept) // GRID_SAMPLES)][:GRID_SAMPLES]
    wrong = sorted((each for each in meter.kept if each[1] != each[2]), key=lambda each: -each[3])[:_SHOWN_MISTAKES]
    return [*fair, *wrong]


def confused_pairs(confusion: np.ndarray, most: int = _SHOWN_PAIRS) -> list[tuple[int, int, int, float]]:
    """Returns the commonest mistakes as (true class, predicted class, count, share of the true class), the commonest
    first.

    Of equal counts the larger share comes first, then the order of the classes.
    """
    totals = confusion.sum(axis=1)
    pairs = [
        (int(true), int(predicted), int(confusion[true, predicted]), float(confusion[true, predicted] / totals[true]))
        for true, predicted in np.argwhere(confusion)
        if true != predicted
    ]
    return sorted(pairs, key=lambda pair: (-pair[2], -pair[3]))[:most]


def confusion_section(confusion: np.ndarray | None, classes: Sequence[str], heat: tuple[bytes, bytes] | None) -> str:
    """Writes the section with the confusion matrix. confusion: int [true, predicted]; heat: its picture as PNG, light
    and dark."""
    if confusion is None or heat is None:
        return ""
    drawn = picture(*heat, "Confusion of the classes")
    rows = [
        (classes[true], classes[predicted], f"{count:,}", percent(share))
        for true, predicted, count, share in confused_pairs(confusion)
    ]
    heads = ("true class", "taken for", "times", "share of the class")
    pairs = f"<h2>Most confused</h2>{table(heads, rows)}" if rows else "<p>No class was taken for another.</p>"
    about = "Each row is a true class, each column what the model predicted; the diagonal is right."
    return section(
        "Confusion",
        f'<div class="heat" style="max-width:{min(760, 420 + 20 * len(classes))}px">{drawn}</div>{pairs}',
        about,
    )


def classes_section(confusion: np.ndarray | None, classes: Sequence[str]) -> str:
    """Writes the section with the accuracy of each class. confusion: int [true, predicted]."""
    if confusion is None:
        return ""
    totals = confusion.sum(axis=1)
    rows = [(name, int(n), confusion[i, i] / n) for i, (name, n) in enumerate(zip(classes, totals, strict=True)) if n]
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
    """Writes the section that shows samples and what was predicted for them."""
    shown = samples[:GRID_SAMPLES]
    about = "✓ right, ✗ wrong: what the model predicted, how sure it was, and what is true where it was wrong."
    return section("Sample predictions", _grid(shown), about)


def mistakes_section(samples: Sequence[SamplePrediction]) -> str:
    """Writes the section that shows the wrong answers with the highest scores."""
    # A sample may be among those taken evenly and again among the mistakes: show it once.
    wrong = list({sample.id: sample for sample in samples if not sample.right}.values())
    wrong.sort(key=lambda sample: -sample.score)
    if samples and not wrong:
        return section("Most confident mistakes", f"<p>None among the {len(samples):,} samples kept.</p>")
    about = "Where the model was surest and wrong. Look here for wrong labels first."
    return section("Most confident mistakes", _grid(wrong[:_SHOWN_MISTAKES], names=True), about)


def _grid(samples: Sequence[SamplePrediction], names: bool = False) -> str:
    """Shows samples as thumbnails; with `names`, also lists them in a table."""
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


def calibration_section(calibration: Calibration, diagram: tuple[bytes, bytes]) -> str:
    """Writes the section on calibration. diagram: the reliability diagram as PNG, light and dark."""
    n = int(calibration.counts.sum())
    scores = float((calibration.counts * calibration.scores).sum() / n)
    right = float((calibration.counts * calibration.accuracy).sum() / n)
    verdict = "surer than" if scores > right + 0.005 else "less sure than" if scores < right - 0.005 else "as sure as"
    line = (
        f"On average the model gave its answers a score of {percent(scores)}, and {percent(right)} of them were right: "
        f"it is {verdict} it should be. The expected calibration error, {percent(calibration.error)}, is the distance "
        f"between the two in each of {len(calibration.counts)} bins, weighted by their samples."
    )
    drawn = picture(*diagram, "Share of right answers by score")
    about = "Whether a score can be read as a probability: bars on the dashed line are what they say."
    return section("Calibration", f'<p>{text(line)}</p><div class="heat" style="max-width:560px">{drawn}</div>', about)


PART = ClassPage
