"""`vitrail evaluate MODEL --data SRC`: how good a model is, every sample counted once."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from vitrail.cli import emit_json, note, together
from vitrail.cli.weights import Flags, NamedWeights

if TYPE_CHECKING:
    from vitrail.data import Source, Split

_HARDEST = 5
_PATIENCE = 2.0
"""Seconds before a bar appears: what is done sooner needs none."""

Item = TypeVar("Item")


def run(arguments: list[str]) -> None:
    together.run("evaluate", command, arguments)


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    data: str,
    split: str | None = None,
    out: Path | None = None,
    real: Path | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    device: str = "auto",
    subset: bool = False,
    processes: int | None = None,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Top-1, top-5, loss and calibration of a model on a data set, over all and by class.

    The model's own preprocessing is used, and classes are matched by name: a data set with other classes is an error.

    Args:
        model: A bundle, a run folder, a weights file, or hf:owner/name.
        data: The data set: digits, mnist5k, a folder of class folders, ...
        split: train, val, test, or all; by default test, or what there is.
        out: A folder for report.html, its pictures, evaluation.json and predictions.csv.
        real: ImageNet-ReaL's real.json: score the ImageNet validation images by these labels too.
        batch_size: Images at a time.
        workers: Threads that read images.
        device: auto, cpu, cuda, mps.
        subset: Accept a data set that has only some of the model's classes.
        processes: Share the images among so many processes of this machine; over several machines, start it by
            torchrun.
        json: Print one JSON document.
    """
    from vitrail.data import match_classes
    from vitrail.data.loader import EvaluationLoader
    from vitrail.errors import UserError
    from vitrail.evaluation import real_labels, report
    from vitrail.evaluation.accuracy import Accuracy, measure, merged
    from vitrail.models.device import choose_device
    from vitrail.processes import joined, local_device

    with together.alike():
        where = local_device(choose_device(device))
    with joined(where) as these:
        if out is not None:
            these.first_alone(lambda: report.check_folder(out, report.EVALUATION))
        labels = these.all_or_none(lambda: None if real is None else real_labels.read(real))
        loaded = these.all_or_none(lambda: _classifier(model, weights)).to(where)
        card = loaded.card
        numbers = these.all_or_none(lambda: [] if labels is None else real_labels.class_numbers(card.label_names))
        source, name, chosen, left_out = these.all_or_none(lambda: _chosen(data, split, labels is not None))
        mapping = these.all_or_none(lambda: match_classes(card.label_names, source.classes, subset=subset))
        notes = [*card.notes, *source.notes, *left_out]
        for line in notes if these.first else ():
            note(line)
        preprocessing = card.preprocessing
        assert preprocessing is not None
        loader = these.all_or_none(
            lambda: EvaluationLoader(
                chosen,
                preprocessing,
                batch_size=batch_size,
                workers=workers,
                rank=these.rank,
                world_size=these.count,
            )
        )
        batches = progress(loader, len(loader), "evaluating") if these.first else loader
        mine = these.all_or_none(lambda: measure(loaded, batches, Accuracy(card.label_names, mapping), where))
        accuracy = mine if these.count == 1 else merged(these.gather(mine), chosen.ids)

        def tell() -> None:
            if not accuracy.n:
                count = f"none of its {len(chosen):,} images can be read"
                raise UserError(f"{data}, {name}: {count}; vitrail data check says why")
            result = {"split": name, **accuracy.result()}
            if labels is not None:
                answers = ((each, predicted) for each, _, predicted, _ in accuracy.kept)
                result["real"] = real_labels.score(labels, numbers, answers)
            names = report.shown_names(card.label_names, card.label_descriptions)
            if out is not None:
                samples = report.chosen_samples(accuracy, names, chosen, loader.transform)
                page = report.write_evaluation(
                    out,
                    model=model,
                    data=data,
                    result=result,
                    accuracy=accuracy,
                    names=names,
                    samples=samples,
                    notes=notes,
                )
                note(f"wrote {page}")
            if json:
                emit_json(result)
            else:
                _show(data, result, dict(zip(card.label_names, names, strict=True)))

        these.first_alone(tell)


def _classifier(name: str, weights: NamedWeights) -> Any:
    """A model that can be asked for classes by name."""
    from vitrail.checkpoints.load import load
    from vitrail.errors import UserError

    model = load(name, **weights.options())
    if not model.config.num_classes:
        raise UserError(f"{name}: has no head, so it names no classes; vitrail fewshot measures its features")
    if not model.card.label_names:
        raise UserError(f"{name}: has no class names to match labels by; give them with --labels FILE")
    return model


def _chosen(data: str, split: str | None, real: bool) -> tuple["Source", str, "Split", list[str]]:
    """A source, the name of the split to measure, its samples that have a label, and what to say of the others."""
    from vitrail.data import open_source

    source = open_source(data)
    name = split or (_validation_split(source) if real else _default_split(source))
    return source, name, *labelled(source, name)


def _show(data: str, result: dict[str, Any], names: dict[str, str]) -> None:
    print(f"{data}, {result['split']}: {result['n']:,} images, {result['skipped']:,} skipped")
    print(f"top-1 {result['top1']:.2%}   top-5 {result['top5']:.2%}   loss {result['loss']:.4f}")
    print(f"calibration error {result['ece']:.2%}")
    if real := result.get("real"):
        share = f"{real['top1']:.2%} of {real['n']:,}" if real["n"] else "none has a label"
        print(f"ImageNet-ReaL: {share}, {real['without_label']:,} left out without a label")
    # Of equal shares, the one of more samples says more.
    worst = sorted(result["per_class"].items(), key=lambda item: (item[1]["top1"], -item[1]["n"]))[:_HARDEST]
    width = max(len(names[label]) for label, _ in worst)
    print("hardest classes:")
    for label, facts in worst:
        print(f"  {names[label]:<{width}}  {facts['top1']:>7.1%} of {facts['n']:,}")


def _default_split(source: "Source") -> str:
    return next((each for each in ("test", "val") if each in source.splits), "all")


def _validation_split(source: "Source") -> str:
    """All of it, where the folder is the validation set itself and the splits are ours."""
    own = [each for each in ("val", "test") if each in source.splits and each not in source.made_splits]
    return own[0] if own else "all"


def labelled(source: "Source", name: str) -> tuple["Split", list[str]]:
    """The samples of a split that have a label, and a sentence on those that have none."""
    from vitrail.data import UNLABELLED
    from vitrail.errors import UserError

    whole = source.split(name)
    known = (whole.labels != UNLABELLED).nonzero()[0]
    if not len(whole):
        raise UserError(f"{source.name}: the split {name!r} has no samples")
    if not len(known):
        raise UserError(f"{source.name}: no sample of {name!r} has a label, so there is nothing to compare with")
    if len(known) == len(whole):
        return whole, []
    return whole.subset(known), [f"{len(whole) - len(known):,} samples of {name} have no label: left out"]


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, under a bar on stderr once it has taken a while, where someone is looking."""
    from vitrail.data.progress import progress as shown

    with shown(what, total, after=_PATIENCE) as advance:
        for item in items:
            yield item
            advance(1)
