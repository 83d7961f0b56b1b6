"""What fine-tuning begins with: a head solved on the features of the training images (linear probe, then fine-tune:
Kumar et al. 2022). One pass over the images gives the run a model that can be used, and later steps a start that does
not have to spoil the features first."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints import bundle
from vitrail.checkpoints.load import load
from vitrail.config import TrainConfig
from vitrail.data import Source, Split
from vitrail.data.loader import Batch, EvaluationLoader
from vitrail.errors import UserError
from vitrail.evaluation.features import Features, counted, extract, joined
from vitrail.models.build import Model
from vitrail.processes import Processes
from vitrail.random_stream import permutation
from vitrail.tasks import Meaning, task
from vitrail.tasks.base import Constants, FeatureSet, Head, LossSettings, Meter

PROBE = "probe"
"""The folder of a run that holds its bundle."""
BATCH = 32
"""Images at a time: the bar moves, and little memory is needed."""
SAMPLES = 50_000
"""Of more training images so many are used, drawn by the seed."""


@dataclass(frozen=True)
class Prober:
    """All that solving a run's first head needs, joined by `train.py`."""

    config: TrainConfig
    run: Path
    model: Model
    """It gets the head."""
    source: Source
    settings: LossSettings
    """Of the loss that the head is solved for."""
    save: Callable[[str, dict[str, Any], Constants], None]
    """Write the model, with its metrics and what its answers need, as a bundle into a folder of the run."""
    watch: Callable[[Iterable[Batch]], Iterator[Batch]]
    """List what cannot be read."""
    say: Callable[[str], None]

    def begin(self, training: Split, held_out: Split | None, processes: Processes) -> dict[str, Any]:
        """Give the model its head; returns the probe's numbers on the held-out split, {} where there is none, with the
        `constants` that its answers need, if any.

        The run can be used from here on: the bundle is written as `probe`, and before that as what a run is known by,
        so that one that was killed in between does it again. A run that has its probe reads it back.
        """
        if not processes.first_alone(lambda: bundle.is_bundle(self.run / PROBE)):
            result, how, constants = self._solve(training, held_out, processes)
            name = held_out.name if held_out else ""
            metrics: dict[str, Any] = {"head": how, **({name: result} if result else {})}
            self.save("best" if result else "bundle", metrics, constants)
            self.save(PROBE, metrics, constants)
            said = f"{self._meter.about(result, name)}, " if result else ""
            self.say(f"probe: {said}by {how}; {self.run / PROBE} can be used from now on")
        head, metrics, constants = processes.first_alone(self._read)
        self._put(*head)
        found = metrics.get(held_out.name, {}) if held_out else {}
        return {**found, "constants": constants} if found and constants else found

    def _solve(
        self, training: Split, held_out: Split | None, processes: Processes
    ) -> tuple[dict[str, Any], str, Constants]:
        known = training.known.nonzero()[0]
        if len(known) > SAMPLES:
            known = known[permutation(len(known), "probe", self.config.seed)[:SAMPLES]]
            known.sort()
        if not len(known):
            raise UserError(f"no image of {training.name} has a label, so there is nothing to learn from")
        began = time.monotonic()
        train = self._features(training.subset(known), processes)
        asked = self._features(held_out, processes) if held_out else None
        if not len(train):
            raise UserError(f"none of the {len(known):,} images of {training.name} can be read; see vitrail data check")
        count, seconds = len(train) + len(asked or ()), time.monotonic() - began
        self.say(f"features of {count:,} images in {seconds:.1f} s, {count / seconds:.0f} images/s")
        held = None if asked is None else _set(asked)
        head = processes.first_alone(lambda: self._head.solve(_set(train), held, self.settings))
        self._put(head.weight, head.bias)
        if asked is None or not len(asked):
            return {}, head.method, {}
        meter = self._meter(Meaning(self.source.classes, {}, self.settings.constants))
        meter.add(asked.ids, asked.targets, head.outputs(asked.values))
        result = meter.result()
        kept = {name: result[name] for name in ("n", *self._meter.chosen_by, "loss")}
        return {**kept, "skipped": asked.skipped}, head.method, meter.constants()

    @property
    def _head(self) -> Head:
        return task(self.source.task).head

    @property
    def _meter(self) -> type[Meter]:
        return task(self.source.task).meter

    def _features(self, split: Split, processes: Processes) -> Features:
        """Each process does its part; all get the whole, in the order of the split."""
        data = self.config.data
        loader = EvaluationLoader(
            split,
            self.config.preprocessing,
            batch_size=BATCH,
            workers=data.workers,
            max_pixels=data.max_pixels,
            rank=processes.rank,
            world_size=processes.count,
        )
        batches = counted(self.watch(loader), f"features of {split.name}", len(split) // processes.count)
        device = next(self.model.parameters()).device
        mine = processes.all_or_none(lambda: extract(self.model, batches if processes.first else loader, device))
        return mine if processes.count == 1 else joined(processes.gather(mine), split.ids)

    def _read(self) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any], Constants]:
        found = load(self.run / PROBE)
        assert isinstance(found.head, torch.nn.Linear)
        head = found.head.weight.detach(), found.head.bias.detach()
        return head, found.card.provenance["metrics"], found.card.constants

    @torch.no_grad()
    def _put(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        head = self.model.head
        assert isinstance(head, torch.nn.Linear)
        head.weight.copy_(weight)
        head.bias.copy_(bias)


def _set(found: Features) -> FeatureSet:
    return FeatureSet(found.values, found.targets)
