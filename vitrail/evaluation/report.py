"""Writes what an evaluation leaves in a folder: evaluation.json, predictions.csv, pictures, and a self-contained
page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import to_bytes
from vitrail.data.sources import Split
from vitrail.data.transforms import EvaluationTransform
from vitrail.drawing.page import cards, page, picture, section, table, text
from vitrail.drawing.plots import both
from vitrail.drawing.results import STYLE
from vitrail.errors import UserError
from vitrail.evaluation.few_shot import FewShotRow
from vitrail.evaluation.figures import shots_curve
from vitrail.io.files import Fill, bytes_file, json_text, text_file, write_file
from vitrail.tasks.pages import Headline, Page

_REPORT = "report.html"
"""The page."""
EVALUATION = "evaluation.json"
"""The result of an evaluation, as JSON."""
FEW_SHOT = "fewshot.json"
"""The result of a few-shot evaluation, as JSON."""


def check_report_folder(folder: Path, own: str) -> None:
    """Raises a UserError unless a folder is new, empty, or holds a report of the same kind, which has the file
    `own`."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder}: is a file; give a folder")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / own).is_file():
            raise UserError(f"--out {folder}: holds something else already; give a new folder")
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be used: {error.strerror or error}") from error


def shown_names(classes: Sequence[str], descriptions: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what to call the classes: the first part of each description, with the name added if two share it."""
    words = [descriptions.get(name, name).split(",")[0].strip() or name for name in classes]
    times = Counter(words)
    return tuple(word if times[word] == 1 else f"{word} ({name})" for word, name in zip(words, classes, strict=True))


def write_evaluation(
    folder: Path, *, model: str, data: str, result: dict[str, Any], shown: Page, notes: Sequence[str] = ()
) -> Path:
    """Writes the report on an evaluation. Everything is drawn before the first file is written.

    Args:
        folder: where to write.
        model: what to call the model.
        data: what to call the data.
        result: the meter's result, with its `split`.
        shown: the task's sections.
        notes: notes to the user, one paragraph each.

    Returns:
        The page.
    """
    body = [
        _headline(shown.headline(result), result),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in notes)),
        *shown.evaluation(),
    ]
    title = f"{model} on {data}" + ("" if result["split"] == "all" else f", {result['split']}")
    document = {"model": model, "data": data, **result}
    files: dict[str, Fill] = {
        _REPORT: text_file(page(title, "".join(body), STYLE)),
        **{name: bytes_file(content) for name, content in shown.pictures().items()},
        "predictions.csv": text_file(shown.table()),
        EVALUATION: text_file(json_text(document)),
    }
    return _write_all(folder, files)


def write_few_shot(
    folder: Path, *, model: str, data: str, rows: Sequence[FewShotRow], chance: float, notes: Sequence[str]
) -> Path:
    """Writes the report on a few-shot evaluation: fewshot.json, the curve, and the page.

    Args:
        folder: where to write.
        model: what to call the model.
        data: what to call the data.
        rows: the results.
        chance: the accuracy of guessing.
        notes: notes to the user, one paragraph each.

    Returns:
        The page.
    """
    curve = both(lambda theme: shots_curve(rows, chance, theme))
    listed = [(row.shots, row.method, mean_and_spread(row), len(row.accuracies), f"{row.n:,}") for row in rows]
    body = [
        section(
            "Accuracy against labelled images",
            f'<div class="heat" style="max-width:760px">{picture(*curve, "Accuracy against shots")}</div>',
        ),
        section("Results", table(("shots a class", "method", "test accuracy", "seeds", "test samples"), listed)),
        section("How it was measured", "".join(f"<p>{text(line)}</p>" for line in _method_lines(rows))),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in notes)),
    ]
    files: dict[str, Fill] = {
        _REPORT: text_file(page(f"Few-shot: {model} on {data}", "".join(body), STYLE)),
        "fewshot.png": bytes_file(curve[0]),
        FEW_SHOT: text_file(json_text([row.to_json() for row in rows])),
    }
    return _write_all(folder, files)


def _method_lines(rows: Sequence[FewShotRow]) -> list[str]:
    """Writes how the methods work, for those that were used."""
    lines = {
        "ridge": "ridge: the paper's few-shot evaluation, least squares to targets of 1 and -1 in closed form.",
        "knn": "knn: the 20 nearest neighbours by cosine, their votes weighted by exp(similarity / 0.07).",
        "probe": "probe: logistic regression, its regularisation chosen on a fifth of the shots held out.",
    }
    used = [lines[method] for method in dict.fromkeys(row.method for row in rows)]
    drawn = "The images were drawn anew for every seed, the same ones for every method; ± is the standard deviation."
    return ["The model was frozen: each image was turned into its features once.", *used, drawn]


def read_samples(ids: Sequence[str], split: Split, transform: EvaluationTransform) -> list[np.ndarray]:
    """Reads samples again for their pixels, as the model sees them: uint8 [rows, columns, channels] each."""
    place = {name: index for index, name in enumerate(split.ids)}
    return [to_bytes(transform(split.read(place[name]))) for name in ids]


def mean_and_spread(row: FewShotRow) -> str:
    """Writes the mean accuracy, and the standard deviation if there are several seeds."""
    return f"{row.mean:.2%}" + (f" ± {row.std:.2%}" if len(row.accuracies) > 1 else "")


def _headline(shown: Headline, result: dict[str, Any]) -> str:
    skipped = result["skipped"]
    values = [
        *shown.cards,
        (f"{result['loss']:.4g}", "loss", ""),
        (f"{skipped:,}", "skipped: could not be read", "bad" if skipped else ""),
    ]
    return cards(values) + f'<p class="soft" style="margin-top:12px">{text(" ".join(shown.lines))}</p>'


def _write_all(folder: Path, files: dict[str, Fill]) -> Path:
    for name, fill in files.items():
        write_file(folder / name, fill, overwrite=True)
    return folder / _REPORT
