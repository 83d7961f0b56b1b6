"""The training loop. Pre-training, fine-tuning and linear probes differ in what they pass to it, not in code.

A step is a function of weights, optimizer, seed and step: the batch follows from the position in the data, dropout and
masks from the seed and the step. No other state has to be stored, and a run that was killed and resumed ends in the
same bits.
"""

import gc
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.config import TrainConfig
from vitrail.data.loader import Batch
from vitrail.errors import UserError, first_line
from vitrail.process_group import ProcessGroup
from vitrail.training import distributed, snapshots
from vitrail.training.interruption import Interrupted, interruptible
from vitrail.training.learner import Learner
from vitrail.training.objectives.base import Moment
from vitrail.training.optimizer import Average, build_optimizer, clip, set_learning_rate
from vitrail.training.progress import Reporter
from vitrail.training.schedule import learning_rate
from vitrail.training.snapshots import RunProgress, Window

Evaluate = Callable[[Learner], dict[str, Any]]
"""Measures a model on the validation split: top1, loss, n and so on. The keys that the objective's `score` reads must
be among them."""


@dataclass
class Trainer:
    """Everything that a run needs; `train.py` puts it together."""

    config: TrainConfig
    run: Path
    learner: Learner
    """The model and its objective."""
    total: int
    """Optimizer steps of the whole run."""
    batches: Callable[[int], Iterator[Batch]]
    """Yields batches without end, from a position in the data on, which is counted in samples."""
    evaluate: Evaluate | None
    """Measures the model on the validation split; None if there is none."""
    keep_best: Callable[[Learner, dict[str, Any]], None]
    """Called with the model and its result whenever a validation was the best so far."""
    epoch_samples: int
    """Samples in one pass over the training split."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    """The processes that take each step together."""
    another: Callable[[], Learner] | None = None
    """Makes a learner of the same shapes. Needed where each process holds only a part of the weights: they are gathered
    in it to be measured and kept."""

    def __post_init__(self) -> None:
        self.model, self.objective = self.learner.model, self.learner.objective
        self.objective.processes = self.processes
        model = torch.compile(self.model) if self.config.compile else self.model
        step = distributed.Step(model, self.objective)
        self.stepper: nn.Module | None = distributed.wrapped(step, self.config, self.processes)
        self.optimizer = build_optimizer(self.learner, self.model.config, self.config.optimizer)
        self.average = Average(self.learner, self.config.ema) if self.config.ema else None
        self.progress = RunProgress()
        self.began, self.earlier = time.monotonic(), 0.0
        often = self.config.evaluate_every or max(1, self.total // 10)
        self.evaluate_every, self.snapshot_every = often, self.config.snapshot_every or often
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16")
        self.writer = None
        if self.processes.count > 1:
            from vitrail.training.sharded import SnapshotWriter

            self.writer = SnapshotWriter(self.folder, self.processes)

    @property
    def folder(self) -> Path:
        """Returns the folder of the snapshots."""
        return self.run / "snapshots"

    def resume(self) -> list[str]:
        """Restores the newest snapshot that is whole, and returns what to tell the user."""
        state = self.learner, self.optimizer, self.average
        if self.processes.count == 1:
            found = snapshots.read_snapshot(self.folder)
        else:
            from vitrail.training.sharded import read_into

            progress, snapshot, notes = self.processes.run_on_first(lambda: snapshots.newest(self.folder))
            found = progress and (progress, read_into(snapshot, snapshots.blank(*state)), notes)
        if found is None:
            return ["no snapshot yet: starting from the beginning"]
        self.progress, tensors, notes = found
        self.earlier = self.progress.seconds
        try:
            snapshots.unpack(tensors, *state)
            if self.progress.loss_scale:
                self.scaler.load_state_dict(self.progress.loss_scale)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.folder}: the snapshot does not fit this run: {first_line(error)}") from error
        last = self.progress.position - self.config.batch_size
        self._begin(max(self.progress.step - 1, 0), max(last, 0))  # as at the beginning of the last step that was done
        if self.progress.threads != torch.get_num_threads():
            notes.append(
                f"the run used {self.progress.threads} threads, now there are {torch.get_num_threads()}: the result "
                "will be as good, but not the same to the last bit"
            )
        return [*notes, f"resuming after step {self.progress.step} of {self.total}"]

    def fit(self, reporter: Reporter) -> None:
        """Takes the steps that are left. However it ends, the last snapshot is on disk before it returns or raises."""
        try:
            self._fit(reporter)
        except (UserError, Interrupted):
            self.finish_writing()
            raise
        else:
            self.finish_writing()
        finally:
            self.stepper = None
            if self.processes.count > 1:
                # DDP must be freed before its connections are closed: otherwise its destructor can wait for ever.
                gc.collect()

    def _fit(self, reporter: Reporter) -> None:
        """Takes the steps that are left, with evaluations, records and snapshots between them."""
        batches = self.batches(self.progress.position)
        meter = StepAverages(self.progress.window)
        with interruptible(speaks=self.processes.first) as interrupted:
            while self.progress.step < self.total and not self.stopped_early:
                numbers = self.step(batches)
                meter.add(numbers)
                done, stop = self.progress.step, self.processes.max(interrupted[0] if interrupted else 0)
                if done % self.config.log_every == 0 or done == self.total:
                    reporter.record(meter.record(done, self.progress.position / self.epoch_samples))
                reporter.step(done, numbers)
                if self.evaluate is not None and (done % self.evaluate_every == 0 or done == self.total):
                    self.processes.run_on_first(reporter.check_folder)
                    self._evaluate(reporter)
                    meter.restart()
                ended = done == self.total or self.stopped_early
                if done % self.snapshot_every == 0 or ended or stop:
                    self.processes.run_on_first(reporter.check_folder)
                    self.progress.window = meter.window
                    self.save()
                if stop and not ended:
                    raise Interrupted(stop)

    @property
    def stopped_early(self) -> bool:
        """Whether as many evaluations in a row as the configuration's `patience` were no better than the best."""
        patience = self.config.patience
        return bool(patience) and self.progress.step < self.total and self.progress.without_better >= patience

    def why_it_stopped(self) -> str:
        """Writes for the user why the run stopped before its last step."""
        progress = self.progress
        best = f"step {progress.best_step}" if progress.best_step else "what the run began with"
        return (
            f"stopped at step {progress.step} of {self.total}: {progress.without_better} evaluations in a row were no "
            f"better than that of {best} (--patience {self.config.patience})"
        )

    def step(self, batches: Iterator[Batch]) -> dict[str, Any]:
        """Takes one optimizer step, and returns its numbers: loss, learning rate, gradient norm, seconds and so on."""
        step, config = self.progress.step, self.config
        torch.manual_seed(step_seed(config.seed, step, self.processes.rank))
        self.learner.train()
        self._begin(step, self.progress.position)
        rate = learning_rate(step, self.total, config.optimizer, config.schedule)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        waited = time.perf_counter()
        batch = next(batches)
        started = time.perf_counter()
        loss, measures = self._backward(batch, step)
        self.objective.before_update()
        self.scaler.unscale_(self.optimizer)
        norm = float(clip(self.learner.parameters(), config.optimizer.clip))
        wrong = not math.isfinite(norm) and not self.scaler.is_enabled()
        self.processes.raise_if_any(self._not_finite("gradient", norm, step, batch) if wrong else None)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.objective.after_update(self.model)
        self.progress.step, self.progress.position = step + 1, batch.position
        self.progress.loss_scale = self.scaler.state_dict()
        if self.average is not None:
            self.average.update(self.learner, step + 1)
        return {
            "loss": loss,
            "measures": measures,
            "count": len(batch) * self.processes.count,
            "lr": rate,
            "gradient_norm": norm,
            "waited": started - waited,
            "seconds": time.perf_counter() - waited,
        }

    def _begin(self, step: int, position: int) -> None:
        """Tells the objective which step begins."""
        self.objective.begin(Moment(step, self.total, position / self.epoch_samples))

    def _backward(self, batch: Batch, step: int) -> tuple[float, dict[str, float]]:
        """Computes the gradients of the whole batch, in `accumulate` parts; returns the mean loss and the sums of other
        measures. A loss that is not finite raises a UserError here, before it can change the weights."""
        assert self.stepper is not None, "the run has ended"
        parts, total, sums = self.config.accumulate, 0.0, {}
        size = len(batch) // parts
        for part in range(parts):
            chosen = batch.part(part * size, (part + 1) * size).to(self.device)
            with distributed.before_the_last_part(self.stepper, last=part == parts - 1):
                with autocast(self.device, self.config.precision):
                    loss, measures = self.stepper(chosen)
                value = loss.item()
                wrong = not math.isfinite(value)
                self.processes.raise_if_any(self._not_finite("loss", value, step, batch) if wrong else None)
                self.scaler.scale(loss / parts).backward()
            total += value / parts
            sums = {name: sums.get(name, 0) + each for name, each in measures.items()}
        mean, *everyones = self.processes.sum([total / self.processes.count, *sums.values()])
        return mean, dict(zip(sums, everyones, strict=True))

    def _not_finite(self, what: str, value: float, step: int, batch: Batch) -> str:
        """Writes the message on a loss or gradient that is not a finite number."""
        shown = ", ".join(batch.ids[:4]) + (" ..." if len(batch.ids) > 4 else "")
        kept = snapshots.snapshots(self.folder)
        last = f"the last good snapshot is {kept[0]}" if kept else "there is no snapshot yet"
        return (
            f"the {what} of step {step + 1} is {value}; stopped before it reached the weights. {last}. "
            f"Try a lower --optimizer.lr, or look at the samples: {shown}"
        )

    def _evaluate(self, reporter: Reporter) -> None:
        """Measures the model on the validation split, records the result, and keeps the model if it is the best so
        far."""
        assert self.evaluate is not None
        with self.finished() as learner:
            result = self.evaluate(learner)
            reporter.record({"step": self.progress.step, "kind": "val", **result})
            score, best = self.objective.score(result), self.progress
            if score is None:
                return
            if best.best is None or (score, -result["loss"]) > (best.best, -best.best_loss):
                best.best, best.best_loss, best.best_step = score, result["loss"], best.step
                best.without_better = 0
                self.keep_best(learner, result)
            else:
                best.without_better += 1

    @contextmanager
    def finished(self) -> Iterator[Learner]:
        """Provides the model as the run would end with it now: with averaged weights if an average is kept, and whole
        in every process."""
        with self._averaged():
            if not distributed.is_sharded(self.learner):
                yield self.learner
                return
            assert self.another is not None
            yield distributed.gathered(self.learner, self.another())

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Puts the averaged weights into the model, and the weights themselves back at the end."""
        if self.average is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        self.learner.load_state_dict(self.average.weights)
        try:
            yield
        finally:
            self.learner.load_state_dict(own)

    def save(self) -> None:
        """Writes a snapshot; with several processes, only begins to write it."""
        state = self.learner, self.optimizer, self.average
        self.progress.seconds = self.earlier + time.monotonic() - self.began
        if self.writer is None:
            snapshots.write_snapshot(self.folder, self.progress, *state)
        else:
            self.writer.begin(self.progress, snapshots.pack(*state))

    def finish_writing(self) -> None:
        """Waits until the last snapshot is on disk."""
        if self.writer is not None:
            self.writer.wait()


class StepAverages:
    """Averages the numbers of the steps since the last record. Its window is all there is to it: a resumed run goes on
    with that, and its records are those of a run that was never interrupted."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def restart(self) -> None:
        """Forgets the steps so far."""
        self.window = Window()

    def add(self, numbers: dict[str, Any]) -> None:
        """Adds the numbers of a step, as `Trainer.step` returns them."""
        own = self.window
        self.window = Window(
            steps=own.steps + 1,
            loss=own.loss + numbers["loss"],
            measures={name: own.measures.get(name, 0) + value for name, value in numbers["measures"].items()},
            count=own.count + numbers["count"],
            seconds=own.seconds + numbers["seconds"],
            waited=own.waited + numbers["waited"],
            lr=numbers["lr"],
            gradient_norm=numbers["gradient_norm"],
        )

    def record(self, step: int, epoch: float) -> dict[str, Any]:
        """Makes a record for metrics.jsonl of the steps so far, and forgets them. step, epoch: reached by now."""
        own = self.window
        self.restart()
        return {
            "step": step,
            "kind": "train",
            "epoch": round(epoch, 4),
            "loss": own.loss / own.steps,
            **{name: value / own.count for name, value in own.measures.items()},
            "lr": own.lr,
            "gradient_norm": own.gradient_norm,
            "images_per_second": round(own.count / own.seconds, 1),
            "waiting": round(own.waited / own.seconds, 4),
        }


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Computes the seed of dropout and masks in a step: the same whenever the step is taken."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def autocast(device: torch.device, precision: str) -> Any:
    """Makes the context in which forward passes use the given precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
