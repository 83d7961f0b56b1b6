"""The head that fine-tuning begins with, computed in closed form from the features of the training images.

A run has a model that can be used after one pass over its images. Later steps begin with a head that is right already,
and so need not distort the features first (linear probing, then fine-tuning: Kumar and others, 2022).
"""

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
from vitrail.evaluation.features import Features, counted, extract, join_features
from vitrail.evaluation.measure import measure
from vitrail.process_group import ProcessGroup
from vitrail.random_stream import permutation
from vitrail.tasks import Meaning, task
from vitrail.tasks.base import Constants, FeatureSet, Head, LossSettings, Meter
from vitrail.training.learner import Learner

PROBE = "probe"
"""The folder of a run that holds the model with this head."""
_BATCH = 32
"""Images at a time: few, so that the bar moves often and little memory is needed."""
_SAMPLES = 50_000
"""The largest number of training images that are used; of more, some are drawn by the seed."""
_VALUES = 400_000_000
"""The largest number of values that their features may have together: 1.6 GB of them."""


@dataclass(frozen=True)
class Prober:
    """Computes the head that a run begins with; `run.py` makes it."""

    config: TrainConfig
    run: Path
    """The run's folder."""
    learner: Learner
    """The model, which gets the head, and its objective."""
    source: Source
    settings: LossSettings
    """What the loss is made from that the head is to be good for."""
    save: Callable[[str, Learner, dict[str, Any], Constants], None]
    """Writes a model as a bundle: (name of a folder of the run, the model, metrics, what its answers depend on)."""
    watch: Callable[[Iterable[Batch]], Iterator[Batch]]
    """Lists images that cannot be read, while batches pass through."""
    say: Callable[[str], None]
    """Shows a line to the user."""

    def begin(self, training: Split, held_out: Split | None, processes: ProcessGroup) -> dict[str, Any]:
        """Gives the model its head.

        From here on the run can be used. The bundle `probe` is written last, so a run that was killed before does
        everything again. A run that has its probe reads it back.

        Args:
            training: the samples to learn from.
            held_out: the samples to measure the head on; None if there are none.
            processes: the processes that share the images.

        Returns:
            The head's numbers on the held-out samples, with the `constants` that its answers depend on, if any; {} if
                there are no such samples.
        """
        if not processes.run_on_first(lambda: bundle.is_bundle(self.run / PROBE)):
            result, how, constants = self._solve(training, held_out, processes)
            name = held_out.name if held_out else ""
            metrics: dict[str, Any] = {"head": how, **({name: result} if result else {})}
            self.save("best" if result else "bundle", self.learner, metrics, constants)
            self.save(PROBE, self.learner, metrics, constants)
            accuracy = f"{self._meter.about(result, name)}, " if result else ""
            self.say(f"probe: {accuracy}by {how}; {self.run / PROBE} can be used from now on")
        head, metrics, constants = processes.run_on_first(self._read)
        self._put(*head)
        found = metrics.get(held_out.name, {}) if held_out else {}
        return {**found, "constants": constants} if found and constants else found

    def _solve(
        self, training: Split, held_out: Split | None, processes: ProcessGroup
    ) -> tuple[dict[str, Any], str, Constants]:
        """Computes the head; returns its numbers on the held-out samples, how it was computed, and what its answers
        depend on."""
        known = training.known.nonzero()[0]
        most = min(_SAMPLES, _VALUES // self._values)
        if len(known) > most:
            known = known[permutation(len(known), "probe", self.config.seed)[:most]]
            known.sort()
        if not len(known):
            raise UserError(f"no image of {training.name} has a label, so there is nothing to learn from")
        began = time.monotonic()
        train = self._features(training.subset(known), processes)
        in_pixels = task(self.source.task).target.in_pixels
        # Answers in pixels are measured picture by picture, by the whole model: their features would fill the memory.
        tested = self._features(held_out, processes) if held_out and not in_pixels else None
        if not len(train):
            raise UserError(f"none of the {len(known):,} images of {training.name} can be read; see vitrail data check")
        count, seconds = len(train) + len(tested or ()), time.monotonic() - began
        self.say(f"features of {count:,} images in {seconds:.1f} s, {count / seconds:.0f} images/s")
        held = None if tested is None else _set(tested)
        head = processes.run_on_first(lambda: self._head.solve(_set(train), held, self.settings))
        self._put(head.weight, head.bias)
        meter = self._meter(Meaning(self.source.classes, {}, self.settings.constants))
        if in_pixels and held_out:
            meter = self._measured(meter, held_out, processes)
        elif tested is not None and len(tested):
            meter.add(tested.ids, tested.targets, head.outputs(tested.values))
            meter.skipped = tested.skipped
        if not meter.n:
            return {}, head.method, {}
        result = meter.result()
        kept = {name: result[name] for name in ("n", *self._meter.chosen_by, "loss")}
        return {**kept, "skipped": meter.skipped}, head.method, meter.constants()

    def _measured(self, meter: Meter, split: Split, processes: ProcessGroup) -> Meter:
        """Measures the model with its head on a split, each process a part of it."""
        loader = self._loader(split, processes)
        batches = counted(self.watch(loader), f"measuring on {split.name}", len(split) // processes.count)
        device = next(self.learner.model.parameters()).device
        mine = processes.run_on_all(
            lambda: measure(self.learner.model, batches if processes.first else loader, meter, device)
        )
        return mine if processes.count == 1 else mine.of_all(processes.gather(mine), split.ids)

    @property
    def _values(self) -> int:
        """Returns the number of values that the head is given of one image."""
        config = self.learner.model.config
        width = config.representation_size or config.width
        return width * (config.grid[0] * config.grid[1] if config.pooling == "patches" else 1)

    @property
    def _head(self) -> Head:
        return task(self.source.task).head

    @property
    def _meter(self) -> type[Meter]:
        return task(self.source.task).meter

    def _features(self, split: Split, processes: ProcessGroup) -> Features:
        """Computes the features of a split. Each process computes a part, and all get the whole, in the order of the
        split."""
        loader = self._loader(split, processes)
        batches = counted(self.watch(loader), f"features of {split.name}", len(split) // processes.count)
        device = next(self.learner.model.parameters()).device
        mine = processes.run_on_all(lambda: extract(self.learner.model, batches if processes.first else loader, device))
        return mine if processes.count == 1 else join_features(processes.gather(mine), split.ids)

    def _loader(self, split: Split, processes: ProcessGroup) -> EvaluationLoader:
        """Makes a loader of this process's part of a split."""
        data = self.config.data
        return EvaluationLoader(
            split,
            self.config.preprocessing,
            batch_size=_BATCH,
            workers=data.workers,
            max_pixels=data.max_pixels,
            rank=processes.rank,
            world_size=processes.count,
        )

    def _read(self) -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, Any], Constants]:
        """Reads the probe back: its head as (weight, bias), its metrics, and what its answers depend on."""
        found = load(self.run / PROBE)
        assert isinstance(found.head, torch.nn.Linear)
        head = found.head.weight.detach(), found.head.bias.detach()
        return head, found.card.provenance["metrics"], found.card.constants

    @torch.no_grad()
    def _put(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Copies a head into the model."""
        head = self.learner.model.head
        assert isinstance(head, torch.nn.Linear)
        head.weight.copy_(weight)
        head.bias.copy_(bias)


def _set(found: Features) -> FeatureSet:
    return FeatureSet(found.values, found.targets)
