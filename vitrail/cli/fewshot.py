"""`vitrail fewshot MODEL --data SRC`: how good a model's features are with a few labelled images of each class."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.evaluate import labelled, progress
from vitrail.cli.weights import Flags, Weights

if TYPE_CHECKING:
    from vitrail.data import Source
    from vitrail.evaluation.features import Features


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
    from vitrail.checkpoints.load import load
    from vitrail.data import open_source
    from vitrail.data.loader import EvaluationLoader
    from vitrail.errors import UserError
    from vitrail.evaluation import few_shot, normalisation, report
    from vitrail.evaluation.features import extract
    from vitrail.models.device import choose_device

    shots, methods = tuple(dict.fromkeys(shots)), tuple(dict.fromkeys(methods))
    if not shots or any(isinstance(count, int) and count < 1 for count in shots):
        raise UserError(f"--shots {' '.join(map(str, shots))}: give numbers of images from 1 up, or all")
    if not methods:
        raise UserError("--methods: give at least one of ridge, knn, probe")
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: at least 1 is needed")
    if out is not None:
        report.check_folder(out, report.FEW_SHOT)
    where = choose_device(device)
    loaded = load(model, **weights.options()).to(where)
    source = open_source(data)
    chosen, left_out = zip(*(labelled(source, name, single_class=True) for name in _splits(source, split)), strict=True)
    card = loaded.card
    assert card.preprocessing is not None
    if card.assumed:
        images, judge = normalisation.sample(chosen[0]), normalisation.by_features(loaded, where)
        card.settle(*normalisation.choose(card.preprocessing, images, judge, workers))
    notes = [*card.notes, *source.notes, *(line for lines in left_out for line in lines)]
    features: list[Features] = []
    for part in chosen:
        loader = EvaluationLoader(part, card.preprocessing, batch_size=batch_size, workers=workers)
        found = extract(loaded, progress(loader, len(loader), f"features of {part.name}"), where)
        if not len(found):
            raise UserError(f"{data}, {part.name}: none of its {len(part):,} images can be read")
        if found.skipped:
            notes.append(f"{found.skipped:,} images of {part.name} cannot be read: left out")
        features.append(found)
    train, test = features
    numbered = [count for count in shots if isinstance(count, int)]
    notes += _shortages(few_shot.short_classes(train.targets, max(numbered, default=0), len(source.classes)), source)
    for line in notes:
        note(line)
    rows = few_shot.evaluate(train, test, len(source.classes), shots=shots, methods=methods, seeds=seeds)
    results = list(progress(rows, len(shots) * len(methods), "classifying"))
    if out is not None:
        page = report.write_few_shot(
            out, model=model, data=data, rows=results, chance=1 / len(source.classes), notes=notes
        )
        note(f"wrote {page}")
    if json:
        emit_json([row.to_json() for row in results])
    else:
        _show(f"{data}: {len(source.classes)} classes, tested on {len(test):,} images of {chosen[1].name}", results)


def _splits(source: "Source", test: str | None) -> tuple[str, str]:
    """What to learn from, and what to test on."""
    from vitrail.errors import UserError

    name = test or next((each for each in ("test", "val") if each in source.splits), None)
    if "train" not in source.splits or name is None:
        there = ", ".join(source.splits)
        raise UserError(f"{source.name}: has {there} alone; few-shot learns from train and tests on test or val")
    if name in ("train", "all"):
        raise UserError(f"--split {name}: holds the images that are learned from; test on val or test")
    return "train", name


def _shortages(short: dict[int, int], source: "Source") -> list[str]:
    if not short:
        return []
    fewest = min(short, key=lambda label: short[label])
    few = f"{len(short)} of {len(source.classes)} classes have fewer training images than shots"
    return [f"{few}, {source.classes[fewest]!r} only {short[fewest]}: of these all are used"]


def _show(title: str, rows: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from vitrail.evaluation.report import spread

    methods = list(dict.fromkeys(row.method for row in rows))
    print(title)
    table = Table(box=None)
    table.add_column("shots", justify="right")
    for method in methods:
        table.add_column(method, justify="right")
    cells = {(row.shots, row.method): spread(row) for row in rows}
    for shots in dict.fromkeys(row.shots for row in rows):
        table.add_row(str(shots), *(cells[shots, method] for method in methods))
    Console().print(table)
