"""What a run leaves for a person: curves.png, confusion.png, predictions.png and one self-contained report.html."""

import math
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vitrail.data.page import cards, data_address, page, section, table, text, thumbnail
from vitrail.training import figures
from vitrail.training.figures import DARK, GRID_SAMPLES, LIGHT, SamplePrediction, Theme, series
from vitrail.version import __version__

__all__ = ["SamplePrediction", "confused_pairs", "write_report"]

Drawn = TypeVar("Drawn")

REPORT = "report.html"
_SHOWN_PAIRS = 10
_SHOWN_MISTAKES = 12
_SHOWN_CLASSES = 20
_PACKAGES = ("torch", "numpy", "pillow", "matplotlib")

_STYLE = """
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
) -> Path:
    """Write the pictures and the page into the run folder; returns the page.

    records: the lines of metrics.jsonl. final: what the evaluator gave, with the `split` it was given on.
    confusion: counts [true, predicted] in the order of `classes`. samples: the first 32 are shown as they are;
    the most confident mistakes are looked for among all. Whatever is missing is left out, and said where it matters.
    """
    assert confusion is None or confusion.shape == (len(classes), len(classes))
    if confusion is not None and not confusion.sum():
        confusion = None
    panels = _both(lambda theme: figures.curve_panels(records, theme))
    heat = None if confusion is None else _both(lambda theme: figures.confusion(confusion, classes, theme))
    _write(run / "curves.png", figures.tiled(list(panels[0].values())) if panels[0] else None)
    _write(run / "confusion.png", heat[0] if heat else None)
    _write(run / "predictions.png", figures.predictions(samples) if samples else None)
    body = [
        _headline(records, final, len(classes)),
        _next(run, config),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in notes)),
        _curves(*panels),
        _confusion(confusion, classes, heat),
        _classes(final, confusion, classes),
        _samples(samples),
        _mistakes(samples),
        _configuration(config),
        _versions(),
    ]
    _write(run / REPORT, page(title, "".join(body), _STYLE).encode())
    return run / REPORT


def _write(path: Path, content: bytes | None) -> None:
    """Whole or not at all. What an earlier report left and this one has not would contradict it, and goes."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _headline(records: list[dict[str, Any]], final: dict[str, Any], num_classes: int) -> str:
    n, skipped = final.get("n"), final.get("skipped")
    split = final.get("split", "")
    values: list[tuple[str, str, str]] = []
    if final.get("top1") is not None:
        over = f" of {n:,} {split} samples" if n is not None else f" of the {split} samples" if split else ""
        values.append((_percent(final["top1"]), f"{over} right (top-1)".strip(), ""))
    if final.get("top5") is not None and num_classes > 5:
        values.append((_percent(final["top5"]), "right among the first five (top-5)", ""))
    if final.get("loss") is not None:
        values.append((f"{final['loss']:.4g}", f"{split} loss".strip(), ""))
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
        low, high = _interval(final["top1"], n)
        lines.append(
            f"95 % interval of the accuracy, from {n:,} samples: {_percent(low)} to {_percent(high)} (Wilson)."
        )
    if final.get("top1") is None:
        lines.append("There is no final result: the run was not evaluated to its end.")
    where, validation = series(records, "val", "top1")
    if len(validation):
        best = int(validation.argmax())
        lines.append(f"Best on validation: {_percent(validation[best])} at step {where[best]:,.0f}.")
    return (cards(values) if values else "") + f'<p class="soft" style="margin-top:12px">{text(" ".join(lines))}</p>'


def _percent(share: float) -> str:
    """As many digits as tell 99.9 from 100."""
    return f"{share:.1%}" if share < 0.995 or share == 1 else f"{share:.2%}"


def _interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval, which stays honest near 0 and 1 where accuracies live."""
    z = 1.96
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def _next(run: Path, config: dict[str, Any]) -> str:
    folder = shlex.quote(str(run))
    data = config.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    lines = [f"vitrail evaluate {folder} --data {shlex.quote(str(source))}"] if source else []
    lines.append(f"vitrail finetune {folder} --data FOLDER_OF_PHOTOS")
    return section("Use the model", "".join(f"<pre><code>{text(line)}</code></pre>" for line in lines))


def _both(draw: Callable[[Theme], Drawn]) -> tuple[Drawn, Drawn]:
    """For the light and for the dark page."""
    return draw(LIGHT), draw(DARK)


def _picture(light: bytes, dark: bytes, description: str) -> str:
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{data_address(dark, "png")}">'
        f'<img alt="{text(description)}" src="{data_address(light, "png")}"></picture>'
    )


def _curves(light: dict[str, bytes], dark: dict[str, bytes]) -> str:
    if not light:
        return section("Curves", "<p>Nothing was recorded: metrics.jsonl is empty or holds no measures.</p>")
    panels = "".join(_picture(light[name], dark[name], f"{name} by step") for name in light)
    return section("Curves", f'<div class="panels">{panels}</div>')


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


def _confusion(confusion: np.ndarray | None, classes: Sequence[str], heat: tuple[bytes, bytes] | None) -> str:
    if confusion is None or heat is None:
        return ""
    picture = _picture(*heat, "Confusion of the classes")
    rows = [
        (classes[true], classes[predicted], f"{count:,}", _percent(share))
        for true, predicted, count, share in confused_pairs(confusion)
    ]
    heads = ("true class", "taken for", "times", "share of the class")
    pairs = f"<h2>Most confused</h2>{table(heads, rows)}" if rows else "<p>No class was taken for another.</p>"
    about = "Each row is a true class, each column what the model said; the diagonal is right."
    return section(
        "Confusion",
        f'<div class="heat" style="max-width:{min(760, 420 + 20 * len(classes))}px">{picture}</div>{pairs}',
        about,
    )


def _classes(final: dict[str, Any], confusion: np.ndarray | None, classes: Sequence[str]) -> str:
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
        f'<tr><td>{text(name)}</td><td class="number">{n:,}</td><td class="number">{_percent(share)}</td>'
        f'<td class="share"><div class="bar"><i class="train" style="width:{100 * share:.1f}%"></i></div></td></tr>'
        for name, n, share in rows
    )
    return '<table><tr><th>class</th><th>samples</th><th>accuracy</th><th class="share"></th></tr>' + body + "</table>"


def _sample(sample: SamplePrediction) -> str:
    sign = "✓" if sample.right else "✗"
    instead = "" if sample.right else f"<br>true: {text(sample.label)}"
    return (
        f'<figure class="{"right" if sample.right else "wrong"}" title="{text(sample.id)}">'
        f"{thumbnail(sample.pixels)}<br><b>{sign} {text(sample.predicted)}</b> {_percent(sample.score)}{instead}"
        "</figure>"
    )


def _samples(samples: Sequence[SamplePrediction]) -> str:
    shown = samples[:GRID_SAMPLES]
    about = "✓ right, ✗ wrong: what the model said, how sure it was, and what is true where it was wrong."
    return section("Sample predictions", _grid(shown), about)


def _mistakes(samples: Sequence[SamplePrediction]) -> str:
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
        f'<td class="number">{_percent(each.score)}</td></tr>'
        for each in samples
    )
    files = (
        "<details><summary>Their names</summary><table><tr><th>sample</th><th>true</th><th>predicted</th><th>score</th>"
        f"</tr>{listed}</table></details>"
    )
    return f'<div class="samples">{"".join(map(_sample, samples))}</div>{files if names else ""}'


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
