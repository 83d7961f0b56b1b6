"""Writes what a run leaves for its user: pictures, and a self-contained report.html.

There is always curves.png. A model with classes has confusion.png and predictions.png; one that learned without labels
has reconstruction.png or attention.png.
"""

import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.drawing.page import cards, page, picture, section, table, text
from vitrail.drawing.plots import both, tiled
from vitrail.drawing.results import STYLE, percent
from vitrail.io.files import write_bytes
from vitrail.tasks.pages import Headline, Page
from vitrail.training.figures import curve_panels, illustration, series
from vitrail.training.objectives.base import Illustration
from vitrail.version import __version__

_REPORT = "report.html"
_ILLUSTRATIONS = ("reconstruction.png", "attention.png")
"""Pictures that objectives without labels may draw."""
_PACKAGES = ("torch", "numpy", "pillow", "matplotlib")
"""The packages whose versions a report lists."""


@dataclass(frozen=True)
class RunReport:
    """The content of a run's report."""

    title: str
    config: dict[str, Any]
    """The configuration, as nested dicts."""
    records: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    final: dict[str, Any]
    """What was measured at the end, and the `split` it was measured on; empty if the run did not end."""
    page: Page | None = None
    """The task's sections of the report; None for a run without labels."""
    notes: Sequence[str] = ()
    """Notes to the user, one paragraph each."""
    shown: Illustration | None = None
    """What an objective without labels has learned, in pictures."""


def write_report(run: Path, told: RunReport) -> Path:
    """Writes the pictures and the page into the run folder, and returns the page. What is missing is left out."""
    own = {} if told.page is None else {"own": told.page.curves}
    panels = both(lambda theme: curve_panels(told.records, theme, **own))
    write_bytes(run / "curves.png", tiled(list(panels[0].values())) if panels[0] else None)
    pictures = {} if told.page is None else told.page.pictures(brief=True)
    shown = told.shown
    drawn = None if shown is None else both(lambda theme: illustration(shown, theme))
    if drawn and shown:
        pictures[f"{shown.name}.png"] = drawn[0]
    files = () if told.page is None else told.page.files
    for name in {*files, *_ILLUSTRATIONS, *pictures}:
        write_bytes(run / name, pictures.get(name))
    body = [
        _headline(told),
        _next(run, told),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in told.notes)),
        _illustration(shown, drawn),
        _curves(*panels),
        *([] if told.page is None else told.page.training()),
        _configuration(told.config),
        _versions(),
    ]
    write_bytes(run / _REPORT, page(told.title, "".join(body), STYLE).encode())
    return run / _REPORT


def _headline(told: RunReport) -> str:
    """Writes the first lines: numbers in boxes and sentences below them."""
    records, final = told.records, told.final
    n, skipped, split = final.get("n"), final.get("skipped"), final.get("split", "")
    shown = told.page.headline(final, brief=True) if told.page is not None and final else Headline([], [])
    values, lines = [*shown.cards], [*shown.lines]
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
    if not final:
        lines.append("There is no final result: the run was not evaluated to its end.")
    if final.get("knn_top1") is not None:
        lines.append("No label was used in training; neighbours are looked up among the training samples by cosine.")
    lines += _best(told)
    return (cards(values) if values else "") + f'<p class="soft" style="margin-top:12px">{text(" ".join(lines))}</p>'


def _best(told: RunReport) -> Iterator[str]:
    """Writes which validation was the best: by the task's own measure, or without labels by neighbours and by the
    lowest loss."""
    validations = [record for record in told.records if record.get("kind") == "val"]
    if told.page is not None:
        yield from told.page.best(validations)
        return
    where, values = series(told.records, "val", "knn_top1")
    if len(values):
        best = int(values.argmax())
        yield f"Best on validation by neighbours: {percent(values[best])} at step {where[best]:,.0f}."
    where, values = series(told.records, "val", "loss")
    if len(values):
        best = int(values.argmin())
        yield f"Lowest validation loss: {values[best]:.4g} at step {where[best]:,.0f}."


def _illustration(shown: Illustration | None, drawn: tuple[bytes, bytes] | None) -> str:
    """Writes the section with the objective's pictures."""
    if shown is None or drawn is None:
        return ""
    inner = f'<div class="heat" style="max-width:900px">{picture(*drawn, shown.title)}</div>'
    return section(shown.title, inner, shown.about)


def _next(run: Path, told: RunReport) -> str:
    """Writes the section with commands that use the model."""
    folder = shlex.quote(str(run))
    data = told.config.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    headless = told.page is None and bool(told.final)
    if headless and told.final.get("knn_top1") is None:
        source = None  # data without labels cannot be fine-tuned on
    verb = "finetune" if headless else "evaluate"  # a model without a head cannot be evaluated
    lines = [f"vitrail {verb} {folder} --data {shlex.quote(str(source))}"] if source else []
    lines.append(f"vitrail finetune {folder} --data FOLDER_OF_PHOTOS")
    return section("Use the model", "".join(f"<pre><code>{text(line)}</code></pre>" for line in lines))


def _curves(light: dict[str, bytes], dark: dict[str, bytes]) -> str:
    """Writes the section with the curves. light, dark: PNG by title."""
    if not light:
        return section("Curves", "<p>Nothing was recorded: metrics.jsonl is empty or holds no measures.</p>")
    panels = "".join(picture(light[name], dark[name], f"{name} by step") for name in light)
    return section("Curves", f'<div class="panels">{panels}</div>')


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted name, value) of nested dicts, as the flags of the command line are written."""
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
        # Read from the installed packages' metadata, so that torch need not be imported.
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            continue
    rows.append(("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"))
    return section("Versions", table((), rows))
