"""`vitrail evaluate MODEL --data SRC`: measures how good a model is; every sample counts once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, NamedWeights
from vitrail.cli.processes import report_once, run_command
from vitrail.environment import is_first

if TYPE_CHECKING:
    from vitrail.assessment import CrossValidationResult, EvaluationResult


def run(arguments: list[str]) -> None:
    """Runs the command with these arguments, in several processes if they ask for it."""
    run_command("evaluate", command, arguments)


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    split: str | None = None,
    out: Path | None = None,
    real: Path | None = None,
    folds: int | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    processes: int | None = None,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Measures a model on a data set, in total and by class: top-1, top-5, loss and calibration for classes; mAP and F1
    for several labels; MAE, RMSE and R2 for numbers.

    The model's own preprocessing is used, and classes are matched by name: a data set with classes that the model does
    not know is an error; one with only some of the model's classes is measured with a note.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, a name such as Ti/16 (vitrail models
            --weights lists them), or an exported .onnx or .xml file.
        data: The data set: digits, mnist5k, a folder of class folders, or another source that
            vitrail data check --help lists.
        split: The split to measure on: train, val, test, or all. By default the data set's own test split, or its val
            split; if it has neither, all of it, or, if the model was trained on it, the part that training set aside.
        out: A folder for report.html, its pictures, evaluation.json and predictions.csv.
        real: The file real.json of ImageNet-ReaL; the ImageNet validation images are scored by these labels too.
        folds: Cross-validate instead of measuring the model's own head, in so many folds (5 is usual): for each fold, a
            head is solved in closed form on the features of all other folds.
        batch_size: The number of images computed at a time.
        workers: The number of threads that read images.
        device: Where torch computes: auto, cpu, cuda or mps.
        processes: The number of processes on this machine that share the images; for several machines start the command
            by torchrun.
        json: Print one JSON document.
    """
    from vitrail import assessment
    from vitrail.assessment import EvaluationSettings
    from vitrail.errors import UserError
    from vitrail.evaluation import cross_validation
    from vitrail.inference.engine_selection import Loading
    from vitrail.models.device import choose_device

    settings = EvaluationSettings(batch_size, workers, device, Loading(**weights.options()), note)
    if folds is not None:
        if out is not None or real is not None:
            raise UserError("--folds measures heads of its own: leave --out and --real out, or --folds")
        with report_once():
            cross_validation.check_folds(folds)
            choose_device(device)
        validated = assessment.cross_validate(model, data, split, folds=folds, settings=settings)
        if is_first():
            _print(validated, _fold_lines(validated), json)
        return
    with report_once():
        choose_device(device)
    result = assessment.evaluate(model, data, split, out=out, real=real, settings=settings)
    if is_first():
        if result.page is not None:
            note(f"wrote {result.page}")
        _print(result, result.lines(), json)


def _print(result: "EvaluationResult | CrossValidationResult", lines: list[str], json: bool) -> None:
    """Prints the result as JSON, or as lines."""
    if json:
        emit_json(result.to_json())
    else:
        print("\n".join(lines))


def _fold_lines(result: "CrossValidationResult") -> list[str]:
    """Returns the lines about a cross-validation."""
    from vitrail.evaluation.cross_validation import METHOD

    measured, document = result.measured, result.to_json()
    accuracy = f"accuracy {measured.mean:.2%} ± {measured.std:.2%}, {METHOD} on the model's features"
    lines = [
        f"{result.data}, {result.split}: {document['n']:,} images, {measured.skipped:,} skipped",
        f"{document['folds']} folds: {accuracy}",
        f"balanced accuracy {document['balanced_accuracy']:.2%}",
    ]
    for number, fold in enumerate(measured.folds, start=1):
        lines.append(f"  fold {number}: {fold.top1:.2%} of {fold.n:,}, learned from {fold.learned_from:,}")
    return lines
