"""Sections on masks in the reports: IoU by class, confusion of pixels, and pictures under their masks."""

import csv
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from vitrail.drawing.page import picture, section, table, text, thumbnail
from vitrail.drawing.plots import both
from vitrail.drawing.results import percent
from vitrail.tasks import pages
from vitrail.tasks.classification.figures import confusion
from vitrail.tasks.pages import Headline
from vitrail.tasks.segmentation.audit import mask_legend, nearest_pixels
from vitrail.tasks.segmentation.colours import paint_mask
from vitrail.tasks.segmentation.meter import MaskMeter, drawn_ids, worst_ids

_SHOWN_PAIRS = 10


class MaskPage(pages.Page):
    """Shows the numbers of a segmentation model, and some of its masks."""

    curves = MappingProxyType(
        {
            "Mean IoU": ("mIoU, %", (("val", "miou"),)),
            "Pixel accuracy": ("pixels right, %", (("train", "pixel_accuracy"), ("val", "pixel_accuracy"))),
        }
    )
    files = ("confusion.png",)

    def __init__(self, meter: MaskMeter, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None:
        self.meter, self.names = meter, names
        self.samples = dict(zip(self.chosen(meter), samples, strict=False))
        counts = meter.confusion[:, :-1]
        self.heat = both(lambda theme: confusion(counts, names, theme)) if counts.sum() else None

    @staticmethod
    def chosen(meter: MaskMeter) -> list[str]:
        """Chooses some pictures by a digest of their ids, then the worst, each once."""
        return list(dict.fromkeys([*drawn_ids(meter), *worst_ids(meter)]))

    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        split = "" if result.get("split") in (None, "all") else f"{result['split']} "
        cards = [
            (percent(result["miou"]), f"mean IoU over {result['n']:,} {split}pictures", ""),
            (percent(result["pixel_accuracy"]), f"of {result['pixels']:,} pixels right", ""),
        ]
        return Headline(
            cards if brief else [*cards, (percent(result["dice"]), "dice, the mean over the classes", "")], []
        )

    def training(self) -> list[str]:
        return [self._classes(), self._samples(), self._worst(), self._confusion()]

    def evaluation(self) -> list[str]:
        return [self._classes(), self._worst(), self._samples(), self._confusion()]

    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        return {} if self.heat is None else {"confusion.png": self.heat[0]}

    def table(self) -> str:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "miou", "pixel_accuracy", "pixels"))
        for each in self.meter.kept:
            accuracy = f"{each.right / each.pixels:.6f}" if each.pixels else ""
            writer.writerow((each.id, f"{each.miou:.6f}" if each.pixels else "", accuracy, each.pixels))
        return stream.getvalue()

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        measured = [record for record in records if "miou" in record and "step" in record]
        if not measured:
            return []
        best = max(measured, key=lambda record: record["miou"])
        return [f"Best on validation: mIoU {percent(best['miou'])} at step {best['step']:,}."]

    def _classes(self) -> str:
        facts = self.meter.result()["per_class"]
        total = max(1, sum(each["pixels"] for each in facts.values()))
        rows = [
            (
                name,
                *("" if each[key] is None else percent(each[key]) for key in ("iou", "dice", "accuracy")),
                percent(each["pixels"] / total),
            )
            for name, each in facts.items()
        ]
        heads = ("class", "IoU", "dice", "its pixels found", "share of all pixels")
        return section("Classes", f"<p>{mask_legend(self.names)}</p>{table(heads, rows)}")

    def _confusion(self) -> str:
        if self.heat is None:
            return ""
        return section(
            "Confusion of pixels",
            f'<div class="heat">{picture(*self.heat, "Confusion of the classes of pixels")}</div>',
        )

    def _samples(self) -> str:
        about = "On the left what is true, on the right what the model answered."
        return section("Sample masks", self._grid(drawn_ids(self.meter)), about)

    def _worst(self) -> str:
        about = "Where IoU is lowest: true on the left, answered on the right. Look here for wrong masks first."
        return section("Worst masks", self._grid(worst_ids(self.meter)), about)

    def _grid(self, ids: Sequence[str]) -> str:
        numbers = {each.id: each.miou for each in self.meter.kept}
        figures = "".join(self._figure(name, numbers[name]) for name in ids if name in self.samples)
        return f'<div class="group large">{figures}</div>' if figures else ""

    def _figure(self, name: str, miou: float) -> str:
        pixels, masks = self.samples[name], self.meter.masks[name]
        both_sides = [paint_mask(nearest_pixels(pixels, mask.shape), mask, len(self.names)) for mask in masks]
        side_by_side = np.concatenate(both_sides, axis=1)
        return f'<figure title="{text(name)}">{thumbnail(side_by_side)}<br>IoU <b>{percent(miou)}</b></figure>'


PART = MaskPage
