"""A regression model's sections of the reports: true against predicted, errors, samples and the worst of them."""

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from vitrail.drawing.page import picture, section, table, text, thumbnail
from vitrail.drawing.plots import both
from vitrail.tasks import pages
from vitrail.tasks.pages import Headline
from vitrail.tasks.regression.figures import PANELS, residuals, scatter
from vitrail.tasks.regression.meter import Errors, Kept

_SHOWN_SAMPLES, _SHOWN_WORST = 24, 12
_QUANTILES = (0.05, 0.5, 0.95)
_FIGURES = 3
"""Significant figures of the numbers below samples, counted from the first figure of their standard deviation."""


class NumberPage(pages.Page):
    """Shows a regression model's numbers in the reports."""

    curves = MappingProxyType(
        {
            "R2": ("R2", (("val", "r2"),)),
            "Mean absolute error": ("mean absolute error", (("train", "mae"), ("val", "mae"))),
        }
    )
    files = ("scatter.png", "residuals.png")

    def __init__(self, meter: Errors, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None:
        self.meter = meter
        self.names = [names[column] for column in meter.columns.tolist()]
        """What to call the numbers that were measured, in order."""
        true, predicted = meter.true(), meter.predicted()
        self.drawn = both(lambda theme: scatter(true, predicted, self.names, theme)) if meter.n else None
        fair = _fair(meter)
        shown = list(zip([*fair, *worst(meter)], samples, strict=False))
        self.fair, self.worst = shown[: len(fair)], shown[len(fair) :]

    @staticmethod
    def chosen(meter: Errors) -> list[str]:
        """Chooses some samples evenly from all of them, then those with the highest loss."""
        return [each.id for each in (*_fair(meter), *worst(meter))]

    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        n, split = result["n"], "" if result.get("split") in (None, "all") else f"{result['split']} "
        mean = "" if len(self.names) == 1 else ", the mean over the numbers"
        explained = "unknown" if result["r2"] is None else f"{result['r2']:.4f}"
        values = [
            (explained, f"R2 over {n:,} {split}samples{mean}", ""),
            (f"{result['mae']:.4g}", f"mean absolute error{mean}", ""),
            (f"{result['rmse']:.4g}", f"root mean squared error{mean}", ""),
        ]
        return Headline(values, ["Errors are in the units of the data; the loss is of standardised numbers."])

    def training(self) -> list[str]:
        return self.evaluation()

    def evaluation(self) -> list[str]:
        return [self._scatter(), self._residuals(), self._worst(), self._samples()]

    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        if self.drawn is None:
            return {}
        found = {"scatter.png": self.drawn[0]}
        return found if brief else {**found, "residuals.png": self._histograms()[0]}

    def table(self) -> str:
        """Writes the columns id, true and predicted of each number, and loss."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        pairs = [f"{name} {what}" for name in self.meter.names for what in ("true", "predicted")]
        writer.writerow(("id", *pairs, "loss"))
        for each in self.meter.kept:
            numbers = [value for pair in zip(each.true, each.predicted, strict=True) for value in pair]
            writer.writerow((each.id, *(f"{value:.10g}" for value in numbers), f"{each.loss:.6g}"))
        return stream.getvalue()

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        measured = [record for record in records if "mae" in record and "step" in record]
        if not measured:
            return []
        best = max(measured, key=Errors.score)
        return [f"Best on validation, by the loss: {Errors.words(best)}, at step {best['step']:,}."]

    def _histograms(self) -> tuple[bytes, bytes]:
        true, predicted = self.meter.true(), self.meter.predicted()
        return both(lambda theme: residuals(true, predicted, self.names, theme))

    def _scatter(self) -> str:
        if self.drawn is None:
            return ""
        rows = [
            (name, f"{facts['mae']:.4g}", f"{facts['rmse']:.4g}", "" if facts["r2"] is None else f"{facts['r2']:.4f}")
            for name, facts in zip(self.names, self.meter.result()["per_class"].values(), strict=True)
        ]
        listed = table(("number", "mean absolute error", "root mean squared error", "R2"), rows)
        about = "Each point is a sample; on the dashed line the answer is right."
        return section(
            "True against predicted", _framed(self.drawn, self.names, "True against predicted") + listed, about
        )

    def _residuals(self) -> str:
        if self.drawn is None:
            return ""
        errors = self.meter.predicted() - self.meter.true()
        quantiles = np.quantile(errors, _QUANTILES, axis=0).T
        rows = [
            (name, *(f"{value:.4g}" for value in (own.mean(), *cut)))
            for name, own, cut in zip(self.names, errors.T, quantiles, strict=True)
        ]
        heads = ("number", "mean", *(f"{share:.0%} are below" for share in _QUANTILES))
        about = "Predicted less true: a mean far from zero is a model that says too much, or too little."
        drawn = _framed(self._histograms(), self.names, "How far off answers are")
        return section("Residuals", drawn + table(heads, rows), about)

    def _samples(self) -> str:
        return section("Sample predictions", self._grid(self.fair), "What the model predicted, and what is true.")

    def _worst(self) -> str:
        about = "Where the loss is highest. Look here for wrong targets first."
        return section("Furthest off", self._grid(self.worst), about)

    def _grid(self, shown: Sequence[tuple[Kept, np.ndarray]]) -> str:
        figures = "".join(self._sample(*each) for each in shown)
        return f'<div class="samples">{figures}</div>' if figures else ""

    def _sample(self, kept: Kept, pixels: np.ndarray) -> str:
        decimals = self.meter.scale.decimals(_FIGURES)
        numbers = "".join(
            f"<br>{'' if len(self.names) == 1 else f'{text(name)}: '}<b>{answer:.{places}f}</b> true: {true:.{places}f}"
            for name, answer, true, places in zip(self.names, kept.predicted, kept.true, decimals, strict=True)
        )
        return f'<figure title="{text(kept.id)}">{thumbnail(pixels)}{numbers}</figure>'


def worst(meter: Errors) -> list[Kept]:
    """Returns the samples with the highest loss, the worst first; of equal ones the earlier first."""
    return sorted(meter.kept, key=lambda each: -each.loss)[:_SHOWN_WORST]


def _fair(meter: Errors) -> list[Kept]:
    """Returns some samples taken evenly from all of them."""
    return meter.kept[:: max(1, len(meter.kept) // _SHOWN_SAMPLES)][:_SHOWN_SAMPLES]


def _framed(drawn: tuple[bytes, bytes], names: Sequence[str], what: str) -> str:
    wide = 360 * min(3, len(names))
    more = f'<p class="soft">The first {PANELS} of {len(names)} numbers.</p>' if len(names) > PANELS else ""
    return f'<div class="heat" style="max-width:{wide}px">{picture(*drawn, what)}</div>{more}'


PART = NumberPage
