"""The loop. There is one: fine-tuning, pre-training and probes differ in what is passed in, not in code.

A step is a function of (weights, optimizer, seed, step): the batch depends on the position in the data, dropout on the
seed and the step. So nothing else is stored, and a run that was killed and resumed ends in the same bits.
"""

import hashlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import ModelConfig, TrainConfig
from vitrail.data.loader import Batch
from vitrail.errors import UserError
from vitrail.training import snapshots
from vitrail.training.optimizer import Average, build, clip, set_learning_rate
from vitrail.training.progress import Reporter
from vitrail.training.schedule import learning_rate
from vitrail.training.snapshots import Progress

Evaluate = Callable[[nn.Module], dict[str, Any]]
"""A model -> top1, loss, n ... of the validation split."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the step was finished and the state saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@dataclass
class Trainer:
    """All a run needs, joined by `train.py`."""

    config: TrainConfig
    run: Path
    model: nn.Module
    model_config: ModelConfig
    objective: Callable[..., Any]
    total: int
    batches: Callable[[int], Iterator[Batch]]
    """From a position in the data, batches without end."""
    evaluate: Evaluate | None
    keep_best: Callable[[dict[str, Any]], None]
    """Called when the weights that are loaded into the model are the best so far."""
    epoch_samples: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.optimizer = build(self.model, self.model_config, self.config.optimizer)
        self.average = Average(self.model, self.config.ema) if self.config.ema else None
        self.progress = Progress()
        self.stepper = torch.compile(self.model) if self.config.compile else self.model
        often = self.config.evaluate_every or max(1, self.total // 10)
        self.evaluate_every, self.snapshot_every = often, self.config.snapshot_every or often
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16")

    @property
    def folder(self) -> Path:
        return self.run / "snapshots"

    def resume(self) -> list[str]:
        """Go on from the newest good snapshot; returns what to tell the user."""
        found = snapshots.read(self.folder)
        if found is None:
            return ["no snapshot yet: starting from the beginning"]
        self.progress, tensors, notes = found
        snapshots.unpack(tensors, self.model, self.optimizer, self.average)
        if self.progress.threads != torch.get_num_threads():
            notes.append(
                f"the run used {self.progress.threads} threads, now there are {torch.get_num_threads()}: the result "
                "will be as good, but not the same to the last bit"
            )
        return [*notes, f"resuming after step {self.progress.step} of {self.total}"]

    def fit(self, reporter: Reporter) -> None:
        batches = self.batches(self.progress.position)
        meter = Meter()
        with interruptible() as interrupted:
            while self.progress.step < self.total:
                meter.add(self.step(batches))
                done = self.progress.step
                if done % self.config.log_every == 0 or done == self.total:
                    reporter.record(meter.record(done, self.progress.position / self.epoch_samples))
                if self.evaluate is not None and (done % self.evaluate_every == 0 or done == self.total):
                    self._evaluate(reporter)
                    meter.restart()
                if done % self.snapshot_every == 0 or done == self.total or interrupted:
                    self.save()
                if interrupted and done < self.total:
                    raise Interrupted(interrupted[0])

    def step(self, batches: Iterator[Batch]) -> dict[str, float]:
        """One optimizer step; returns its numbers."""
        step, config = self.progress.step, self.config
        torch.manual_seed(step_seed(config.seed, step))
        self.model.train()
        rate = learning_rate(step, self.total, config.optimizer, config.schedule)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        waited = time.perf_counter()
        batch = next(batches)
        started = time.perf_counter()
        loss, correct = self._backward(batch, step)
        self.scaler.unscale_(self.optimizer)
        norm = float(clip(self.model.parameters(), config.optimizer.clip))
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise self._not_finite("gradient", norm, step, batch)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.progress.step, self.progress.position = step + 1, batch.position
        if self.average is not None:
            self.average.update(self.model, step + 1)
        return {
            "loss": loss,
            "correct": correct,
            "count": len(batch),
            "lr": rate,
            "gradient_norm": norm,
            "waited": started - waited,
            "seconds": time.perf_counter() - waited,
        }

    def _backward(self, batch: Batch, step: int) -> tuple[float, int]:
        """Gradients of the whole batch, computed in `accumulate` parts. A loss that is not finite stops here, before
        it can touch the weights."""
        parts, total, correct = self.config.accumulate, 0.0, 0
        size = len(batch) // parts
        for part in range(parts):
            chosen = slice(part * size, (part + 1) * size)
            images, labels, targets = self._move(batch, chosen)
            with autocast(self.device, self.config.precision):
                losses = self.objective(self.stepper, images, labels, targets)
            value = losses.loss.item()
            if not math.isfinite(value):
                raise self._not_finite("loss", value, step, batch)
            self.scaler.scale(losses.loss / parts).backward()
            total += value / parts
            correct += losses.correct
        return total, correct

    def _move(self, batch: Batch, part: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        targets = None if batch.targets is None else batch.targets[part].to(self.device, non_blocking=True)
        images, labels = batch.images[part], batch.labels[part]
        return images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True), targets

    def _not_finite(self, what: str, value: float, step: int, batch: Batch) -> UserError:
        shown = ", ".join(batch.ids[:4]) + (" ..." if len(batch.ids) > 4 else "")
        kept = snapshots.snapshots(self.folder)
        last = f"the last good snapshot is {kept[0]}" if kept else "there is no snapshot yet"
        return UserError(
            f"the {what} of step {step + 1} is {value}; stopped before it reached the weights. {last}. "
            f"Try a lower --optimizer.lr, or look at the samples: {shown}"
        )

    def _evaluate(self, reporter: Reporter) -> None:
        assert self.evaluate is not None
        with self.averaged():
            result = self.evaluate(self.model)
            reporter.record({"step": self.progress.step, "kind": "val", **result})
            if result["top1"] > self.progress.best:
                self.progress.best, self.progress.best_step = result["top1"], self.progress.step
                self.keep_best(result)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in the model's place, where there is an average."""
        if self.average is None:
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.average.weights)
        try:
            yield
        finally:
            self.model.load_state_dict(own)

    def save(self) -> None:
        snapshots.write(self.folder, self.progress, self.model, self.optimizer, self.average)


class Meter:
    """Means over the steps since the last record."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.steps: list[dict[str, float]] = []

    def add(self, numbers: dict[str, float]) -> None:
        self.steps.append(numbers)

    def record(self, step: int, epoch: float) -> dict[str, Any]:
        steps, count = self.steps, sum(each["count"] for each in self.steps)
        seconds = sum(each["seconds"] for each in steps)
        record = {
            "step": step,
            "kind": "train",
            "epoch": round(epoch, 4),
            "loss": sum(each["loss"] for each in steps) / len(steps),
            "accuracy": sum(each["correct"] for each in steps) / count,
            "lr": steps[-1]["lr"],
            "gradient_norm": steps[-1]["gradient_norm"],
            "images_per_second": round(count / seconds, 1),
            "waiting": round(sum(each["waited"] for each in steps) / seconds, 4),
        }
        self.restart()
        return record


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Dropout's seed: the same for a step whenever it is done."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def autocast(device: torch.device, precision: str) -> Any:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM fill the list in place of stopping at once; a second Ctrl-C does stop."""
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    try:
        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
