"""READ FIRST: configuration -> data -> model -> objective -> loop -> run folder, joined in one place."""

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.files import json_text, read_json, text_file, write_file
from vitrail.checkpoints.load import load
from vitrail.config import ModelConfig, TrainConfig
from vitrail.data import Source, Split, match_classes, open_data
from vitrail.data.loader import Batch, EvaluationLoader, TrainingLoader
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.evaluation.accuracy import Accuracy, measure
from vitrail.models.build import Model, create
from vitrail.models.card import Card
from vitrail.models.cost import cost
from vitrail.training.loop import Evaluate, Trainer
from vitrail.training.objectives.supervised import Supervised
from vitrail.training.progress import Reporter, forget_after
from vitrail.training.report import SamplePrediction, write_report
from vitrail.version import __version__

CONFIG, QUARANTINE = "config.json", "quarantine.txt"
MAY_CHANGE = ("data.workers", "device", "tensorboard", "log_every")
"""Fields that a resumed run may change: they do not change what it computes."""


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


def fit(config: TrainConfig, out: str | Path, resume: bool = False) -> Result:
    """Train as configured into the run folder `out`, or go on with the run that is there."""
    run, began = Path(out), time.monotonic()
    device = choose_device(config.device)
    source = open_data(config.data)
    config = _prepare_run(config, source, run, resume)
    torch.manual_seed(config.seed)
    model = _model(config, source).to(device)
    if config.freeze == "backbone":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head"))
    training, validation = source.split("train"), source.splits.get("val")
    quarantine = _Quarantine(run)
    trainer = Trainer(
        config=config,
        run=run,
        model=model,
        model_config=model.config,
        objective=Supervised(config.objective, model.config.num_classes),
        total=config.total_steps(len(training)),
        batches=lambda position: iter(quarantine.watch(_loader(config, training, source, position, device))),
        evaluate=_evaluator(config, validation, source, device) if validation else None,
        keep_best=lambda result: _save_bundle(model, config, source, run / "best", {"val": _headline(result)}),
        epoch_samples=len(training),
        device=device,
    )
    told = trainer.resume() if resume else []
    forget_after(run, trainer.progress.step)
    with Reporter(run, trainer.total, trainer.progress.step, config.batch_size, config.tensorboard) as reporter:
        for line in [*source.notes, *model.card.notes, *told, _summary(config, source, trainer.total, device)]:
            reporter.say(line)
        trainer.fit(reporter)
        with trainer.averaged():
            _save_bundle(model, config, source, run / "bundle", {})
        final = _final(config, run, source, device)
        quarantine.write()
        _report(config, run, source, reporter.records, final)
    seconds = time.monotonic() - began
    chosen = run / ("best" if bundle.is_bundle(run / "best") else "bundle")
    speed = [record["images_per_second"] for record in reporter.records if record["kind"] == "train"]
    return Result(run, chosen, trainer.total, seconds, sorted(speed)[len(speed) // 2] if speed else 0.0, final[0])


def choose_device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name}: there is none here ({str(error).splitlines()[0]})") from error
    return device


def read_config(run: str | Path) -> TrainConfig:
    """The configuration of a run that exists."""
    path = Path(run) / CONFIG
    if not path.is_file():
        raise UserError(f"{run}: has no {CONFIG}, so there is no run to go on with")
    return TrainConfig.from_json(read_json(path)["train"])


def _prepare_run(config: TrainConfig, source: Source, run: Path, resume: bool) -> TrainConfig:
    """Make the run folder, or compare it with what is asked for; the configuration comes back resolved."""
    config = config.with_(model=config.model.with_(num_classes=len(source.classes)))
    document = {"train": config.to_json(), "classes": list(source.classes), "fingerprint": source.fingerprint()}
    if resume:
        before = read_config(run)
        if changed := [name for name in _differences(before.to_json(), config.to_json()) if name not in MAY_CHANGE]:
            raise UserError(f"{run}: was begun with another --{changed[0].replace('_', '-')}; a resumed run keeps it")
        if read_json(run / CONFIG).get("fingerprint") != document["fingerprint"]:
            raise UserError(f"{run}: the data is not what it was when the run began; start a new run")
        return config
    if run.exists() and any(run.iterdir()):
        raise UserError(f"{run}: is in use already; choose another --out, or go on with it by --resume")
    write_file(run / CONFIG, text_file(json_text(document)))
    return config


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in now.items():
        if isinstance(value, dict):
            found += _differences(before.get(name, {}), value, f"{prefix}{name}.")
        elif _plain(before.get(name)) != _plain(value):
            found.append(prefix + name)
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _model(config: TrainConfig, source: Source) -> Model:
    if not config.init_from:
        return create(config.model)
    model = load(config.init_from, num_classes=len(source.classes), image_size=config.model.image_size)
    dropped = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
    return _with_regularisation(model, {name: getattr(config.model, name) for name in dropped})


def _with_regularisation(model: Model, wanted: dict[str, float]) -> Model:
    """The same weights in modules that drop as the new configuration says."""
    fresh = create(model.config.with_(**wanted))
    fresh.load_state_dict(model.state_dict())
    fresh.card = model.card
    return fresh


def finetuned_config(config: TrainConfig, init_from: str) -> TrainConfig:
    """A recipe with the architecture of the model it starts from: its own sizes, the recipe's resolution."""
    model = load(init_from)
    size = config.model.image_size
    if model.config.family == "vit":
        model.config.grid_for(config.model.rows_columns)
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


def _loader(config: TrainConfig, split: Split, source: Source, position: int, device: torch.device) -> TrainingLoader:
    return TrainingLoader(
        split,
        config.transform,
        config.preprocessing,
        batch_size=config.batch_size,
        seed=config.seed,
        num_classes=len(source.classes),
        position=position,
        workers=config.data.workers,
        max_bad=config.data.max_bad_fraction,
        max_pixels=config.data.max_pixels,
        device=device,
    )


def _evaluator(config: TrainConfig, split: Split, source: Source, device: torch.device) -> Evaluate:
    def evaluate(model: torch.nn.Module) -> dict[str, Any]:
        result = _measure(config, split, source.classes, None, model, device).result()
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
) -> Accuracy:
    loader = EvaluationLoader(
        split, config.preprocessing, batch_size=256, workers=config.data.workers, max_pixels=config.data.max_pixels
    )
    return measure(model, loader, Accuracy(classes, mapping), device)


def _headline(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("n", "skipped", "top1", "top5", "loss")}


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
    model.card = Card(config.preprocessing, tuple(source.classes), dict(card.label_descriptions), provenance)
    bundle.save(model, folder, overwrite=True)


def _final(config: TrainConfig, run: Path, source: Source, device: torch.device) -> tuple[dict[str, Any], Accuracy]:
    """The kept model, loaded from its bundle as a user would, on the split nobody looked at."""
    name = next(split for split in ("test", "val", "train") if split in source.splits)
    model = load(run).to(device)
    mapping = match_classes(model.card.label_names, source.classes)
    accuracy = _measure(config, source.split(name), model.card.label_names, mapping, model, device)
    return {"split": name, **accuracy.result()}, accuracy


def _summary(config: TrainConfig, source: Source, total: int, device: torch.device) -> str:
    parts = ", ".join(f"{len(split)} {name}" for name, split in source.splits.items())
    model = config.model
    what = model.name or f"width {model.width}, depth {model.depth}, patch {model.patch_size}"
    return (
        f"{source.name}: {len(source.classes)} classes, {parts}\n"
        f"model: {what} at {model.rows_columns[0]} x {model.rows_columns[1]} px, "
        f"{cost(model).parameters:,} parameters, on {device}\n"
        f"{config.optimizer.name} lr {config.optimizer.lr:g}, batch {config.batch_size}, {total} steps"
    )


def _report(config: TrainConfig, run: Path, source: Source, records: list[Any], final: tuple[Any, Accuracy]) -> None:
    result, accuracy = final
    split = source.split(result["split"])
    place = {name: index for index, name in enumerate(split.ids)}
    transform = EvaluationTransform(config.preprocessing, max_pixels=config.data.max_pixels)
    wrong = sorted((each for each in accuracy.kept if each[1] != each[2]), key=lambda each: -each[3])
    fair = accuracy.kept[:: max(1, len(accuracy.kept) // 32)][:32]
    chosen = [*fair, *wrong[:12]]  # the first 32 stand for the whole, the others are looked at for mistakes
    samples = [
        SamplePrediction(name, transform(split.read(place[name])), accuracy.classes[a], accuracy.classes[b], score)
        for name, a, b, score in chosen
    ]
    write_report(
        run,
        title=f"{config.recipe or 'training'} on {source.name}",
        config=config.to_json(),
        records=records,
        final=result,
        confusion=accuracy.confusion,
        classes=accuracy.classes,
        samples=samples,
        notes=source.notes,
    )


class _Quarantine:
    """The images that could not be used, by name and reason, in quarantine.txt; a resumed run adds to the list."""

    def __init__(self, run: Path):
        self.path = run / QUARANTINE
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.bad = {name: reason for name, _, reason in (line.partition("\t") for line in lines)}

    def watch(self, loader: TrainingLoader) -> Iterator[Batch]:
        """The loader's batches; each bad sample is listed as soon as it is met."""
        for batch in loader:
            if batch.bad:
                self.bad.update({each.id: each.reason for each in batch.bad})
                self.write()
            yield batch

    def write(self) -> None:
        text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(self.bad.items()))
        write_file(self.path, text_file(text), overwrite=True)
