"""`vitrail evaluate MODEL --data SRC`: how good a model is, every sample counted once."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from vitrail.cli import emit_json, note, together
from vitrail.cli.weights import Flags, NamedWeights

if TYPE_CHECKING:
    from vitrail.data import Source, Split
    from vitrail.data.measured import Measured
    from vitrail.tasks.base import Meter

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
    from vitrail.cli.folds import Asked, cross_validate
    from vitrail.data import match_classes
    from vitrail.data.loader import EvaluationLoader
    from vitrail.data.ranges import measure as measure_values
    from vitrail.data.ranges import range_notes
    from vitrail.errors import UserError
    from vitrail.evaluation import normalisation, real_labels, report
    from vitrail.evaluation.measure import measure
    from vitrail.models.device import choose_device
    from vitrail.processes import joined, local_device
    from vitrail.tasks import task

    if folds is not None:
        if out is not None or real is not None:
            raise UserError("--folds measures heads of its own: leave --out and --real out, or --folds")
        cross_validate(Asked(model, data, split, folds, batch_size, workers, device), weights, json)
        return
    with together.alike():
        where = local_device(choose_device(device))
    with joined(where) as these:
        if out is not None:
            these.first_alone(lambda: report.check_folder(out, report.EVALUATION))
        labels = these.all_or_none(lambda: None if real is None else real_labels.read(real))
        loaded = these.all_or_none(lambda: _classifier(model, weights)).to(where)
        card = loaded.card
        numbers = these.all_or_none(lambda: [] if labels is None else real_labels.class_numbers(card.label_names))
        whole = labels is not None  # the validation set itself
        opened = these.all_or_none(lambda: _open(data, split, whole, loaded))
        source, name = opened.source, opened.split
        asked = task(loaded.config.task)
        these.all_or_none(lambda: _check_task(model, loaded.config.task, source))
        chosen, left_out = these.all_or_none(lambda: labelled(source, name))
        plural = asked.target.plural
        mapping = these.all_or_none(lambda: match_classes(card.label_names, source.classes, subset=True, plural=plural))
        preprocessing = card.preprocessing
        assert preprocessing is not None
        if tried := _to_try(source, name, split is None and not whole) if card.assumed else None:
            images = normalisation.sample(source.split(tried), few_of_each=False)
            kept = chosen.without(images.ids)
            if len(kept) < len(chosen):
                count = f"the {len(chosen) - len(kept):,} that the preprocessing was tried on"
                left_out.append(f"{count} are left out of what is measured")
            chosen = kept
            judge = normalisation.by_head(loaded, mapping, where)
            card.settle(*these.first_alone(lambda: normalisation.choose(preprocessing, images, judge, workers)))
        fewer = [asked.target.fewer(source.classes, card.label_names)] if len(mapping) < len(card.label_names) else []
        ranges = these.first_alone(lambda: range_notes(measure_values(chosen), preprocessing.range))
        notes = [*card.notes, *source.notes, opened.note, *fewer, *left_out, *ranges]
        notes = list(filter(None, notes))
        for line in notes if these.first else ():
            note(line)
        loader = these.all_or_none(
            lambda: EvaluationLoader(
                chosen,
                card.preprocessing or preprocessing,
                batch_size=batch_size,
                workers=workers,
                rank=these.rank,
                world_size=these.count,
            )
        )
        batches = progress(loader, len(loader), "evaluating") if these.first else loader
        mine = these.all_or_none(lambda: measure(loaded, batches, asked.meter(card.meaning, mapping), where))
        meter = mine if these.count == 1 else mine.of_all(these.gather(mine), chosen.ids)

        def tell() -> None:
            if not meter.n:
                count = f"none of its {len(chosen):,} images can be read"
                raise UserError(f"{data}, {name}: {count}; vitrail data check says why")
            result = {"split": name, **meter.result()}
            if labels is not None:
                answers = ((each, predicted) for each, _, predicted, _ in meter.kept)
                result["real"] = real_labels.score(labels, numbers, answers)
            names = report.shown_names(card.label_names, card.label_descriptions)
            if out is not None:
                pixels = report.read_samples(asked.page.chosen(meter), chosen, loader.transform)
                shown = asked.page(meter, names, pixels)
                page = report.write_evaluation(out, model=model, data=data, result=result, shown=shown, notes=notes)
                note(f"wrote {page}")
            if json:
                emit_json(result)
            else:
                _show(data, meter, result, dict(zip(card.label_names, names, strict=True)))

        these.first_alone(tell)


def _classifier(name: str, weights: NamedWeights) -> Any:
    """A model that can be asked for classes by name."""
    from vitrail.checkpoints.load import load
    from vitrail.errors import UserError

    if PurePath(name).suffix.lower() in (".onnx", ".xml", ".pt2"):
        from vitrail.inference.choose import Loading
        from vitrail.inference.exported import ExportedModel

        model = ExportedModel(name, Loading(**weights.options()))
    else:
        model = load(name, **weights.options())
    if not model.config.num_classes:
        raise UserError(f"{name}: has no head, so it names no classes; vitrail fewshot measures its features")
    if not model.card.label_names:
        raise UserError(f"{name}: has no class names to match labels by; give them with --labels FILE")
    return model


def _open(data: str, split: str | None, whole: bool, model: Any) -> "Measured":
    """The data and the split to measure. `whole`: of a folder that has no splits of its own all of it."""
    from vitrail.data.measured import open_to_measure

    opened = open_to_measure(data, model.card.provenance, split, model.config.task)
    own = [each for each in ("val", "test") if each in opened.source.splits and each not in opened.source.made_splits]
    return opened._replace(split=own[0] if own else "all", note="") if whole and split is None else opened


def _to_try(source: "Source", name: str, chosen_here: bool) -> str | None:
    """The split whose images choose between preprocessings and are then not measured; None where there is none.
    Where all of a data set is measured because it has no splits, a tenth of it chooses."""
    if name == "all":
        return "val" if chosen_here and "val" in source.made_splits else None
    return "train" if "train" in source.splits and name != "train" else None


def _check_task(model: str, name: str, source: "Source") -> None:
    """Refuses data whose targets answer another question than the model."""
    from vitrail.errors import UserError
    from vitrail.tasks import task

    if source.task != name:
        given = task(source.task).target.counted(source.classes)
        raise UserError(f"{source.name} has {given}, for {source.task}, and {model} was trained for {name}")


def _show(data: str, meter: "Meter", result: dict[str, Any], names: dict[str, str]) -> None:
    print(f"{data}, {result['split']}: {result['n']:,} images, {result['skipped']:,} skipped")
    for line in meter.lines(result, names):
        print(line)


def labelled(source: "Source", name: str, single_class: bool = False) -> tuple["Split", list[str]]:
    """The samples of a split that have a target, and a sentence on those that have none. `single_class`: what is
    needed is the one class of each, which not every source has."""
    from vitrail.errors import UserError

    whole = source.split(name)
    known = (whole.labels >= 0 if single_class else whole.known).nonzero()[0]
    if not len(whole):
        raise UserError(f"{source.name}: the split {name!r} has no samples")
    source.check_labelled()
    if not len(known):
        raise UserError(f"{source.name}: no sample of {name!r} has a label, so there is nothing to compare with")
    if len(known) == len(whole):
        return whole, []
    return whole.subset(known), [f"{len(whole) - len(known):,} samples of {name} have no label: left out"]


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, under a bar on stderr once it has taken a while, where someone is looking."""
    from vitrail.io.progress import progress as shown

    with shown(what, total, after=_PATIENCE) as advance:
        for item in items:
            yield item
            advance(1)
