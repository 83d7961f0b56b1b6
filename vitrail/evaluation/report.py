"""What an evaluation leaves in a folder: evaluation.json, predictions.csv, pictures, and one self-contained page."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.checkpoints.files import Fill, json_text, text_file, write_file
from vitrail.data.sources import Split
from vitrail.data.transforms import EvaluationTransform
from vitrail.drawing.outcomes import (
    GRID_SAMPLES,
    STYLE,
    SamplePrediction,
    classes_section,
    confusion,
    confusion_section,
    interval,
    mistakes_section,
    percent,
    samples_section,
)
from vitrail.drawing.page import cards, page, picture, section, table, text
from vitrail.drawing.plots import both
from vitrail.errors import UserError
from vitrail.evaluation.accuracy import Accuracy, Calibration
from vitrail.evaluation.few_shot import Row
from vitrail.evaluation.figures import reliability, shots_curve

REPORT = "report.html"
EVALUATION = "evaluation.json"
FEW_SHOT = "fewshot.json"
_MISTAKES = 12


def check_folder(folder: Path, own: str) -> None:
    """A folder for a report is new, empty, or holds one of the same kind; a run's own report is not written over."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder}: is a file; give a folder")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / own).is_file():
            raise UserError(f"--out {folder}: holds something else already; give a new folder")
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be used: {error.strerror or error}") from error


def shown_names(classes: Sequence[str], descriptions: Mapping[str, str]) -> tuple[str, ...]:
    """The classes in words where there are any: the first of each description, with the name where two share it."""
    words = [descriptions.get(name, name).split(",")[0].strip() or name for name in classes]
    times = Counter(words)
    return tuple(word if times[word] == 1 else f"{word} ({name})" for word, name in zip(words, classes, strict=True))


def write_evaluation(
    folder: Path,
    *,
    model: str,
    data: str,
    result: dict[str, Any],
    accuracy: Accuracy,
    names: Sequence[str],
    samples: Sequence[SamplePrediction],
    notes: Sequence[str] = (),
) -> Path:
    """Everything is drawn before the first file is written; returns the page. names: what to call the classes."""
    heat = both(lambda theme: confusion(accuracy.confusion, names, theme))
    calibration = accuracy.calibration()
    diagram = both(lambda theme: reliability(calibration, theme))
    body = [
        _headline(result, len(names)),
        section("Notes", "".join(f"<p>{text(note)}</p>" for note in notes)),
        confusion_section(accuracy.confusion, names, heat),
        classes_section({}, accuracy.confusion, names),
        _calibration_section(calibration, diagram),
        mistakes_section(samples),
        samples_section(samples),
    ]
    title = f"{model} on {data}" + ("" if result["split"] == "all" else f", {result['split']}")
    document = {"model": model, "data": data, **result}
    files: dict[str, Fill] = {
        REPORT: text_file(page(title, "".join(body), STYLE)),
        "confusion.png": _bytes(heat[0]),
        "reliability.png": _bytes(diagram[0]),
        "predictions.csv": text_file(_predictions(accuracy)),
        EVALUATION: text_file(json_text(document)),
    }
    return _write_all(folder, files)


def write_few_shot(
    folder: Path, *, model: str, data: str, rows: Sequence[Row], chance: float, notes: Sequence[str]
) -> Path:
    """The same for few-shot results: fewshot.json, the curve, and the page."""
    curve = both(lambda theme: shots_curve(rows, chance, theme))
    listed = [(row.shots, row.method, spread(row), len(row.accuracies), f"{row.n:,}") for row in rows]
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
        REPORT: text_file(page(f"Few-shot: {model} on {data}", "".join(body), STYLE)),
        "fewshot.png": _bytes(curve[0]),
        FEW_SHOT: text_file(json_text([row.to_json() for row in rows])),
    }
    return _write_all(folder, files)


def _method_lines(rows: Sequence[Row]) -> list[str]:
    lines = {
        "ridge": "ridge: the paper's few-shot evaluation, least squares to targets of 1 and -1 in closed form.",
        "knn": "knn: the 20 nearest neighbours by cosine, their votes weighted by exp(similarity / 0.07).",
        "probe": "probe: logistic regression, its regularisation chosen on a fifth of the shots held out.",
    }
    used = [lines[method] for method in dict.fromkeys(row.method for row in rows)]
    drawn = "The images were drawn anew for every seed, the same ones for every method; ± is the standard deviation."
    return ["The model was frozen: each image was turned into its features once.", *used, drawn]


def chosen_samples(
    accuracy: Accuracy, names: Sequence[str], split: Split, transform: EvaluationTransform
) -> list[SamplePrediction]:
    """Some that stand for the whole, evenly taken, then the surest mistakes; read again, for their pixels."""
    place = {name: index for index, name in enumerate(split.ids)}
    fair = accuracy.kept[:: max(1, len(accuracy.kept) // GRID_SAMPLES)][:GRID_SAMPLES]
    wrong = sorted((each for each in accuracy.kept if each[1] != each[2]), key=lambda each: -each[3])[:_MISTAKES]
    return [
        SamplePrediction(name, transform(split.read(place[name])), names[label], names[predicted], score)
        for name, label, predicted, score in [*fair, *wrong]
    ]


def spread(row: Row) -> str:
    """The mean, and the spread where there is more than one seed."""
    return f"{row.mean:.2%}" + (f" ± {row.std:.2%}" if len(row.accuracies) > 1 else "")


def _headline(result: dict[str, Any], num_classes: int) -> str:
    n, skipped = result["n"], result["skipped"]
    split = "" if result["split"] == "all" else f"{result['split']} "
    values = [(percent(result["top1"]), f"of {n:,} {split}samples right (top-1)", "")]
    if num_classes > 5:
        values.append((percent(result["top5"]), "right among the first five (top-5)", ""))
    if (real := result.get("real")) and real["n"]:
        values.append((percent(real["top1"]), f"of {real['n']:,} right by ImageNet-ReaL labels", ""))
    values += [
        (f"{result['loss']:.4g}", "loss", ""),
        (percent(result["ece"]), "expected calibration error", ""),
        (f"{skipped:,}", "skipped: could not be read", "bad" if skipped else ""),
    ]
    low, high = interval(result["top1"], n)
    line = f"95 % interval of the accuracy, from {n:,} samples: {percent(low)} to {percent(high)} (Wilson)."
    return cards(values) + f'<p class="soft" style="margin-top:12px">{text(line)}</p>'


def _calibration_section(calibration: Calibration, diagram: tuple[bytes, bytes]) -> str:
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


def _predictions(accuracy: Accuracy) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("id", "label", "predicted", "score", "right"))
    for name, label, predicted, score in accuracy.kept:
        named = accuracy.classes[label], accuracy.classes[predicted]
        writer.writerow((name, *named, f"{score:.6f}", int(label == predicted)))
    return stream.getvalue()


def _bytes(content: bytes) -> Fill:
    def fill(path: Path) -> None:
        path.write_bytes(content)

    return fill


def _write_all(folder: Path, files: dict[str, Fill]) -> Path:
    for name, fill in files.items():
        write_file(folder / name, fill, overwrite=True)
    return folder / REPORT
