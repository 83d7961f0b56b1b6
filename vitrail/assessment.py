"""How good a model is, as functions: `vitrail.evaluate`, `vitrail.few_shot` and `vitrail.cross_validate`.

A model is one in memory, or anything that MODEL means on the command line; data is anything that SRC means, or a
source that is open. The commands `evaluate` and `fewshot` call these functions and print what they return.
"""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.load import load
from vitrail.data import Source, Split, match_classes, open_source
from vitrail.data.loader import EvaluationLoader
from vitrail.data.measured import Measured, labelled, open_to_measure
from vitrail.data.ranges import measure as measure_values
from vitrail.data.ranges import range_notes
from vitrail.errors import UserError
from vitrail.evaluation import cross_validation, normalisation, real_labels, report
from vitrail.evaluation import few_shot as few
from vitrail.evaluation.cross_validation import CrossValidation
from vitrail.evaluation.features import Features, extract
from vitrail.evaluation.features import joined as in_order
from vitrail.evaluation.few_shot import Method, Row, Shots
from vitrail.evaluation.measure import measure
from vitrail.inference.choose import Loading, Say
from vitrail.inference.engines.facts import Facts
from vitrail.inference.exported import ExportedModel
from vitrail.io.progress import tracked
from vitrail.models.card import Card
from vitrail.models.device import choose_device
from vitrail.processes import Processes, joined, local_device
from vitrail.tasks import task
from vitrail.tasks.base import Meter

MODEL = nn.Module | str | Path
DATA = Source | str | Path


@dataclass(frozen=True)
class EvaluationSettings:
    """How a model is run over data; nothing here changes what is measured, except what a weights file cannot say."""

    batch_size: int = 64
    """Images at a time."""
    workers: int | None = None
    """Threads that read images; None: as many as suit the machine."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: where a model in memory is, else the fastest there is. A model in memory that is
    elsewhere is moved."""
    loading: Loading = field(default_factory=Loading)
    """What `vitrail.load` is told of a model given by name or path."""
    say: Say = lambda _: None
    """Is given every note as soon as it is known, in the first of several processes."""


PLAIN = EvaluationSettings()


@dataclass(frozen=True)
class EvaluationResult:
    """What a model reaches on a split."""

    data: str
    document: dict[str, Any]
    """The split's name, n, skipped and the task's numbers."""
    meter: Meter
    """Has a row for every sample in `kept`."""
    names: dict[str, str]
    """The model's classes, each with the words that are shown for it."""
    notes: tuple[str, ...]
    page: Path | None = None
    """The report, where one was asked for."""

    def to_json(self) -> dict[str, Any]:
        """Gives the document that `vitrail evaluate --json` prints."""
        return self.document

    def lines(self) -> list[str]:
        """Gives the lines that `vitrail evaluate` prints."""
        counts = f"{self.document['n']:,} images, {self.document['skipped']:,} skipped"
        return [f"{self.data}, {self.document['split']}: {counts}", *self.meter.lines(self.document, self.names)]


@dataclass(frozen=True)
class FewShotResult:
    """What simple classifiers reach on a model's features with a few labelled images of each class."""

    data: str
    split: str
    """What was tested on."""
    classes: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    page: Path | None = None
    """The report, where one was asked for."""

    def to_json(self) -> list[dict[str, Any]]:
        """Gives the document that `vitrail fewshot --json` prints."""
        return [row.to_json() for row in self.rows]


@dataclass(frozen=True)
class CrossValidationResult:
    """What heads in closed form reach on the folds of a data set."""

    data: str
    split: str
    measured: CrossValidation
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Gives the document that `vitrail evaluate --folds K --json` prints."""
        return {"split": self.split, **self.measured.to_json()}


def evaluate(
    model: MODEL,
    data: DATA,
    split: str | None = None,
    *,
    out: str | Path | None = None,
    real: str | Path | None = None,
    settings: EvaluationSettings = PLAIN,
) -> EvaluationResult:
    """Measures a model on a data set, every sample counted once, as `vitrail evaluate` does.

    Under torchrun the processes share the images, and each returns the whole result.

    Args:
        model: A model with class names, or a name, a path or an exported .onnx or .xml file. One in memory stays as it
            is: where its preprocessing is only assumed, the better one is used here and not kept.
        data: A source: digits, mnist5k, a folder of class folders, ..., or one that is open, which keeps its splits.
        split: train, val, test or all. None: the data set's own test, or its val; where it has neither, all of it, or
            if the model was trained on it the part that training set aside.
        out: A folder for report.html, its pictures, evaluation.json and predictions.csv.
        real: ImageNet-ReaL's real.json: score the ImageNet validation images by these labels too.
        settings: How the model is run.
    """
    device = _device(model, settings)
    with joined(device) as these:
        if out is not None:
            these.first_alone(lambda: report.check_folder(Path(out), report.EVALUATION))
        labels = these.all_or_none(lambda: None if real is None else real_labels.read(real))
        loaded = these.all_or_none(lambda: _classifier(model, settings)).to(device)
        card = _card(loaded)
        numbers = these.all_or_none(lambda: [] if labels is None else real_labels.class_numbers(card.label_names))
        whole = labels is not None  # the validation set itself
        opened = these.all_or_none(lambda: _open(data, split, whole, loaded))
        source, name = opened.source, opened.split
        asked = task(loaded.config.task)
        these.all_or_none(lambda: _check_task(_model_name(model), loaded.config.task, source))
        chosen, left_out = these.all_or_none(lambda: labelled(source, name))
        plural = asked.target.plural
        mapping = these.all_or_none(lambda: match_classes(card.label_names, source.classes, subset=True, plural=plural))
        if tried := _to_try(source, name, split is None and not whole) if card.assumed else None:
            images = normalisation.sample(source.split(tried), few_of_each=False)
            kept = chosen.without(images.ids)
            if len(kept) < len(chosen):
                count = f"the {len(chosen) - len(kept):,} that the preprocessing was tried on"
                left_out.append(f"{count} are left out of what is measured")
            chosen = kept
            _settle(card, images, normalisation.by_head(loaded, mapping, device), settings, these)
        fewer = [asked.target.fewer(source.classes, card.label_names)] if len(mapping) < len(card.label_names) else []
        assert card.preprocessing is not None
        limits = card.preprocessing.range
        ranges = these.first_alone(lambda: range_notes(measure_values(chosen), limits))
        notes = tuple(filter(None, [*card.notes, *source.notes, opened.note, *fewer, *left_out, *ranges]))
        _tell(notes, settings, these)
        loader = these.all_or_none(lambda: _loader(chosen, card, settings, these))
        batches = tracked(loader, len(loader), "evaluating") if these.first else loader
        mine = these.all_or_none(lambda: measure(loaded, batches, asked.meter(card.meaning, mapping), device))
        meter = mine if these.count == 1 else mine.of_all(these.gather(mine), chosen.ids)
        names = report.shown_names(card.label_names, card.label_descriptions)

        def concluded() -> tuple[dict[str, Any], Path | None]:
            if not meter.n:
                count = f"none of its {len(chosen):,} images can be read"
                raise UserError(f"{_data_name(data)}, {name}: {count}; vitrail data check says why")
            result = {"split": name, **meter.result()}
            if labels is not None:
                answers = ((each, predicted) for each, _, predicted, _ in meter.kept)
                result["real"] = real_labels.score(labels, numbers, answers)
            if out is None:
                return result, None
            pixels = report.read_samples(asked.page.chosen(meter), chosen, loader.transform)
            about = {"model": _model_name(model), "data": _data_name(data), "result": result, "notes": notes}
            return result, report.write_evaluation(Path(out), shown=asked.page(meter, names, pixels), **about)

        document, page = these.first_alone(concluded)
    shown = dict(zip(card.label_names, names, strict=True))
    return EvaluationResult(_data_name(data), document, meter, shown, notes, page)


def few_shot(
    model: MODEL,
    data: DATA,
    shots: tuple[Shots, ...] = few.SHOTS,
    methods: tuple[Method, ...] = ("ridge", "knn"),
    seeds: int = few.SEEDS,
    split: str | None = None,
    *,
    out: str | Path | None = None,
    settings: EvaluationSettings = PLAIN,
) -> FewShotResult:
    """Measures simple classifiers on a model's frozen features, trained on a few images of each class, as
    `vitrail fewshot` does.

    Args:
        model: A model, or a name or path of one. It needs no head and no class names, and stays as it is.
        data: A source of classes, or one that is open; images to learn from are drawn from its training split.
        shots: Labelled images of each class; "all" takes the whole training split.
        methods: ridge (the paper's least squares), knn (20 nearest neighbours), probe (logistic regression).
        seeds: How many times the images are drawn.
        split: What to test on; None: test, or val where there is none.
        out: A folder for report.html, fewshot.png and fewshot.json.
        settings: How the model is run.
    """
    shots, methods = tuple(dict.fromkeys(shots)), tuple(dict.fromkeys(methods))
    few.check(shots, methods, seeds)
    if out is not None:
        report.check_folder(Path(out), report.FEW_SHOT)
    device, these = _device(model, settings), Processes()
    loaded = _loaded(model, settings).to(device)
    source = data if isinstance(data, Source) else open_source(data)
    learned, tested = (labelled(source, name, single_class=True) for name in few.splits(source, split))
    card = _card(loaded)
    if card.assumed:
        images = normalisation.sample(learned[0])
        _settle(card, images, normalisation.by_features(loaded, device), settings, these)
    notes = [*card.notes, *source.notes, *learned[1], *tested[1]]
    features: list[Features] = []
    for part in (learned[0], tested[0]):
        loader = _loader(part, card, settings, these)
        found = extract(loaded, tracked(loader, len(loader), f"features of {part.name}"), device)
        if not len(found):
            raise UserError(f"{_data_name(data)}, {part.name}: none of its {len(part):,} images can be read")
        if found.skipped:
            notes.append(f"{found.skipped:,} images of {part.name} cannot be read: left out")
        features.append(found)
    train, test = features
    notes += few.shortages(train.targets, shots, source.classes)
    _tell(notes, settings, these)
    rows = few.evaluate(train, test, len(source.classes), shots=shots, methods=methods, seeds=seeds)
    results = tuple(tracked(rows, len(shots) * len(methods), "classifying"))
    page = None
    if out is not None:
        about = {"model": _model_name(model), "data": _data_name(data), "rows": results, "notes": notes}
        page = report.write_few_shot(Path(out), chance=1 / len(source.classes), **about)
    return FewShotResult(_data_name(data), tested[0].name, source.classes, results, tuple(notes), page)


def cross_validate(
    model: MODEL, data: DATA, split: str | None = None, *, folds: int = 5, settings: EvaluationSettings = PLAIN
) -> CrossValidationResult:
    """Cross-validates a head in closed form on a model's features of a data set, as `vitrail evaluate --folds` does:
    each fold is asked of a head that was solved on all others.

    Under torchrun the processes share the images, and each returns the whole result.

    Args:
        model: A model, or a name or path of one. Its own head is not used, and it stays as it is.
        data: A source of classes, or one that is open.
        split: What to take of it; None: all.
        folds: Into how many parts it is divided, at least 2.
        settings: How the model is run.
    """
    cross_validation.check(folds)
    device, name = _device(model, settings), split or "all"
    with joined(device) as these:
        loaded = these.all_or_none(lambda: _loaded(model, settings)).to(device)
        source = these.all_or_none(lambda: data if isinstance(data, Source) else open_source(data))
        chosen, left_out = these.all_or_none(lambda: labelled(source, name, single_class=True))
        card = _card(loaded)
        if card.assumed:
            images = normalisation.sample(chosen)
            _settle(card, images, normalisation.by_features(loaded, device), settings, these)
        loader = _loader(chosen, card, settings, these)
        batches = tracked(loader, len(loader), "features") if these.first else loader
        mine = these.all_or_none(lambda: extract(loaded, batches, device))
        features = mine if these.count == 1 else in_order(these.gather(mine), chosen.ids)

        def concluded() -> tuple[CrossValidation, tuple[str, ...]]:
            if len(features) < folds:
                count = f"{len(features)} images can be used, fewer than --folds {folds}"
                raise UserError(f"{_data_name(data)}, {name}: {count}")
            rare = cross_validation.rare(features.targets, source.classes, folds)
            notes = (*card.notes, *source.notes, *left_out, *rare)
            _tell(notes, settings, these)
            return cross_validation.cross_validate(features, source.classes, folds), notes

        measured, notes = these.first_alone(concluded)
    return CrossValidationResult(_data_name(data), name, measured, notes)


def _device(model: MODEL, settings: EvaluationSettings) -> torch.device:
    held = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if held is not None and settings.device == "auto":
        return held.device
    return local_device(choose_device(settings.device))


def _loaded(model: MODEL, settings: EvaluationSettings) -> Any:
    return model if isinstance(model, nn.Module) else load(model, **settings.loading.options())


def _classifier(model: MODEL, settings: EvaluationSettings) -> Any:
    """Opens a model that can be asked for classes by name."""
    exported = isinstance(model, str | Path) and PurePath(model).suffix.lower() in (".onnx", ".xml", ".pt2")
    loaded = ExportedModel(str(model), settings.loading) if exported else _loaded(model, settings)
    name = _model_name(model)
    if not loaded.config.num_classes:
        raise UserError(f"{name}: has no head, so it names no classes; vitrail fewshot measures its features")
    if not loaded.card.label_names:
        raise UserError(f"{name}: has no class names to match labels by; give them with --labels FILE")
    return loaded


def _card(model: Any) -> Card:
    """Copies a model's card, so that what is found out here stays here; one that names no preprocessing gets what
    `predict` takes."""
    card = copy(model.card)
    card.preprocessing = Facts.of(model.config, card).preprocessing
    return card


def _model_name(model: MODEL) -> str:
    return str(model) if isinstance(model, str | Path) else getattr(model, "config").name or "the model"  # noqa: B009


def _data_name(data: DATA) -> str:
    return data.name if isinstance(data, Source) else str(data)


def _open(data: DATA, split: str | None, whole: bool, model: Any) -> Measured:
    """Opens the data and chooses the split to measure. `whole`: of a folder that has no splits of its own all of it."""
    opened = open_to_measure(data, model.card.provenance, split, model.config.task)
    own = [each for each in ("val", "test") if each in opened.source.splits and each not in opened.source.made_splits]
    return opened._replace(split=own[0] if own else "all", note="") if whole and split is None else opened


def _to_try(source: Source, name: str, chosen_here: bool) -> str | None:
    """Names the split whose images choose between preprocessings and are then not measured; None where there is none.
    Where all of a data set is measured because it has no splits, a tenth of it chooses."""
    if name == "all":
        return "val" if chosen_here and "val" in source.made_splits else None
    return "train" if "train" in source.splits and name != "train" else None


def _check_task(model: str, name: str, source: Source) -> None:
    """Refuses data whose targets answer another question than the model."""
    if source.task != name:
        given = task(source.task).target.counted(source.classes)
        raise UserError(f"{source.name} has {given}, for {source.task}, and {model} was trained for {name}")


def _settle(
    card: Card, images: Split, judge: normalisation.Judge, settings: EvaluationSettings, these: Processes
) -> None:
    """Tries an assumed preprocessing beside the other usual one, and puts the better into the card."""
    own = card.preprocessing
    assert own is not None
    card.settle(*these.first_alone(lambda: normalisation.choose(own, images, judge, settings.workers)))


def _loader(split: Split, card: Card, settings: EvaluationSettings, these: Processes) -> EvaluationLoader:
    assert card.preprocessing is not None
    return EvaluationLoader(
        split,
        card.preprocessing,
        batch_size=settings.batch_size,
        workers=settings.workers,
        rank=these.rank,
        world_size=these.count,
    )


def _tell(notes: tuple[str, ...] | list[str], settings: EvaluationSettings, these: Processes) -> None:
    for line in notes if these.first else ():
        settings.say(line)
