"""A run: its data, its model and loss, its loaders, and what it saves."""

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.starting_model import StartingModel, starting_model
from vitrail.config import TrainConfig
from vitrail.config.model import QUERY_FIELDS
from vitrail.data import Source, Split, open_data, with_dev
from vitrail.data.evaluation_data import training_data
from vitrail.data.loader import Batch, EvaluationLoader, TrainingLoader
from vitrail.environment import restart_count
from vitrail.errors import UserError
from vitrail.models.build import Model, create
from vitrail.models.card import Card
from vitrail.probe import Prober
from vitrail.process_group import ProcessGroup
from vitrail.tasks import task
from vitrail.tasks.base import Constants, LossSettings
from vitrail.training import objectives
from vitrail.training.distributed import part_of_batch, synchronised_stream
from vitrail.training.introduction import introduction, obstacle
from vitrail.training.learner import Learner
from vitrail.training.loop import Evaluate, Trainer
from vitrail.training.memory import check_memory
from vitrail.training.objectives import objective_class
from vitrail.training.progress import Reporter, Silent, forget_after, say
from vitrail.training.run_folder import Quarantine, RunLock, exists, prepare_run, with_classes_of
from vitrail.training.snapshots import RunProgress
from vitrail.version import __version__


@dataclass(frozen=True)
class Placement:
    """The device that a run computes on, and the processes that take part."""

    device: torch.device
    processes: ProcessGroup


@dataclass(frozen=True)
class Run:
    """A run whose folder is open: its configuration, completed by its data, and everything that training is made of."""

    config: TrainConfig
    folder: Path
    """The run's folder."""
    resumed: bool
    """Whether the run goes on after an interruption."""
    source: Source
    placement: Placement
    part: int
    """How many samples of a batch this process computes."""
    start: StartingModel | None = None
    """The model that fine-tuning starts from, if it has been loaded already."""

    @classmethod
    def opened(
        cls,
        config: TrainConfig,
        lock: RunLock,
        resume: bool,
        placement: Placement,
        start: StartingModel | None = None,
    ) -> "Run":
        """Opens a run: reads its data, checks all that can be checked before the first step, and makes its folder or
        finds it unchanged.

        Args:
            config: the training.
            lock: holds the run's folder for this run.
            resume: whether the run exists and is to go on.
            placement: where it computes.
            start: the model that fine-tuning starts from, if it has been loaded already.
        """
        processes, folder = placement.processes, lock.run
        part = processes.run_on_all(lambda: part_of_batch(config, processes))
        processes.run_on_all(lambda: check_memory(config, placement.device, processes.count))
        source = processes.run_on_all(lambda: open_splits(config))
        processes.run_on_all(lambda: _check(config, source))
        # torchrun repeats the same command if a process has died: the run in the folder is then this job's own.
        resume = processes.run_on_first(lambda: resume or (restart_count() > 0 and exists(folder)))
        source = processes.run_on_all(lambda: with_classes_of(folder, source)) if resume else source
        config = processes.run_on_first(lambda: prepare_run(config, source, lock, resume))
        return cls(config, folder, resume, source, placement, part, start)

    @cached_property
    def training(self) -> Split:
        """Returns the samples that are learned from."""
        return self.used(self.source.split("train"))

    @cached_property
    def held_out(self) -> Split | None:
        """Returns the samples that are validated on; None if there are none."""
        split = self.source.splits.get("dev") or self.source.splits.get("val")
        return (self.used(split) or None) if split else None

    def used(self, split: Split) -> Split:
        """Returns the samples of a split that the objective can use: all of them, or those that have a target."""
        if not objective_class(self.config).labelled or split.known.all():
            return split
        return split.subset(split.known.nonzero()[0])

    @cached_property
    def quarantine(self) -> Quarantine:
        """Returns the list of images that cannot be used."""
        return Quarantine(self.folder, writes=self.placement.processes.first)

    @cached_property
    def settings(self) -> LossSettings:
        """Returns what the loss is made from. It depends on the configuration and the training split only, so a resumed
        run has the same."""
        config, asked = self.config, task(self.source.task)
        weights = None
        if config.class_weights != "none":
            training = self.training
            answers = (training.annotation(index) for index in range(len(training)))
            counted = answers if asked.target.in_pixels else training.targets
            weights = torch.from_numpy(asked.head.weights(counted, len(self.source.classes)))
        known = self.training.targets[self.training.known]
        smoothing, outputs = config.transform.label_smoothing, len(self.source.classes)
        constants = {**asked.target.constants(known), **asked.head.constants(config.objective)}
        return LossSettings(config.objective, outputs, weights, smoothing, constants)

    @cached_property
    def learner(self) -> Learner:
        """Returns the model and its objective."""
        return self.new_learner()

    def new_learner(self) -> Learner:
        """Makes the model and its objective as they are at the beginning: the same in every process."""
        config = self.config
        torch.manual_seed(config.seed)
        model = _model(config, self.start).to(self.placement.device)
        if config.freeze == "backbone":
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith("head"))
        weights = self.settings.weights
        settings = replace(self.settings, weights=None if weights is None else weights.float())
        return Learner(model, objectives.create_objective(config, model, settings).to(self.placement.device))

    @property
    def solvable(self) -> bool:
        """Whether the head is computed in closed form before the first step."""
        return self.config.head == "closed_form" and obstacle(self.config, self.learner.model) is None

    @property
    def total(self) -> int:
        """Returns the number of optimizer steps."""
        if self.solvable and self.config.freeze == "backbone":
            return 0
        return self.config.total_steps(len(self.training))

    def tell(self, text: str) -> None:
        """Shows a line to the user, in the first process only."""
        if self.placement.processes.first:
            say(text)

    def probed(self) -> dict[str, Any] | None:
        """Tells the user what is about to be done, and computes the head if it has a closed form.

        Returns:
            The numbers of that head on held-out samples: {} if there are none, None if the head has no closed form.
        """
        processes = self.placement.processes
        if processes.first:
            for line in introduction(self.config, self.source, self.learner.model, self.settings, self._place()):
                say(line)
        if not self.solvable:
            return None
        prober = Prober(
            config=self.config,
            run=self.folder,
            learner=self.learner,
            source=self.source,
            settings=self.settings,
            save=self.save,
            watch=self.quarantine.watch,
            say=self.tell,
        )
        return prober.begin(self.training, self.held_out, processes)

    def _place(self) -> str:
        """Writes how many steps there are, where, and in how many processes."""
        config, processes = self.config, self.placement.processes
        several = f", {processes.count} processes by {config.parallel}" if processes.count > 1 else ""
        return f"on {self.placement.device}{several}\n" + (
            f"{config.optimizer.name} lr {config.optimizer.lr:g}, batch {config.batch_size}, {self.total} steps"
            if self.total
            else "only the head learns, in closed form: no steps"
        )

    def trainer(self, probe: dict[str, Any] | None, evaluate: Evaluate) -> Trainer:
        """Makes the training loop.

        Args:
            probe: the numbers of the head in closed form, which the steps have to improve on.
            evaluate: measures the model on held-out samples.
        """
        trainer = Trainer(
            config=self.config,
            run=self.folder,
            learner=self.learner,
            total=self.total,
            batches=self.batches,
            evaluate=evaluate if self.held_out else None,
            keep_best=self.keep_best,
            epoch_samples=len(self.training),
            device=self.placement.device,
            processes=self.placement.processes,
            another=self.new_learner,
        )
        if probe:
            score = self.learner.objective.score(probe)
            trainer.progress = RunProgress(best=score, best_loss=probe["loss"])
        return trainer

    def reporter(self, trainer: Trainer) -> Reporter:
        """Opens what shows and records the steps; in all processes but the first it shows nothing."""
        if not self.placement.processes.first:
            return Silent()
        forget_after(self.folder, trainer.progress.step)
        meter = None if not self.learner.objective.labelled else task(self.source.task).meter
        return Reporter(self.folder, trainer.total, trainer.progress.step, meter, self.config.tensorboard)

    def batches(self, position: int) -> Iterator[Batch]:
        """Yields this process's part of every batch, from a position in the data on, without end."""
        limit = self.config.data.max_bad_fraction
        loader = self.loader(self.training, position, self.part, self.placement)
        return self.quarantine.watch(
            synchronised_stream(iter(loader), self.placement.processes, len(self.training), limit)
        )

    def loader(self, split: Split, position: int, part: int, placement: Placement) -> TrainingLoader:
        """Makes the loader of training batches.

        Args:
            split: the samples.
            position: how many samples to skip.
            part: samples in a batch.
            placement: where batches are needed.
        """
        config, processes = self.config, placement.processes
        return TrainingLoader(
            split,
            config.transform,
            config.preprocessing,
            batch_size=part,
            seed=config.seed,
            num_classes=len(self.source.classes),
            position=position,
            workers=config.data.workers,
            # The loader counts bad samples itself; those of several processes are counted together, elsewhere.
            max_bad=config.data.max_bad_fraction if processes.count == 1 else 1.0,
            max_pixels=config.data.max_pixels,
            views=objective_class(config).views(config),
            shuffle=config.data.shuffle,
            shuffle_buffer=config.data.shuffle_buffer,
            rank=processes.rank,
            world_size=processes.count,
            device=placement.device,
        )

    def in_order(self, split: Split, processes: ProcessGroup | None = None) -> EvaluationLoader:
        """Makes a loader that returns every sample of a split once; with several processes, this process's part of
        them."""
        data, processes = self.config.data, processes or ProcessGroup()
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
        """Yields every sample of a split once as an objective without labels needs it: with further views, if it has
        any."""
        if not objective_class(self.config).views(self.config):
            yield from self.in_order(split)
            return
        once = replace(self, config=self.config.with_(transform=replace(self.config.transform, repeats=1)))
        alone = Placement(torch.device("cpu"), ProcessGroup())
        for batch in once.loader(split, 0, once.config.batch_size, alone):
            spare = max(0, batch.position - len(split))
            yield batch.part(0, len(batch) - spare)
            if batch.position >= len(split):
                return

    def keep_best(self, best: Learner, result: dict[str, Any]) -> None:
        """Writes the best weights so far as `best/`."""
        metrics = {self.held_out.name if self.held_out else "": self.headline(result)}
        self.save("best", best, metrics, result.get("constants", {}))

    def headline(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns the numbers of a result that sum it up."""
        names = ("n", "skipped", *task(self.source.task).meter.headline, "knn_top1", "loss")
        return {name: result[name] for name in names if name in result}

    @cached_property
    def data(self) -> dict[str, Any]:
        """Returns what the model's card says of the data."""
        return training_data(self.source, self.config.data)

    def save(self, folder: str, learner: Learner, metrics: dict[str, Any], found: Constants) -> None:
        """Writes the model as a bundle into a folder of the run.

        Args:
            folder: the name of the folder.
            learner: the model and its objective.
            metrics: the numbers to keep with it.
            found: what its answers depend on and was found on held-out samples.
        """
        encoder = learner.objective.encoder(learner.model)
        self.placement.processes.run_on_first(lambda: self._save(encoder, self.folder / folder, metrics, found))

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
        if config.init_from:  # the origin of the weights it started from: hub, commit, digest, licence
            provenance["init_provenance"] = card.provenance
        names = tuple(self.source.classes) if model.config.num_classes else ()
        constants = {**self.settings.constants, **found} if names else {}
        model.card = Card(config.preprocessing, names, dict(card.label_descriptions), constants, provenance)
        bundle.save(model, folder, overwrite=True)
        model.card = card


def open_splits(config: TrainConfig) -> Source:
    """Opens the data of a training.

    If the head is computed in closed form, `best/` is chosen between that head and the fine-tuned model. The samples
    for this choice are then set aside as a split of their own, so that it is never made on the samples that are
    reported.
    """
    source = open_data(config.data)
    return with_dev(source, config.data.val_fraction, config.data.split_seed) if config.head != "zero" else source


def _check(config: TrainConfig, source: Source) -> None:
    """Raises a UserError for data that the configuration cannot learn from."""
    if objective_class(config).labelled:
        source.check_labelled("train")
    if config.patience and not (source.splits.get("dev") or source.splits.get("val")):
        raise UserError("--patience needs a validation split to tell what is better: give --data.val-fraction 0.1")


def _model(config: TrainConfig, start: StartingModel | None = None) -> Model:
    """Makes the model: new, or with the weights that fine-tuning starts from."""
    if not config.init_from:
        return create(config.model)
    model = starting_model(config, start).take(config)
    own = ("task", "pooling", "dropout", "attention_dropout", "drop_path", "patch_dropout", "gradient_checkpointing")
    own += QUERY_FIELDS
    # The same weights in modules with the dropout, and the checkpointing, of the new configuration.
    fresh = create(model.config.with_(**{name: getattr(config.model, name) for name in own}))
    weights = model.state_dict()
    if any(getattr(fresh.config, name) != getattr(model.config, name) for name in ("pooling", *QUERY_FIELDS)):
        # A head that reads something else begins anew.
        heads = {name: tensor for name, tensor in fresh.state_dict().items() if name.startswith("head")}
        weights = {**{name: tensor for name, tensor in weights.items() if not name.startswith("head")}, **heads}
        if fresh.config.query_tokens:
            fresh_head = f"the head is new: {fresh.config.queries} queries, at random"
            model.card.notes = [*(note for note in model.card.notes if "the head is" not in note), fresh_head]
    fresh.load_state_dict(weights)
    fresh.card = model.card
    return fresh
