"""A run, opened: its data, its model and loss, its loaders, what it measures and what it saves."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.load import load
from vitrail.config import TrainConfig
from vitrail.data import Source, Split, match_classes, open_data, with_dev
from vitrail.data.loader import Batch, EvaluationLoader, TrainingLoader
from vitrail.data.measured import training_data
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.evaluation import knn
from vitrail.evaluation.features import extract
from vitrail.evaluation.measure import measure
from vitrail.evaluation.report import read_samples
from vitrail.launched import starts
from vitrail.models.build import Model, create
from vitrail.models.card import Card
from vitrail.probe import PROBE, Prober
from vitrail.processes import Processes
from vitrail.random_stream import permutation
from vitrail.tasks import Meaning, task
from vitrail.tasks.base import Constants, LossSettings, Meter
from vitrail.training import objectives, validation
from vitrail.training.distributed import part_of_batch, together
from vitrail.training.introduction import introduction, obstacle
from vitrail.training.learner import Learner
from vitrail.training.loop import Trainer
from vitrail.training.memory import check_memory
from vitrail.training.objectives import Illustration, objective_class
from vitrail.training.progress import Reporter, Silent, forget_after, say
from vitrail.training.report import Told, write_report
from vitrail.training.run_folder import Quarantine, exists, prepare, with_classes_of
from vitrail.training.snapshots import Progress
from vitrail.version import __version__

NEIGHBOURS = 10_000
"""Of so many training samples at most, neighbours are looked up when there is no head to measure."""
SHOWN = 8
"""Samples in the picture of what was learned without labels."""


@dataclass(frozen=True)
class Company:
    """Where a run computes, and with whom."""

    device: torch.device
    processes: Processes


@dataclass
class Ended:
    """What was measured at the end."""

    final: dict[str, Any]
    meter: Meter | None = None
    shown: Illustration | None = None


@dataclass(frozen=True)
class Run:
    """A run, opened: its configuration resolved by its data, and what every part of it is made of."""

    config: TrainConfig
    folder: Path
    resumed: bool
    source: Source
    company: Company
    part: int
    """Samples of a batch that this process takes."""

    @classmethod
    def opened(cls, config: TrainConfig, folder: Path, resume: bool, company: Company) -> "Run":
        """Open the data, check what can be checked before the first step, and begin the folder or find it as it was."""
        processes = company.processes
        part = processes.all_or_none(lambda: part_of_batch(config, processes))
        processes.all_or_none(lambda: check_memory(config, company.device, processes.count))
        source = processes.all_or_none(lambda: open_splits(config))
        processes.all_or_none(lambda: _check(config, source))
        # torchrun repeats the command word for word when a process has died: then the run there is the job's own.
        resume = processes.first_alone(lambda: resume or (starts() > 0 and exists(folder)))
        source = with_classes_of(folder, source) if resume else source
        config = processes.first_alone(lambda: prepare(config, source, folder, resume))
        return cls(config, folder, resume, source, company, part)

    @cached_property
    def training(self) -> Split:
        """The samples that are learned from."""
        return self._used(self.source.split("train"))

    @cached_property
    def held_out(self) -> Split | None:
        """The samples that are validated on."""
        split = self.source.splits.get("dev") or self.source.splits.get("val")
        return (self._used(split) or None) if split else None

    def _used(self, split: Split) -> Split:
        """Gives the samples of a split that the objective can use: all, or those that have a target."""
        if not objective_class(self.config).labelled or split.known.all():
            return split
        return split.subset(split.known.nonzero()[0])

    @cached_property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.folder, writes=self.company.processes.first)

    @cached_property
    def settings(self) -> LossSettings:
        """Of the loss; told by the configuration and the training split, so that a resumed run has the same."""
        config, asked = self.config, task(self.source.task)
        weights = None
        if config.class_weights != "none":
            weights = torch.from_numpy(asked.head.weights(self.training.targets, len(self.source.classes)))
        known = self.training.targets[self.training.known]
        smoothing, outputs = config.transform.label_smoothing, len(self.source.classes)
        constants = {**asked.target.constants(known), **asked.head.constants(config.objective)}
        return LossSettings(config.objective, outputs, weights, smoothing, constants)

    @cached_property
    def learner(self) -> Learner:
        return self.new_learner()

    def new_learner(self) -> Learner:
        """Make the model and its objective as they are at the beginning: the same in every process."""
        config = self.config
        torch.manual_seed(config.seed)
        model = _model(config).to(self.company.device)
        if config.freeze == "backbone":
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith("head"))
        weights = self.settings.weights
        settings = replace(self.settings, weights=None if weights is None else weights.float())
        return Learner(model, objectives.create(config, model, settings).to(self.company.device))

    @property
    def solvable(self) -> bool:
        """Whether the head is solved before the first step."""
        return self.config.head == "closed_form" and obstacle(self.config, self.learner.model) is None

    @property
    def total(self) -> int:
        """Steps."""
        if self.solvable and self.config.freeze == "backbone":
            return 0
        return self.config.total_steps(len(self.training))

    def tell(self, text: str) -> None:
        """A line for the person, by the process that speaks."""
        if self.company.processes.first:
            say(text)

    def probed(self) -> dict[str, Any] | None:
        """Say what is about to be done, and solve the head where there is a closed form.

        Returns the numbers of that head on held-out samples: {} where there are none; None without a closed form.
        """
        processes = self.company.processes
        if processes.first:
            for line in introduction(self.config, self.source, self.learner.model, self.settings, self._place()):
                say(line)
        if not self.solvable:
            return None
        prober = Prober(
            config=self.config,
            run=self.folder,
            model=self.learner.model,
            source=self.source,
            settings=self.settings,
            save=lambda folder, metrics, constants: self.save(folder, self.learner, metrics, constants),
            watch=self.quarantine.watch,
            say=self.tell,
        )
        return prober.begin(self.training, self.held_out, processes)

    def _place(self) -> str:
        """Says how many steps, where, and in how many processes."""
        config, processes = self.config, self.company.processes
        several = f", {processes.count} processes by {config.parallel}" if processes.count > 1 else ""
        return f"on {self.company.device}{several}\n" + (
            f"{config.optimizer.name} lr {config.optimizer.lr:g}, batch {config.batch_size}, {self.total} steps"
            if self.total
            else "only the head learns, in closed form: no steps"
        )

    def trainer(self, probe: dict[str, Any] | None) -> Trainer:
        """Make the loop. `probe`: what its steps have to do better than."""
        trainer = Trainer(
            config=self.config,
            run=self.folder,
            learner=self.learner,
            total=self.total,
            batches=self.batches,
            evaluate=self.evaluate if self.held_out else None,
            keep_best=self.keep_best,
            epoch_samples=len(self.training),
            device=self.company.device,
            processes=self.company.processes,
            another=self.new_learner,
        )
        if probe:
            score = self.learner.objective.score(probe)
            trainer.progress = Progress(best=score, best_loss=probe["loss"])
        return trainer

    def reporter(self, trainer: Trainer) -> Reporter:
        """Open what shows and records the steps: in one process alone."""
        if not self.company.processes.first:
            return Silent()
        forget_after(self.folder, trainer.progress.step)
        meter = None if not self.learner.objective.labelled else task(self.source.task).meter
        return Reporter(self.folder, trainer.total, trainer.progress.step, meter, self.config.tensorboard)

    def batches(self, position: int) -> Iterator[Batch]:
        """Give this process's part of every batch from a position in the data on, without end."""
        limit = self.config.data.max_bad_fraction
        loader = self.loader(self.training, position, self.part, self.company)
        return self.quarantine.watch(together(iter(loader), self.company.processes, len(self.training), limit))

    def loader(self, split: Split, position: int, part: int, company: Company) -> TrainingLoader:
        config, processes = self.config, company.processes
        return TrainingLoader(
            split,
            config.transform,
            config.preprocessing,
            batch_size=part,
            seed=config.seed,
            num_classes=len(self.source.classes),
            position=position,
            workers=config.data.workers,
            # Alone it counts bad samples itself; over several processes they are counted together.
            max_bad=config.data.max_bad_fraction if processes.count == 1 else 1.0,
            max_pixels=config.data.max_pixels,
            views=objective_class(config).views(config),
            shuffle=config.data.shuffle,
            shuffle_buffer=config.data.shuffle_buffer,
            rank=processes.rank,
            world_size=processes.count,
            device=company.device,
        )

    def in_order(self, split: Split, processes: Processes | None = None) -> EvaluationLoader:
        """Give every sample of a split once; over several processes, this one's part of them."""
        data, processes = self.config.data, processes or Processes()
        return EvaluationLoader(
            split,
            self.config.preprocessing,
            batch_size=256,
            workers=data.workers,
            max_pixels=data.max_pixels,
            rank=processes.rank,
            world_size=processes.count,
        )

    def unlabelled(self, split: Split) -> Iterable[Batch]:
        """Give every sample once, as an objective without labels needs it: with its further views, if it has any."""
        if not objective_class(self.config).views(self.config):
            yield from self.in_order(split)
            return
        once = replace(self, config=self.config.with_(transform=replace(self.config.transform, repeats=1)))
        alone = Company(torch.device("cpu"), Processes())
        for batch in once.loader(split, 0, once.config.batch_size, alone):
            spare = max(0, batch.position - len(split))
            yield batch.part(0, len(batch) - spare)
            if batch.position >= len(split):
                return

    def evaluate(self, learner: Learner) -> dict[str, Any]:
        """Measure on held-out samples, for the curves and to choose `best/`; with the `constants` found on them, where
        the task's answers need any."""
        assert self.held_out is not None
        split = self.held_out
        if not learner.objective.labelled:
            return self.company.processes.first_alone(lambda: self._without_labels(learner, split))
        meter = self.measure(split, Meaning(self.source.classes, {}, self.settings.constants), learner.model)
        result, found = meter.result(), meter.constants()
        result = {name: value for name, value in result.items() if name != "per_class"}  # metrics.jsonl is for curves
        return {**result, "constants": found} if found else result

    def measure(self, split: Split, meaning: Meaning, model: torch.nn.Module) -> Meter:
        """Measure a model, each process its part of the split, every sample once. meaning: of the model's outputs."""
        processes, asked = self.company.processes, task(self.source.task)
        same = meaning.names == self.source.classes
        places = None if same else match_classes(meaning.names, self.source.classes)
        batches, empty = self.in_order(split, processes), asked.meter(meaning, places)
        mine = processes.all_or_none(lambda: measure(model, batches, empty, self.company.device))
        return mine if processes.count == 1 else mine.of_all(processes.gather(mine), split.ids)

    def _without_labels(self, learner: Learner, split: Split) -> dict[str, Any]:
        objective, model, device = learner.objective, learner.model, self.company.device
        result = validation.measure(objective, model, self.unlabelled(split), device, self.config.seed)
        return {**result, **self.neighbours(split, objective.encoder(model))}

    def neighbours(self, split: Split, encoder: Model) -> dict[str, float]:
        """How good features are with nothing trained on them; nothing where there are no classes."""
        if not task(self.source.task).target.single_class:
            return {}
        known, asked = self.training, split
        if len(known) > NEIGHBOURS:
            known = known.subset(permutation(len(known), "neighbours", self.config.seed)[:NEIGHBOURS])
        known, asked = (each.subset(each.known.nonzero()[0]) for each in (known, asked))
        if not len(known) or not len(asked):
            return {}
        train, queries = (extract(encoder, self.in_order(each), self.company.device) for each in (known, asked))
        said = knn.classify(train.values, train.targets, queries.values, num_classes=len(self.source.classes))
        return {"knn_top1": (said == queries.targets).float().mean().item()}

    def keep_best(self, best: Learner, result: dict[str, Any]) -> None:
        """Write the best weights so far as `best/`."""
        metrics = {self.held_out.name if self.held_out else "": self.headline(result)}
        self.save("best", best, metrics, result.get("constants", {}))

    def headline(self, result: dict[str, Any]) -> dict[str, Any]:
        """The numbers that stand for a result."""
        names = ("n", "skipped", *task(self.source.task).meter.headline, "knn_top1", "loss")
        return {name: result[name] for name in names if name in result}

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the model's card says of the data."""
        return training_data(self.source, self.config.data)

    def save(self, folder: str, learner: Learner, metrics: dict[str, Any], found: Constants) -> None:
        """Write what was learned as a bundle into a folder of the run; its card says where it came from. found: what
        held-out samples say that the model's answers need."""
        encoder = learner.objective.encoder(learner.model)
        self.company.processes.first_alone(lambda: self._save(encoder, self.folder / folder, metrics, found))

    def _save(self, model: Model, folder: Path, metrics: dict[str, Any], found: Constants) -> None:
        config, card = self.config, model.card
        provenance = {
            "recipe": config.recipe,
            "seed": config.seed,
            "init_from": config.init_from,
            "versions": {"vitrail": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "data": self.data,
            "metrics": metrics,
        }
        if config.init_from:  # where the weights it started from came from: hub, commit, digest, licence
            provenance["init_provenance"] = card.provenance
        names = tuple(self.source.classes) if model.config.num_classes else ()
        constants = {**self.settings.constants, **found} if names else {}
        model.card = Card(config.preprocessing, names, dict(card.label_descriptions), constants, provenance)
        bundle.save(model, folder, overwrite=True)
        model.card = card

    @property
    def last_split(self) -> Split:
        """The split that nobody has chosen by, or the nearest to it."""
        splits = [self.source.splits[name] for name in ("test", "val", "train") if name in self.source.splits]
        return next(used for split in splits if len(used := self._used(split)))

    def measured(self, trainer: Trainer, probe: dict[str, Any] | None) -> Ended:
        """Measure the kept model, and the probe beside it, on the split nobody looked at."""
        final, meter = self._final(self.folder)
        if probe is not None:
            kept = not trainer.progress.best_step and (bool(probe) or not self.total)
            first = final if kept else self._final(self.folder / PROBE)[0]
            final |= {"kept": PROBE if kept else "fine-tuned", "probe": self.headline(first)}
        return Ended(final, meter)

    def _final(self, folder: Path) -> tuple[dict[str, Any], Meter]:
        """A bundle of the run, loaded as a user would."""
        model = load(folder).to(self.company.device)
        split = self.last_split
        meter = self.measure(split, model.card.meaning, model)
        return {"split": split.name, **meter.result()}, meter

    def ended(self, learner: Learner) -> Ended:
        """Measure the loss of the last weights, since a bundle has no objective; neighbours by the kept model."""
        return self.company.processes.first_alone(lambda: self._ended(learner))

    def _ended(self, learner: Learner) -> Ended:
        objective, model, device = learner.objective, learner.model, self.company.device
        split, seed = self.last_split, self.config.seed
        result = validation.measure(objective, model, self.unlabelled(split), device, seed)
        near = self.neighbours(split, load(self.folder).to(device))
        some = split.subset(range(0, len(split), max(1, len(split) // SHOWN))[:SHOWN])
        batch = next(iter(self.in_order(some)))
        shown = validation.illustrate(objective, model, batch, device, seed) if len(batch) else None
        return Ended({"split": split.name, **result, **near}, shown=shown)

    def report(self, records: list[dict[str, Any]], ended: Ended) -> None:
        """Draw the pictures and the page."""
        page, stopped = None, ended.final.get("stopped")
        if ended.meter is not None:
            kind, meter = task(self.source.task).page, ended.meter
            transform = EvaluationTransform(self.config.preprocessing, max_pixels=self.config.data.max_pixels)
            pixels = read_samples(kind.chosen(meter), self.last_split, transform)
            page = kind(meter, meter.meaning.names, pixels)
        title = f"{self.config.recipe or 'training'} on {self.source.name}"
        notes = [*self.source.notes, *([stopped] if stopped else [])]
        write_report(self.folder, Told(title, self.config.to_json(), records, ended.final, page, notes, ended.shown))


def open_splits(config: TrainConfig) -> Source:
    """The data. Where the head is solved, `best/` is chosen between that and what fine-tuning makes of it: never on
    the samples that are reported."""
    source = open_data(config.data)
    return with_dev(source, config.data.val_fraction, config.data.split_seed) if config.head != "zero" else source


def _check(config: TrainConfig, source: Source) -> None:
    if objective_class(config).labelled:
        source.check_labelled("train")
    if config.patience and not (source.splits.get("dev") or source.splits.get("val")):
        raise UserError("--patience needs a validation split to tell what is better: give --data.val-fraction 0.1")


def _model(config: TrainConfig) -> Model:
    if not config.init_from:
        return create(config.model)
    model = load(
        config.init_from,
        num_classes=config.model.num_classes,
        image_size=config.model.image_size,
        preprocessing=config.preprocessing,
    )
    own = ("task", "dropout", "attention_dropout", "drop_path", "patch_dropout", "gradient_checkpointing")
    # The same weights in modules that drop, activations too, as the new configuration says.
    fresh = create(model.config.with_(**{name: getattr(config.model, name) for name in own}))
    fresh.load_state_dict(model.state_dict())
    fresh.card = model.card
    return fresh
