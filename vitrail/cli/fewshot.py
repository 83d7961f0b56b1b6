"""`vitrail fewshot MODEL --data SRC`: how good a model's features are with a few labelled images of each class."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.weights import Flags, Weights

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
    """Accuracy of simple classifiers on frozen features, trained on a few images of each class.

    Images to learn from are drawn from the training split; all of the test split (or val) is tested on. The model
    needs no head and no class names.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, or a name such as Ti/16 (vitrail models
            --weights).
        data: The data set: digits, mnist5k, a folder of class folders, ...
        shots: Labelled images of each class; "all" takes the whole training split.
        methods: ridge: the paper's least squares, in closed form; knn: 20 nearest neighbours by cosine; probe: logistic
            regression, its regularisation chosen on a fifth of the shots.
        seeds: How many times the images are drawn; mean and standard deviation are over these.
        split: Test on this split; by default test, or val where there is none.
        out: A folder for report.html, fewshot.png and fewshot.json.
        batch_size: Images at a time.
        workers: Threads that read images.
        device: auto, cpu, cuda, mps.
        json: Print one JSON document.
    """
    from vitrail import assessment
    from vitrail.inference.choose import Loading

    settings = assessment.EvaluationSettings(batch_size, workers, device, Loading(**weights.options()), note)
    result = assessment.few_shot(model, data, shots, methods, seeds, split, out=out, settings=settings)
    if result.page is not None:
        note(f"wrote {result.page}")
    if json:
        emit_json(result.to_json())
    else:
        _show(result)


def _show(result: "FewShotResult") -> None:
    from rich.console import Console
    from rich.table import Table

    from vitrail.evaluation.report import spread

    rows = result.rows
    methods = list(dict.fromkeys(row.method for row in rows))
    print(f"{result.data}: {len(result.classes)} classes, tested on {rows[0].n:,} images of {result.split}")
    table = Table(box=None)
    table.add_column("shots", justify="right")
    for method in methods:
        table.add_column(method, justify="right")
    cells = {(row.shots, row.method): spread(row) for row in rows}
    for shots in dict.fromkeys(row.shots for row in rows):
        table.add_row(str(shots), *(cells[shots, method] for method in methods))
    Console().print(table)
