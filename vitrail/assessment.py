"""The public functions that measure a model: `vitrail.evaluate`, `vitrail.few_shot` and `vitrail.cross_validate`.

A model is one in memory, or whatever MODEL may be on the command line. Data is whatever SRC may be, or an open source.
The commands `evaluate` and `fewshot` call these functions and print what they return.
"""

from copy import copy
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import nn

from vitrail.checkpoints.load import load
from vitrail.data import Source, Split, match_classes, open_source
from vitrail.data.evaluation_data import EvaluationData, labelled, open_to_measure
from vitrail.data.loader import EvaluationLoader
from vitrail.data.value_range import measure_range as measure_values
from vitrail.data.value_range import range_notes
from vitrail.errors import UserError
from vitrail.evaluation import cross_validation, normalisation, real_labels, report
from vitrail.evaluation import few_shot as few
from vitrail.evaluation.cross_validation import CrossValidation
from vitrail.evaluation.features import Features, extract
from vitrail.evaluation.features import join_features as in_order
from vitrail.evaluation.few_shot import FewShotRow, Method, Shots
from vitrail.evaluation.measure import measure
from vitrail.inference.engine_selection import Loading, Say
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.exported_model import ExportedModel
from vitrail.io.progress import tracked
from vitrail.models.card import Card
from vitrail.models.device import choose_device
from vitrail.process_group import ProcessGroup, local_device, open_process_group
from vitrail.tasks import task
from vitrail.tasks.base import Meter

MODEL = nn.Module | str | Path
"""A model in memory, or its name or path."""
_DATA = Source | str | Path
"""An open source, or its name or path."""


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings for running a model over data. Results do not depend on them, except on what `loading` says of a weights
    file."""

    batch_size: int = 64
    """Images that the model computes at a time."""
    workers: int | None = None
    """Threads that read images; None: chosen for the machine."""
    device: str = "auto"
    """Where the model runs: cpu, cuda or mps. auto: where a model in memory is, or the fastest device for one that is
    loaded. A model in memory that is elsewhere is moved."""
    loading: Loading = field(default_factory=Loading)
    """Options of `vitrail.load`, for a model given by name or path."""
    say: Say = lambda _: None
    """Called with every note as soon as it is known; with several processes, in the first one only."""


_PLAIN = EvaluationSettings()
"""The defaults."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of `vitrail.evaluate`."""

    data: str
    """The name of the data."""
    document: dict[str, Any]
    """The split's name, n, skipped, and the task's numbers."""
    meter: Meter
    """The task's meter, which has a row for every sample in `kept`."""
    names: dict[str, str]
    """What to call each of the model's outputs, by its name."""
    notes: tuple[str, ...]
    """What the user should know of model and data, a sentence each."""
    page: Path | None = None
    """The report, if one was written."""

    def to_json(self) -> dict[str, Any]:
        """Returns the document that `vitrail evaluate --json` prints."""
        return self.document

    def lines(self) -> list[str]:
        """Returns the lines that `vitrail evaluate` prints."""
        counts = f"{self.document['n']:,} images, {self.document['skipped']:,} skipped"
        return [f"{self.data}, {self.document['split']}: {counts}", *self.meter.lines(self.document, self.names)]


@dataclass(frozen=True)
class FewShotResult:
    """The result of `vitrail.few_shot`."""

    data: str
    """The name of the data."""
    split: str
    """The split that was tested on."""
    classes: tuple[str, ...]
    rows: tuple[FewShotRow, ...]
    """One row for each number of shots and method."""
    notes: tuple[str, ...]
    """What the user should know of model and data, a sentence each."""
    page: Path | None = None
    """The report, if one was written."""

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the document that `vitrail fewshot --json` prints."""
        return [row.to_json() for row in self.rows]


@dataclass(frozen=True)
class CrossValidationResult:
    """The result of `vitrail.cross_validate`."""

    data: str
    """The name of the data."""
    split: str
    measured: CrossValidation
    notes: tuple[str, ...]
    """What the user should know of model and data, a sentence each."""

    def to_json(self) -> dict[str, Any]:
        """Returns the document that `vitrail evaluate --folds K --json` prints."""
        return {"split": self.split, **self.measured.to_json()}


def evaluate(
    model: MODEL,
    data: _DATA,
    split: str | None = None,
    *,
    out: str | Path | None = None,
    real: str | Path | None = None,
    settings: EvaluationSettings = _PLAIN,
) -> EvaluationResult:
    """Measures a model on a data set, every sample counted once, as `vitrail evaluate` does.

    Under torchrun the processes share the images, and each returns the whole result.

    Args:
        model: a model with class names: one in memory, a name, or a path, of an exported .onnx or .xml file too. A
            model in memory is not changed: if its preprocessing was only assumed, a better one may be used here, but it
            is not kept.
        data: digits, mnist5k, a folder of class folders, or any other source; or a source that is open, which keeps its
            splits.
        split: train, val, test or all. None: the data's own test or else its val; all of it if it has neither, or, if
            the model was trained on it, the part that training set aside.
        out: a folder for report.html, its pictures, evaluation.json and predictions.csv; None: nothing is written.
        real: the path of ImageNet-ReaL's real.json, to compare answers on the ImageNet validation images with its
            labels too.
        settings: how the model is run.

    Returns:
        The numbers, the meter with a row for every sample, and notes.

    Raises:
        UserError: if the model cannot be measured on this data, or none of its images can be read.
    """
    device = _device(model, settings)
    with open_process_group(device) as processes:
        if out is not None:
            processes.run_on_first(lambda: report.check_report_folder(Path(out), report.EVALUATION))
        labels = processes.run_on_all(lambda: None if real is None else real_labels.read_real_labels(real))
        loaded = processes.run_on_all(lambda: _classifier(model, settings)).to(device)
        card = _card(loaded)
        numbers = processes.run_on_all(lambda: [] if labels is None else real_labels.class_numbers(card.label_names))
        whole = labels is not None  # ReaL labels are for the whole validation set
        opened = processes.run_on_all(lambda: _open(data, split, whole, loaded))
        source, name = opened.source, opened.split
        asked = task(loaded.config.task)
        processes.run_on_all(lambda: _check_task(_model_name(model), loaded.config.task, source))
        chosen, left_out = processes.run_on_all(lambda: labelled(source, name))
        plural = asked.target.plural
        mapping = processes.run_on_all(
            lambda: match_classes(card.label_names, source.classes, subset=True, plural=plural)
        )
        if tried := _to_try(source, name, split is None and not whole) if card.assumed else None:
            images = normalisation.sample(source.split(tried), few_of_each=False)
            kept = chosen.without(images.ids)
            if len(kept) < len(chosen):
                count = f"the {len(chosen) - len(kept):,} that the preprocessing was tried on"
                left_out.append(f"{count} are left out of what is measured")
            chosen = kept
            _settle(card, images, normalisation.by_head(loaded, mapping, device), settings, processes)
        fewer = [asked.target.fewer(source.classes, card.label_names)] if len(mapping) < len(card.label_names) else []
        assert card.preprocessing is not None
        limits = card.preprocessing.range
        ranges = processes.run_on_first(lambda: range_notes(measure_values(chosen), limits))
        notes = tuple(filter(None, [*card.notes, *source.notes, opened.note, *fewer, *left_out, *ranges]))
        _tell(notes, settings, processes)
        loader = processes.run_on_all(lambda: _loader(chosen, card, settings, processes))
        batches = tracked(loader, len(loader), "evaluating") if processes.first else loader
        mine = processes.run_on_all(lambda: measure(loaded, batches, asked.meter(card.meaning, mapping), device))
        meter = mine if processes.count == 1 else mine.of_all(processes.gather(mine), chosen.ids)
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

        document, page = processes.run_on_first(concluded)
    shown = dict(zip(card.label_names, names, strict=True))
    return EvaluationResult(_data_name(data), document, meter, shown, notes, page)


def few_shot(
    model: MODEL,
    data: _DATA,
    shots: tuple[Shots, ...] = few.SHOTS,
    methods: tuple[Method, ...] = ("ridge", "knn"),
    seeds: int = few.SEEDS,
    split: str | None = None,
    *,
    out: str | Path | None = None,
    settings: EvaluationSettings = _PLAIN,
) -> FewShotResult:
    """Measures simple classifiers that are given a few images of each class as a model's features, as `vitrail fewshot`
    does.

    Args:
        model: a model in memory, a name or a path. It needs neither a head nor class names, and is not changed.
        data: a source with classes, or one that is open. Images to learn from are drawn from its training split.
        shots: numbers of labelled images of each class; "all" for the whole training split.
        methods: ridge (the paper's least squares), knn (20 nearest neighbours), probe (logistic regression).
        seeds: how often the images are drawn.
        split: the split to test on; None: test, or val if there is none.
        out: a folder for report.html, fewshot.png and fewshot.json; None: nothing is written.
        settings: how the model is run.

    Returns:
        A row for each number of shots and method, and notes.

    Raises:
        UserError: if the data has no classes or lacks a split, or none of its images can be read.
    """
    shots, methods = tuple(dict.fromkeys(shots)), tuple(dict.fromkeys(methods))
    few.check_shots(shots, methods, seeds)
    if out is not None:
        report.check_report_folder(Path(out), report.FEW_SHOT)
    device, processes = _device(model, settings), ProcessGroup()
    loaded = _loaded(model, settings).to(device)
    source = data if isinstance(data, Source) else open_source(data)
    learned, tested = (labelled(source, name, single_class=True) for name in few.splits(source, split))
    card = _card(loaded)
    if card.assumed:
        images = normalisation.sample(learned[0])
        _settle(card, images, normalisation.by_features(loaded, device), settings, processes)
    notes = [*card.notes, *source.notes, *learned[1], *tested[1]]
    features: list[Features] = []
    for part in (learned[0], tested[0]):
        loader = _loader(part, card, settings, processes)
        found = extract(loaded, tracked(loader, len(loader), f"features of {part.name}"), device)
        if not len(found):
            raise UserError(f"{_data_name(data)}, {part.name}: none of its {len(part):,} images can be read")
        if found.skipped:
            notes.append(f"{found.skipped:,} images of {part.name} cannot be read: left out")
        features.append(found)
    train, test = features
    notes += few.shortages(train.targets, shots, source.classes)
    _tell(notes, settings, processes)
    rows = few.evaluate_shots(train, test, len(source.classes), shots=shots, methods=methods, seeds=seeds)
    results = tuple(tracked(rows, len(shots) * len(methods), "classifying"))
    page = None
    if out is not None:
        about = {"model": _model_name(model), "data": _data_name(data), "rows": results, "notes": notes}
        page = report.write_few_shot(Path(out), chance=1 / len(source.classes), **about)
    return FewShotResult(_data_name(data), tested[0].name, source.classes, results, tuple(notes), page)


def cross_validate(
    model: MODEL, data: _DATA, split: str | None = None, *, folds: int = 5, settings: EvaluationSettings = _PLAIN
) -> CrossValidationResult:
    """Cross-validates a head in closed form on a model's features, as `vitrail evaluate --folds` does: each fold is
    classified by a head that was computed from all others.

    Under torchrun the processes share the images, and each returns the whole result.

    Args:
        model: a model in memory, a name or a path. Its own head is not used, and it is not changed.
        data: a source with classes, or one that is open.
        split: the split to use; None: all of them together.
        folds: the number of folds, at least 2.
        settings: how the model is run.

    Returns:
        The accuracies of the folds, and notes.

    Raises:
        UserError: if there are fewer images than folds, or the data has no classes.
    """
    cross_validation.check_folds(folds)
    device, name = _device(model, settings), split or "all"
    with open_process_group(device) as processes:
        loaded = processes.run_on_all(lambda: _loaded(model, settings)).to(device)
        source = processes.run_on_all(lambda: data if isinstance(data, Source) else open_source(data))
        chosen, left_out = processes.run_on_all(lambda: labelled(source, name, single_class=True))
        card = _card(loaded)
        if card.assumed:
            images = normalisation.sample(chosen)
            _settle(card, images, normalisation.by_features(loaded, device), settings, processes)
        loader = _loader(chosen, card, settings, processes)
        batches = tracked(loader, len(loader), "features") if processes.first else loader
        mine = processes.run_on_all(lambda: extract(loaded, batches, device))
        features = mine if processes.count == 1 else in_order(processes.gather(mine), chosen.ids)

        def concluded() -> tuple[CrossValidation, tuple[str, ...]]:
            if len(features) < folds:
                count = f"{len(features)} images can be used, fewer than --folds {folds}"
                raise UserError(f"{_data_name(data)}, {name}: {count}")
            rare = cross_validation.rare(features.targets, source.classes, folds)
            notes = (*card.notes, *source.notes, *left_out, *rare)
            _tell(notes, settings, processes)
            return cross_validation.cross_validate_features(features, source.classes, folds), notes

        measured, notes = processes.run_on_first(concluded)
    return CrossValidationResult(_data_name(data), name, measured, notes)


def _device(model: MODEL, settings: EvaluationSettings) -> torch.device:
    """Returns the device to run on; a model in memory stays where it is unless the settings name another device."""
    held = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if held is not None and settings.device == "auto":
        return held.device
    return local_device(choose_device(settings.device))


def _loaded(model: MODEL, settings: EvaluationSettings) -> Any:
    return model if isinstance(model, nn.Module) else load(model, **settings.loading.options())


def _classifier(model: MODEL, settings: EvaluationSettings) -> Any:
    """Opens a model that has named outputs; a UserError if it has no head or no names."""
    exported = isinstance(model, str | Path) and PurePath(model).suffix.lower() in (".onnx", ".xml", ".pt2")
    loaded = ExportedModel(str(model), settings.loading) if exported else _loaded(model, settings)
    name = _model_name(model)
    if not loaded.config.num_classes:
        raise UserError(f"{name}: has no head, so it names no classes; vitrail fewshot measures its features")
    if not loaded.card.label_names:
        raise UserError(f"{name}: has no class names to match labels by; give them with --labels FILE")
    return loaded


def _card(model: Any) -> Card:
    """Copies a model's card, so that changes stay here. A card without preprocessing gets the one that `predict`
    uses."""
    card = copy(model.card)
    card.preprocessing = ExportMetadata.of(model.config, card).preprocessing
    return card


def _model_name(model: MODEL) -> str:
    return str(model) if isinstance(model, str | Path) else getattr(model, "config").name or "the model"  # noqa: B009


def _data_name(data: _DATA) -> str:
    return data.name if isinstance(data, Source) else str(data)


def _open(data: _DATA, split: str | None, whole: bool, model: Any) -> EvaluationData:
    """Opens the data and chooses the split to measure. whole: whether data without splits of its own is measured
    whole."""
    opened = open_to_measure(data, model.card.provenance, split, model.config.task)
    own = [each for each in ("val", "test") if each in opened.source.splits and each not in opened.source.made_splits]
    return opened._replace(split=own[0] if own else "all", note="") if whole and split is None else opened


def _to_try(source: Source, name: str, chosen_here: bool) -> str | None:
    """Returns the split whose images choose between preprocessings and are not measured then; None if there is none.

    Data that is measured whole because it has no splits gives a tenth of its images. chosen_here: whether the user has
    named no split.
    """
    if name == "all":
        return "val" if chosen_here and "val" in source.made_splits else None
    return "train" if "train" in source.splits and name != "train" else None


def _check_task(model: str, name: str, source: Source) -> None:
    """Raises a UserError if the targets of the data are of another task than the model."""
    if source.task != name:
        given = task(source.task).target.counted(source.classes)
        raise UserError(f"{source.name} has {given}, for {source.task}, and {model} was trained for {name}")


def _settle(
    card: Card, images: Split, judge: normalisation.LoaderJudge, settings: EvaluationSettings, processes: ProcessGroup
) -> None:
    """Tries an assumed preprocessing and the other usual one, and puts the better one into the card."""
    own = card.preprocessing
    assert own is not None
    card.settle(
        *processes.run_on_first(lambda: normalisation.choose_normalisation(own, images, judge, settings.workers))
    )


def _loader(split: Split, card: Card, settings: EvaluationSettings, processes: ProcessGroup) -> EvaluationLoader:
    assert card.preprocessing is not None
    return EvaluationLoader(
        split,
        card.preprocessing,
        batch_size=settings.batch_size,
        workers=settings.workers,
        rank=processes.rank,
        world_size=processes.count,
    )


def _tell(notes: tuple[str, ...] | list[str], settings: EvaluationSettings, processes: ProcessGroup) -> None:
    for line in notes if processes.first else ():
        settings.say(line)
