"""`vitrail evaluate MODEL --data SRC`: how good a model is, every sample counted once."""

import sys
from typing import Annotated, Any

import tyro

from vitrail.cli import emit_json, note


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    split: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    subset: bool = False,
    json: bool = False,
) -> None:
    """Top-1, top-5 and loss of a model on a data set, over all and by class.

    The model's own preprocessing is used, and classes are matched by name: a data set with other classes is an error.

    Args:
        model: A bundle, a run folder, a weights file, or hf:owner/name.
        data: The data set: digits, mnist5k, a folder of class folders, ...
        split: train, val, test, or all; by default test, or what there is.
        batch_size: Images at a time.
        workers: Threads that read images.
        device: auto, cpu, cuda, mps.
        subset: Accept a data set that has only some of the model's classes.
        json: Print one JSON document.
    """
    from vitrail.checkpoints.load import load
    from vitrail.data import match_classes, open_source
    from vitrail.data.loader import EvaluationLoader
    from vitrail.errors import UserError
    from vitrail.evaluation.accuracy import Accuracy, measure
    from vitrail.train import choose_device

    where = choose_device(device)
    loaded = load(model).to(where)
    for line in loaded.card.notes:
        note(line)
    if not loaded.card.label_names:
        raise UserError(f"{model}: has no class names to match labels by; add them with vitrail convert --labels FILE")
    source = open_source(data)
    name = split or next((each for each in ("test", "val") if each in source.splits), "all")
    mapping = match_classes(loaded.card.label_names, source.classes, subset=subset)
    assert loaded.card.preprocessing is not None
    loader = EvaluationLoader(source.split(name), loaded.card.preprocessing, batch_size=batch_size, workers=workers)
    result = measure(loaded, _progress(loader), Accuracy(loaded.card.label_names, mapping), where).result()
    if json:
        emit_json({"split": name, **result})
        return
    print(f"{data}, {name}: {result['n']} images, {result['skipped']} skipped")
    print(f"top-1 {result['top1']:.2%}   top-5 {result['top5']:.2%}   loss {result['loss']:.4f}")
    worst = sorted(result["per_class"].items(), key=lambda item: item[1]["top1"])[:5]
    print("hardest: " + ", ".join(f"{label} {facts['top1']:.1%} of {facts['n']}" for label, facts in worst))


def _progress(loader: Any) -> Any:
    """The batches, under a bar where someone is looking."""
    if not sys.stderr.isatty():
        return loader
    from rich.console import Console
    from rich.progress import track

    return track(loader, "evaluating", total=len(loader), console=Console(stderr=True), transient=True)
