"""Measures the models of a run: on held-out samples in training, and what is kept at its end."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints.load import load
from vitrail.data import Split, match_classes
from vitrail.data.transforms import EvaluationTransform
from vitrail.evaluation import knn
from vitrail.evaluation.features import extract
from vitrail.evaluation.measure import measure
from vitrail.evaluation.report import read_samples
from vitrail.models.build import Model
from vitrail.probe import PROBE
from vitrail.random_stream import permutation
from vitrail.run import Run
from vitrail.tasks import Meaning, task
from vitrail.tasks.base import Meter
from vitrail.training import validation
from vitrail.training.learner import Learner
from vitrail.training.loop import Trainer
from vitrail.training.objectives import Illustration
from vitrail.training.report import RunReport, write_report

_NEIGHBOURS = 10_000
"""The largest number of training samples among which nearest neighbours are looked up."""
_SHOWN = 8
"""How many samples the picture of what was learned without labels shows."""


@dataclass
class Ended:
    """The measurements at the end of a run."""

    final: dict[str, Any]
    """The numbers, and the `split` they were measured on."""
    meter: Meter | None = None
    """The task's meter; None without labels."""
    shown: Illustration | None = None
    """What an objective without labels has learned, in pictures."""


@dataclass(frozen=True)
class RunEvaluation:
    """Measures the models of a run, in training and at its end."""

    run: Run

    def evaluate(self, learner: Learner) -> dict[str, Any]:
        """Measures the model on held-out samples, for the curves and to choose `best/`.

        Returns:
            The task's numbers, and under `constants` what its answers depend on and was found on these samples, if
                anything.
        """
        assert self.run.held_out is not None
        split = self.run.held_out
        if not learner.objective.labelled:
            return self.run.placement.processes.run_on_first(lambda: self._without_labels(learner, split))
        meter = self.measure(split, Meaning(self.run.source.classes, {}, self.run.settings.constants), learner.model)
        result, found = meter.result(), meter.constants()
        result = {
            name: value for name, value in result.items() if name != "per_class"
        }  # metrics.jsonl keeps what curves are drawn from
        return {**result, "constants": found} if found else result

    def measure(self, split: Split, meaning: Meaning, model: torch.nn.Module) -> Meter:
        """Measures a model on a split, every sample once; each process measures a part of it. meaning: of the model's
        outputs."""
        processes, asked = self.run.placement.processes, task(self.run.source.task)
        same = meaning.names == self.run.source.classes
        places = None if same else match_classes(meaning.names, self.run.source.classes)
        batches, empty = self.run.in_order(split, processes), asked.meter(meaning, places)
        mine = processes.run_on_all(lambda: measure(model, batches, empty, self.run.placement.device))
        return mine if processes.count == 1 else mine.of_all(processes.gather(mine), split.ids)

    def _without_labels(self, learner: Learner, split: Split) -> dict[str, Any]:
        """Measures the objective's loss, and the features by nearest neighbours."""
        objective, model, device = learner.objective, learner.model, self.run.placement.device
        result = validation.validate(objective, model, self.run.unlabelled(split), device, self.run.config.seed)
        return {**result, **self.neighbours(split, objective.encoder(model))}

    def neighbours(self, split: Split, encoder: Model) -> dict[str, float]:
        """Measures features by the accuracy of nearest neighbours among the training samples, `knn_top1`; {} if there
        are no classes."""
        if not task(self.run.source.task).target.single_class:
            return {}
        known, queries = self.run.training, split
        if len(known) > _NEIGHBOURS:
            known = known.subset(permutation(len(known), "neighbours", self.run.config.seed)[:_NEIGHBOURS])
        known, queries = (each.subset(each.known.nonzero()[0]) for each in (known, queries))
        if not len(known) or not len(queries):
            return {}
        train, test = (
            extract(encoder, self.run.in_order(each), self.run.placement.device) for each in (known, queries)
        )
        predicted = knn.classify(train.values, train.targets, test.values, num_classes=len(self.run.source.classes))
        return {"knn_top1": (predicted == test.targets).float().mean().item()}

    @property
    def last_split(self) -> Split:
        """Returns the split to report on: test, by which nothing was chosen, or else val or train."""
        splits = [self.run.source.splits[name] for name in ("test", "val", "train") if name in self.run.source.splits]
        return next(used for split in splits if len(used := self.run.used(split)))

    def measured(self, trainer: Trainer, probe: dict[str, Any] | None) -> Ended:
        """Measures the kept model, and the probe too if there is one, on the last split.

        Args:
            trainer: the loop, which has ended.
            probe: the numbers of the probe on held-out samples; {} if there are none, None without a probe.
        """
        final, meter = self._final(self.run.folder)
        if probe is not None:
            kept = not trainer.progress.best_step and (bool(probe) or not self.run.total)
            first = final if kept else self._final(self.run.folder / PROBE)[0]
            final |= {"kept": PROBE if kept else "fine-tuned", "probe": self.run.headline(first)}
        return Ended(final, meter)

    def _final(self, folder: Path) -> tuple[dict[str, Any], Meter]:
        """Measures a bundle of the run, loaded as a user would load it."""
        model = load(folder).to(self.run.placement.device)
        split = self.last_split
        meter = self.measure(split, model.card.meaning, model)
        return {"split": split.name, **meter.result()}, meter

    def ended(self, learner: Learner) -> Ended:
        """Measures a run without labels: the loss of the last weights, since a bundle has no objective, and the
        neighbours of the kept model."""
        return self.run.placement.processes.run_on_first(lambda: self._ended(learner))

    def _ended(self, learner: Learner) -> Ended:
        objective, model, device = learner.objective, learner.model, self.run.placement.device
        split, seed = self.last_split, self.run.config.seed
        result = validation.validate(objective, model, self.run.unlabelled(split), device, seed)
        near = self.neighbours(split, load(self.run.folder).to(device))
        some = split.subset(range(0, len(split), max(1, len(split) // _SHOWN))[:_SHOWN])
        batch = next(iter(self.run.in_order(some)))
        shown = validation.illustrate(objective, model, batch, device, seed) if len(batch) else None
        return Ended({"split": split.name, **result, **near}, shown=shown)

    def report(self, records: list[dict[str, Any]], ended: Ended) -> None:
        """Draws the pictures and writes the page of the run. records: the lines of metrics.jsonl."""
        page, stopped = None, ended.final.get("stopped")
        if ended.meter is not None:
            kind, meter = task(self.run.source.task).page, ended.meter
            transform = EvaluationTransform(self.run.config.preprocessing, max_pixels=self.run.config.data.max_pixels)
            pixels = read_samples(kind.chosen(meter), self.last_split, transform)
            page = kind(meter, meter.meaning.names, pixels)
        title = f"{self.run.config.recipe or 'training'} on {self.run.source.name}"
        notes = [*self.run.source.notes, *([stopped] if stopped else [])]
        write_report(
            self.run.folder, RunReport(title, self.run.config.to_json(), records, ended.final, page, notes, ended.shown)
        )
