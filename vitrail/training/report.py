"""What a run leaves for a person: pictures, and one self-contained report.html.

Always curves.png; of a model with classes confusion.png and predictions.png; of one that learned without labels
reconstruction.png or attention.png.
"""

import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.drawing import outcomes
from vitrail.drawing.outcomes import (
    STYLE,
    SamplePrediction,
    classes_section,
    confusion_section,
    interval,
    mistakes_section,
    percent,
    predictions,
    samples_section,
)
from vitrail.drawing.page import cards, page, picture, section, table, text, write
from vitrail.drawing.plots import both, tiled
from vitrail.training.figures import curve_panels, illustration, series
from vitrail.training.objectives.base import Illustration
from vitrail.version import __version__

REPORT = "report.html"
_PACKAGES = ("torch", "numpy", "pillow", "matplotlib")


def write_report(
    run: Path,
    *,
    title: str,
    config: dict[str, Any],
    records: list[dict[str, Any]],
    final: dict[str, Any],
    confusion: np.ndarray | None,
    classes: Sequence[str],
    samples: Sequence[SamplePrediction],
    notes: Sequence[str],
    shown: Illustration | None = None,
) -> Path:
    """Write the pictures and the page into the run folder; returns the page.

    records: the lines of metrics.jsonl. final: what the evaluator gave, with the `split` it was given on.
    confusion: counts [true, predicted] in the order of `classes`. samples: the first 32 are shown as they are;
    the most confident mistakes are looked for among all. shown: what an objective without labels has learned.
    Whatever is missing is left out, and said where it matters.
    """
    assert confusion is None or confusion.shape == (len(classes), len(classes))
    if confusion is not None and not confusion.sum():
        confusion = None
    panels = both(lambda theme: curve_panels(records, theme))
    heat = None if confusion is None else both(lambda theme: outcomes.confusion(confusion, classes, theme))
    write(run / "curves.png", tiled(list(panels[0].values())) if panels[0] else None)
    write(run / "confusion.png", heat[0] if heat else None)
    write(run / "predictions.png", predictions(samples) if samples else None)
    drawn = None if shown is None else both(lambda theme: illustration(shown, theme))
    for name in ("reconstruction", "attention"):
        write(run / f"{name}.png", drawn[0] if drawn and shown and shown.name == name else None)
    body = [
        _headline(records, final, len(classes)),
        _next(run, config, headless=final.get("top1") is None and final.get("loss") is not None),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in notes)),
        _illustration(shown, drawn),
        _curves(*panels),
        confusion_section(confusion, classes, heat),
        classes_section(final, confusion, classes),
        samples_section(samples),
        mistakes_section(samples),
        _configuration(config),
        _versions(),
    ]
    write(run / REPORT, page(title, "".join(body), STYLE).encode())
    return run / REPORT


def _headline(records: list[dict[str, Any]], final: dict[str, Any], num_classes: int) -> str:
    n, skipped = final.get("n"), final.get("skipped")
    split = final.get("split", "")
    values: list[tuple[str, str, str]] = []
    if final.get("top1") is not None:
        over = f" of {n:,} {split} samples" if n is not None else f" of the {split} samples" if split else ""
        values.append((percent(final["top1"]), f"{over} right (top-1)".strip(), ""))
    if final.get("top5") is not None and num_classes > 5:
        values.append((percent(final["top5"]), "right among the first five (top-5)", ""))
    if final.get("loss") is not None:
        values.append((f"{final['loss']:.4g}", f"{split} loss".strip(), ""))
    if final.get("knn_top1") is not None:
        values.append((percent(final["knn_top1"]), f"of {n:,} {split} samples right by their 20 nearest", ""))
    if skipped is not None:
        values.append((f"{skipped:,}", "skipped: could not be read", "bad" if skipped else ""))
    steps = [record["step"] for record in records if isinstance(record.get("step"), int)]
    if steps:
        values.append((f"{max(steps):,}", "steps", ""))
    speeds = series(records, "train", "images_per_second")[1]
    if len(speeds):
        values.append((f"{np.median(speeds):,.0f}", "images a second in training (median)", ""))
    lines = []
    if final.get("top1") is not None and n:
        low, high = interval(final["top1"], n)
        lines.append(f"95 % interval of the accuracy, from {n:,} samples: {percent(low)} to {percent(high)} (Wilson).")
    if final.get("top1") is None and final.get("loss") is None:
        lines.append("There is no final result: the run was not evaluated to its end.")
    if final.get("knn_top1") is not None:
        lines.append("No label was used in training; neighbours are looked up among the training samples by cosine.")
    lines += _best(records)
    return (cards(values) if values else "") + f'<p class="soft" style="margin-top:12px">{text(" ".join(lines))}</p>'


def _best(records: list[dict[str, Any]]) -> Iterator[str]:
    """By each measure: of accuracies the highest, of a loss without any the lowest."""
    for name, what in (("top1", ""), ("knn_top1", " by neighbours")):
        where, values = series(records, "val", name)
        if len(values):
            best = int(values.argmax())
            yield f"Best on validation{what}: {percent(values[best])} at step {where[best]:,.0f}."
    where, values = series(records, "val", "loss")
    if len(values) and not len(series(records, "val", "top1")[0]):
        best = int(values.argmin())
        yield f"Lowest validation loss: {values[best]:.4g} at step {where[best]:,.0f}."


def _illustration(shown: Illustration | None, drawn: tuple[bytes, bytes] | None) -> str:
    if shown is None or drawn is None:
        return ""
    inner = f'<div class="heat" style="max-width:900px">{picture(*drawn, shown.title)}</div>'
    return section(shown.title, inner, shown.about)


def _next(run: Path, config: dict[str, Any], headless: bool) -> str:
    folder = shlex.quote(str(run))
    data = config.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    verb = "finetune" if headless else "evaluate"  # without classes there is nothing to evaluate yet
    lines = [f"vitrail {verb} {folder} --data {shlex.quote(str(source))}"] if source else []
    lines.append(f"vitrail finetune {folder} --data FOLDER_OF_PHOTOS")
    return section("Use the model", "".join(f"<pre><code>{text(line)}</code></pre>" for line in lines))


def _curves(light: dict[str, bytes], dark: dict[str, bytes]) -> str:
    if not light:
        return section("Curves", "<p>Nothing was recorded: metrics.jsonl is empty or holds no measures.</p>")
    panels = "".join(picture(light[name], dark[name], f"{name} by step") for name in light)
    return section("Curves", f'<div class="panels">{panels}</div>')


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """(dotted name, value), as the flags of the command line are spelled."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _configuration(config: dict[str, Any]) -> str:
    if not config:
        return ""
    rows = list(_flat(config))
    inner = table(("field", "value"), rows)
    return section("Configuration", f"<details><summary>All {len(rows):,} fields</summary>{inner}</details>")


def _versions() -> str:
    rows = [("vitrail", __version__), ("Python", platform.python_version())]
    for name in _PACKAGES:
        # Read from what is installed: a report has no need to import torch.
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            continue
    rows.append(("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"))
    return section("Versions", table((), rows))
