"""`vitrail evaluate MODEL --data SRC`: how good a model is, every sample counted once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli import emit_json, note, together
from vitrail.cli.weights import Flags, NamedWeights
from vitrail.launched import is_first

if TYPE_CHECKING:
    from vitrail.assessment import CrossValidationResult, EvaluationResult


def run(arguments: list[str]) -> None:
    together.run("evaluate", command, arguments)


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
    """Measure a model on a data set, over all and by class: top-1, top-5, loss and calibration; of a model of labels
    mAP and F1, of one of numbers MAE, RMSE and R2.

    The model's own preprocessing is used, and classes are matched by name: a data set with classes that the model does
    not know is an error, one with only some of the model's is measured with a note.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, an exported .onnx or .xml file, or a name such as
            Ti/16 (vitrail models --weights).
        data: The data set: digits, mnist5k, a folder of class folders, ...
        split: train, val, test, or all. By default the data set's own test, or its val; where it has neither, all of
            it, or if the model was trained on it the part that training set aside.
        out: A folder for report.html, its pictures, evaluation.json and predictions.csv.
        real: ImageNet-ReaL's real.json: score the ImageNet validation images by these labels too.
        folds: Cross-validate a head in closed form on the data, in so many folds (5 is usual), in place of measuring
            the model's own: each fold is asked of a head that was solved on the features of all others.
        batch_size: Images at a time.
        workers: Threads that read images.
        device: auto, cpu, cuda, mps.
        processes: Share the images among so many processes of this machine; over several machines, start it by
            torchrun.
        json: Print one JSON document.
    """
    from vitrail import assessment
    from vitrail.assessment import EvaluationSettings
    from vitrail.errors import UserError
    from vitrail.evaluation import cross_validation
    from vitrail.inference.choose import Loading
    from vitrail.models.device import choose_device

    settings = EvaluationSettings(batch_size, workers, device, Loading(**weights.options()), note)
    if folds is not None:
        if out is not None or real is not None:
            raise UserError("--folds measures heads of its own: leave --out and --real out, or --folds")
        with together.alike():
            cross_validation.check(folds)
            choose_device(device)
        validated = assessment.cross_validate(model, data, split, folds=folds, settings=settings)
        if is_first():
            _print(validated, _fold_lines(validated), json)
        return
    with together.alike():
        choose_device(device)
    result = assessment.evaluate(model, data, split, out=out, real=real, settings=settings)
    if is_first():
        if result.page is not None:
            note(f"wrote {result.page}")
        _print(result, result.lines(), json)


def _print(result: "EvaluationResult | CrossValidationResult", lines: list[str], json: bool) -> None:
    if json:
        emit_json(result.to_json())
    else:
        print("\n".join(lines))


def _fold_lines(result: "CrossValidationResult") -> list[str]:
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
