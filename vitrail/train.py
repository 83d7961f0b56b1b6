"""READ FIRST: configuration -> data -> model -> objective -> loop -> run folder, joined in one place."""

import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.load import load
from vitrail.config import ModelConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.config.fields import pair
from vitrail.data import Source, Split, match_classes, open_data
from vitrail.data.draws import permutation
from vitrail.data.loader import Batch, EvaluationLoader, TrainingLoader
from vitrail.data.transforms import EvaluationTransform
from vitrail.evaluation import knn
from vitrail.evaluation.accuracy import Accuracy, measure, merged
from vitrail.evaluation.features import extract
from vitrail.evaluation.report import chosen_samples
from vitrail.launched import starts
from vitrail.models.build import Model, create
from vitrail.models.card import Card
from vitrail.models.cost import cost
from vitrail.models.device import choose_device
from vitrail.processes import Processes, joined, local_device
from vitrail.training import objectives, validation
from vitrail.training.distributed import part_of_batch, together
from vitrail.training.learner import Learner
from vitrail.training.loop import Evaluate, Trainer
from vitrail.training.objectives import Illustration
from vitrail.training.progress import Reporter, Silent, forget_after
from vitrail.training.report import write_report
from vitrail.training.run_folder import Quarantine, exists, prepare
from vitrail.version import __version__

NEIGHBOURS = 10_000
"""Of so many training samples at most, neighbours are looked up when there is no head to measure."""
SHOWN = 8
"""Samples in the picture of what was learned without labels."""


@dataclass
class Result:
    """What a run came to."""

    run: Path
    bundle: Path
    steps: int
    seconds: float
    images_per_second: float
    metrics: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "run": str(self.run), "bundle": str(self.bundle)}

    def summary(self) -> str:
        """The end of a run in a line."""
        found = self.metrics
        over = f"over {found['n']} images, {found['skipped']} skipped"
        if "top1" in found:
            return f"{found['split']} accuracy {found['top1']:.2%} {over}"
        near = f"; {found['knn_top1']:.2%} right by their nearest neighbours" if "knn_top1" in found else ""
        return f"{found['split']} loss {found['loss']:.4f} {over}{near}"


def fit(config: TrainConfig, out: str | Path, resume: bool = False, report: bool = True) -> Result:
    """Train as configured into the run folder `out`, or go on with the run that is there. Started by torchrun, all its
    processes take every step together; the first one writes and speaks. `report`: draw the pictures and the page."""
    device = local_device(choose_device(config.device))
    with joined(device) as processes:
        return _fit(config, Path(out), resume, report, device, processes)


def _fit(
    config: TrainConfig, run: Path, resume: bool, report: bool, device: torch.device, processes: Processes
) -> Result:
    began = time.monotonic()
    part = processes.all_or_none(lambda: part_of_batch(config, processes))
    source = processes.all_or_none(lambda: open_data(config.data))
    # torchrun repeats the command word for word when a process has died: then the run that is there is the job's own.
    resume = processes.first_alone(lambda: resume or (starts() > 0 and exists(run)))
    config = processes.first_alone(lambda: prepare(config, source, run, resume))
    learner = _learner(config, device)
    training, held_out = source.split("train"), source.splits.get("val")
    quarantine = Quarantine(run, writes=processes.first)

    def batches(position: int) -> Iterator[Batch]:
        loader = _loader(config, training, source, position, device, part, processes)
        limit = config.data.max_bad_fraction
        return quarantine.watch(together(iter(loader), processes, len(training), limit))

    def save(folder: str, learner: Learner, metrics: dict[str, Any]) -> None:
        encoder = learner.objective.encoder(learner.model)
        processes.first_alone(lambda: _save_bundle(encoder, config, source, run / folder, metrics))

    trainer = Trainer(
        config=config,
        run=run,
        model=learner.model,
        model_config=learner.model.config,
        objective=learner.objective,
        total=config.total_steps(len(training)),
        batches=batches,
        evaluate=_evaluator(config, held_out, source, device, processes) if held_out else None,
        keep_best=lambda best, result: save("best", best, {"val": _headline(result)}),
        epoch_samples=len(training),
        device=device,
        processes=processes,
        another=lambda: _learner(config, device),
    )
    told = trainer.resume() if resume else []
    if processes.first:
        forget_after(run, trainer.progress.step)
        reporter = Reporter(run, trainer.total, trainer.progress.step, config.batch_size, config.tensorboard)
    else:
        reporter = Silent()
    with reporter:
        summary = _summary(config, source, trainer.total, device, processes)
        for line in [*source.notes, *learner.model.card.notes, *told, summary]:
            reporter.say(line)
        trainer.fit(reporter)
        with trainer.finished() as last:
            save("bundle", last, {})
            if config.self_supervised:
                final, shown = processes.first_alone(lambda: _final_unlabelled(config, run, last, source, device))
                accuracy = None
            else:
                (final, accuracy), shown = _final(config, run, source, device, processes), None
        if processes.first:
            quarantine.write()
        if processes.first and report:
            _report(config, run, source, reporter.records, final, accuracy, shown)
    seconds = trainer.earlier + time.monotonic() - began
    chosen = run / ("best" if bundle.is_bundle(run / "best") else "bundle")
    speed = [record["images_per_second"] for record in reporter.records if record["kind"] == "train"]
    return Result(run, chosen, trainer.total, seconds, sorted(speed)[len(speed) // 2] if speed else 0.0, final)


def _learner(config: TrainConfig, device: torch.device) -> Learner:
    """The model and its objective at the beginning: the same in every process."""
    torch.manual_seed(config.seed)
    model = _model(config).to(device)
    if config.freeze == "backbone":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head"))
    return Learner(model, objectives.create(config, model).to(device))


def _model(config: TrainConfig) -> Model:
    if not config.init_from:
        return create(config.model)
    model = load(
        config.init_from,
        num_classes=config.model.num_classes,
        image_size=config.model.image_size,
        preprocessing=config.preprocessing,
    )
    dropped = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
    return _with_regularisation(model, {name: getattr(config.model, name) for name in dropped})


def _with_regularisation(model: Model, wanted: dict[str, float]) -> Model:
    """The same weights in modules that drop as the new configuration says."""
    fresh = create(model.config.with_(**wanted))
    fresh.load_state_dict(model.state_dict())
    fresh.card = model.card
    return fresh


def finetuned_config(
    config: TrainConfig, init_from: str, image_size: int | tuple[int, int] | None = None
) -> TrainConfig:
    """A recipe with the architecture of the model it starts from: its own sizes, the recipe's resolution or another."""
    model = load(init_from)
    size = pair(config.model.image_size if image_size is None else image_size)
    if model.config.family == "vit":
        model.config.grid_for(size)
    kept: ModelConfig = model.config.with_(
        image_size=size,
        representation_size=0,
        head_bias=0.0,
        dropout=config.model.dropout,
        attention_dropout=config.model.attention_dropout,
        drop_path=config.model.drop_path,
        patch_dropout=config.model.patch_dropout,
    )
    preprocessing = model.card.preprocessing or config.preprocessing
    return config.with_(model=kept, init_from=init_from, preprocessing=replace(preprocessing, image_size=size))


def _loader(
    config: TrainConfig,
    split: Split,
    source: Source,
    position: int,
    device: torch.device,
    part: int,
    processes: Processes,
) -> TrainingLoader:
    """This process's part of every batch from a position on."""
    return TrainingLoader(
        split,
        config.transform,
        config.preprocessing,
        batch_size=part,
        seed=config.seed,
        num_classes=len(source.classes),
        position=position,
        workers=config.data.workers,
        # Alone it counts bad samples itself; over several processes they are counted together.
        max_bad=config.data.max_bad_fraction if processes.count == 1 else 1.0,
        max_pixels=config.data.max_pixels,
        views=_views(config) if config.objective == "dino" else (),
        shuffle=config.data.shuffle,
        shuffle_buffer=config.data.shuffle_buffer,
        rank=processes.rank,
        world_size=processes.count,
        device=device,
    )


def _views(config: TrainConfig) -> list[tuple[TransformConfig, Preprocessing]]:
    """Of self-distillation, besides the first: a second large crop, and the small ones."""
    small = replace(config.transform, crop="inception", area=config.dino.local_area)
    size = replace(config.preprocessing, image_size=config.local_size)
    return [(config.transform, config.preprocessing), *[(small, size)] * config.dino.local_crops]


def _evaluator(
    config: TrainConfig, split: Split, source: Source, device: torch.device, processes: Processes
) -> Evaluate:
    def without_labels(learner: Learner) -> dict[str, Any]:
        objective, model = learner.objective, learner.model
        result = validation.measure(objective, model, _unlabelled(config, split, source), device, config.seed)
        return {**result, **_neighbours(config, split, source, objective.encoder(model), device)}

    def evaluate(learner: Learner) -> dict[str, Any]:
        if config.self_supervised:
            return processes.first_alone(lambda: without_labels(learner))
        result = _measure(config, split, source.classes, None, learner.model, device, processes).result()
        del result["per_class"]  # metrics.jsonl is for curves
        return result

    return evaluate


def _measure(
    config: TrainConfig,
    split: Split,
    classes: tuple[str, ...],
    mapping: Any,
    model: torch.nn.Module,
    device: torch.device,
    processes: Processes,
) -> Accuracy:
    """Each process measures its part of the split; every sample is counted once."""
    batches = _in_order(config, split, processes)
    mine = processes.all_or_none(lambda: measure(model, batches, Accuracy(classes, mapping), device))
    return mine if processes.count == 1 else merged(processes.gather(mine), split.ids)


def _in_order(config: TrainConfig, split: Split, processes: Processes | None = None) -> EvaluationLoader:
    processes = processes or Processes()
    return EvaluationLoader(
        split,
        config.preprocessing,
        batch_size=256,
        workers=config.data.workers,
        max_pixels=config.data.max_pixels,
        rank=processes.rank,
        world_size=processes.count,
    )


def _unlabelled(config: TrainConfig, split: Split, source: Source) -> Iterable[Batch]:
    """Every sample once, as an objective without labels needs it: self-distillation needs its crops."""
    if config.objective != "dino":
        yield from _in_order(config, split)
        return
    once = config.with_(transform=replace(config.transform, repeats=1))
    for batch in _loader(once, split, source, 0, torch.device("cpu"), once.batch_size, Processes()):
        spare = max(0, batch.position - len(split))
        yield batch.part(0, len(batch) - spare)
        if batch.position >= len(split):
            return


def _neighbours(
    config: TrainConfig, split: Split, source: Source, encoder: Model, device: torch.device
) -> dict[str, float]:
    """How good features are with nothing trained on them; nothing where there are no labels."""
    known, asked = source.split("train"), split
    if len(known) > NEIGHBOURS:
        known = known.subset(permutation(len(known), "neighbours", config.seed)[:NEIGHBOURS])
    known, asked = (each.subset((each.labels >= 0).nonzero()[0]) for each in (known, asked))
    if not len(known) or not len(asked):
        return {}
    train, queries = (extract(encoder, _in_order(config, each), device) for each in (known, asked))
    said = knn.classify(train.values, train.labels, queries.values, num_classes=len(source.classes))
    return {"knn_top1": (said == queries.labels).float().mean().item()}


def _headline(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("n", "skipped", "top1", "top5", "knn_top1", "loss") if name in result}


def _save_bundle(model: Model, config: TrainConfig, source: Source, folder: Path, metrics: dict[str, Any]) -> None:
    provenance = {
        "recipe": config.recipe,
        "data": {"source": source.name, "fingerprint": source.fingerprint()},
        "seed": config.seed,
        "init_from": config.init_from,
        "versions": {"vitrail": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "metrics": metrics,
    }
    card = model.card
    names = tuple(source.classes) if model.config.num_classes else ()
    model.card = Card(config.preprocessing, names, dict(card.label_descriptions), provenance)
    bundle.save(model, folder, overwrite=True)


def _final(
    config: TrainConfig, run: Path, source: Source, device: torch.device, processes: Processes
) -> tuple[dict[str, Any], Accuracy]:
    """The kept model, loaded from its bundle as a user would, on the split nobody looked at."""
    name = _last_split(source)
    model = load(run).to(device)
    mapping = match_classes(model.card.label_names, source.classes)
    accuracy = _measure(config, source.split(name), model.card.label_names, mapping, model, device, processes)
    return {"split": name, **accuracy.result()}, accuracy


def _final_unlabelled(
    config: TrainConfig, run: Path, learner: Learner, source: Source, device: torch.device
) -> tuple[dict[str, Any], Illustration | None]:
    """The loss of the last weights, since a bundle has no objective; neighbours by the kept model."""
    objective, model = learner.objective, learner.model
    name = _last_split(source)
    split = source.split(name)
    result = validation.measure(objective, model, _unlabelled(config, split, source), device, config.seed)
    near = _neighbours(config, split, source, load(run).to(device), device)
    some = split.subset(range(0, len(split), max(1, len(split) // SHOWN))[:SHOWN])
    batch = next(iter(_in_order(config, some)))
    shown = validation.illustrate(objective, model, batch, device, config.seed) if len(batch) else None
    return {"split": name, **result, **near}, shown


def _last_split(source: Source) -> str:
    return next(split for split in ("test", "val", "train") if split in source.splits)


def _summary(config: TrainConfig, source: Source, total: int, device: torch.device, processes: Processes) -> str:
    parts = ", ".join(f"{len(split)} {name}" for name, split in source.splits.items())
    model = config.model
    several = f", {processes.count} processes by {config.parallel}" if processes.count > 1 else ""
    return (
        f"{source.name}: {len(source.classes)} classes, {parts}\n"
        f"model: {model.name or _shape(model)} at {model.rows_columns[0]} x {model.rows_columns[1]} px, "
        f"{cost(model).parameters:,} parameters, on {device}{several}\n"
        f"{config.optimizer.name} lr {config.optimizer.lr:g}, batch {config.batch_size}, {total} steps"
        + (f"\nobjective {config.objective}: labels are not used" if config.self_supervised else "")
    )


def _shape(model: ModelConfig) -> str:
    """A model that has no name, in few words."""
    sizes = f"width {model.width}, depth {model.depth}, patch {model.patch_size}"
    if model.stages is None:
        return sizes
    stem = f"{model.stem_width} channels, stages {model.stages}"
    return f"ResNet of {stem}" if model.family == "resnet" else f"hybrid, {model.stem} stem of {stem}, {sizes}"


def _report(
    config: TrainConfig,
    run: Path,
    source: Source,
    records: list[Any],
    final: dict[str, Any],
    accuracy: Accuracy | None,
    shown: Illustration | None,
) -> None:
    samples = []
    if accuracy is not None:
        transform = EvaluationTransform(config.preprocessing, max_pixels=config.data.max_pixels)
        samples = chosen_samples(accuracy, accuracy.classes, source.split(final["split"]), transform)
    write_report(
        run,
        title=f"{config.recipe or 'training'} on {source.name}",
        config=config.to_json(),
        records=records,
        final=final,
        confusion=None if accuracy is None else accuracy.confusion,
        classes=() if accuracy is None else accuracy.classes,
        samples=samples,
        notes=source.notes,
        shown=shown,
    )
