"""`vitrail fewshot MODEL --data SRC`: measures how good a model's features are with a few labelled images of each
class."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, Weights

if TYPE_CHECKING:
    from vitrail.assessment import FewShotResult


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    shots: tuple[int | Literal["all"], ...] = (1, 5, 10, 25),
    methods: tuple[Literal["ridge", "knn", "probe"], ...] = ("ridge", "knn"),
    seeds: int = 3,
    split: str | None = None,
    out: Path | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    weights: Annotated[Weights, Flags] = Weights(),
    json: bool = False,
) -> None:
    """Measures the accuracy of simple classifiers on the model's features, trained on a few images of each class.

    The images to learn from are drawn from the training split; accuracy is measured on all of the test split (or val).
    The model needs no head and no class names.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, or a name such as Ti/16 (vitrail models
            --weights lists them).
        data: The data set: digits, mnist5k, a folder of class folders, or another source that
            vitrail data check --help lists.
        shots: The numbers of labelled images of each class to learn from; "all" takes the whole training split.
        methods: The classifiers. ridge: the paper's least squares, in closed form; knn: 20 nearest neighbours by
            cosine; probe: logistic regression, with its regularisation chosen on a fifth of the shots.
        seeds: The number of times that images are drawn; mean and standard deviation are over these draws.
        split: The split to measure on; by default test, or val if there is no test split.
        out: A folder for report.html, fewshot.png and fewshot.json.
        batch_size: The number of images computed at a time.
        workers: The number of threads that read images.
        device: Where torch computes: auto, cpu, cuda or mps.
        json: Print one JSON document.
    """
    from vitrail import assessment
    from vitrail.inference.engine_selection import Loading

    settings = assessment.EvaluationSettings(batch_size, workers, device, Loading(**weights.options()), note)
    result = assessment.few_shot(model, data, shots, methods, seeds, split, out=out, settings=settings)
    if result.page is not None:
        note(f"wrote {result.page}")
    if json:
        emit_json(result.to_json())
    else:
        _show(result)


def _show(result: "FewShotResult") -> None:
    """Prints a table: a line for each number of shots, a column for each method."""
    from rich.console import Console
    from rich.table import Table

    from vitrail.evaluation.report import mean_and_spread

    rows = result.rows
    methods = list(dict.fromkeys(row.method for row in rows))
    print(f"{result.data}: {len(result.classes)} classes, tested on {rows[0].n:,} images of {result.split}")
    table = Table(box=None)
    table.add_column("shots", justify="right")
    for method in methods:
        table.add_column(method, justify="right")
    cells = {(row.shots, row.method): mean_and_spread(row) for row in rows}
    for shots in dict.fromkeys(row.shots for row in rows):
        table.add_row(str(shots), *(cells[shots, method] for method in methods))
    Console().print(table)
