"""The loop. There is one: fine-tuning, pre-training and probes differ in what is passed in, not in code.

A step is a function of (weights, optimizer, seed, step): the batch depends on the position in the data, dropout and
masks on the seed and the step. So nothing else is stored, and a run that was killed and resumed ends in the same bits.
"""

import gc
import hashlib
import math
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.config import TrainConfig
from vitrail.data.loader import Batch
from vitrail.errors import UserError
from vitrail.processes import Processes
from vitrail.training import distributed, snapshots
from vitrail.training.learner import Learner
from vitrail.training.objectives.base import Moment
from vitrail.training.optimizer import Average, build, clip, set_learning_rate
from vitrail.training.progress import Reporter
from vitrail.training.schedule import learning_rate
from vitrail.training.snapshots import Progress

Evaluate = Callable[[Learner], dict[str, Any]]
"""A model and its objective -> top1, loss, n ... of the validation split; what the objective scores must be among
them."""


HANGUP: int | None = getattr(signal, "SIGHUP", None)
"""The terminal was closed, or the connection to it lost; Windows has no such signal."""


class Interrupted(Exception):
    """Ctrl-C, SIGTERM or SIGHUP: the step was finished and the state saved."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@dataclass
class Trainer:
    """All a run needs, joined by `train.py`."""

    config: TrainConfig
    run: Path
    learner: Learner
    total: int
    batches: Callable[[int], Iterator[Batch]]
    """From a position in the data, batches without end."""
    evaluate: Evaluate | None
    keep_best: Callable[[Learner, dict[str, Any]], None]
    """Called with the best weights so far."""
    epoch_samples: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    processes: Processes = field(default_factory=Processes)
    """Those that take every step together with this one."""
    another: Callable[[], Learner] | None = None
    """A learner of the same shapes. Where each process has a part of the weights only, it is what they are put
    together in, to be measured and kept."""

    def __post_init__(self) -> None:
        self.model, self.objective = self.learner.model, self.learner.objective
        self.objective.processes = self.processes
        model = torch.compile(self.model) if self.config.compile else self.model
        step = distributed.Step(model, self.objective)
        self.stepper: nn.Module | None = distributed.wrapped(step, self.config, self.processes)
        self.optimizer = build(self.learner, self.model.config, self.config.optimizer)
        self.average = Average(self.learner, self.config.ema) if self.config.ema else None
        self.progress = Progress()
        self.began, self.earlier = time.monotonic(), 0.0
        often = self.config.evaluate_every or max(1, self.total // 10)
        self.evaluate_every, self.snapshot_every = often, self.config.snapshot_every or often
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.precision == "fp16")
        self.writer = None
        if self.processes.count > 1:
            from vitrail.training.sharded import Writer

            self.writer = Writer(self.folder, self.processes)

    @property
    def folder(self) -> Path:
        return self.run / "snapshots"

    def resume(self) -> list[str]:
        """Go on from the newest good snapshot; returns what to tell the user."""
        state = self.learner, self.optimizer, self.average
        if self.processes.count == 1:
            found = snapshots.read(self.folder)
        else:
            from vitrail.training.sharded import read_into

            progress, snapshot, notes = self.processes.first_alone(lambda: snapshots.newest(self.folder))
            found = progress and (progress, read_into(snapshot, snapshots.blank(*state)), notes)
        if found is None:
            return ["no snapshot yet: starting from the beginning"]
        self.progress, tensors, notes = found
        self.earlier = self.progress.seconds
        snapshots.unpack(tensors, *state)
        if self.progress.loss_scale:
            self.scaler.load_state_dict(self.progress.loss_scale)
        last = self.progress.position - self.config.batch_size
        self._begin(max(self.progress.step - 1, 0), max(last, 0))  # the moment of the last step that was done
        if self.progress.threads != torch.get_num_threads():
            notes.append(
                f"the run used {self.progress.threads} threads, now there are {torch.get_num_threads()}: the result "
                "will be as good, but not the same to the last bit"
            )
        return [*notes, f"resuming after step {self.progress.step} of {self.total}"]

    def fit(self, reporter: Reporter) -> None:
        """Take the steps that are left. However it ends, the last snapshot is whole before it does."""
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
                # DDP must go before its connections do: the other way round, its end can wait for itself for ever.
                gc.collect()

    def _fit(self, reporter: Reporter) -> None:
        batches = self.batches(self.progress.position)
        meter = Meter()
        with interruptible(speaks=self.processes.first) as interrupted:
            while self.progress.step < self.total and not self.stopped_early:
                numbers = self.step(batches)
                meter.add(numbers)
                done, stop = self.progress.step, self.processes.largest(interrupted[0] if interrupted else 0)
                if done % self.config.log_every == 0 or done == self.total:
                    reporter.record(meter.record(done, self.progress.position / self.epoch_samples))
                reporter.step(done, numbers)
                if self.evaluate is not None and (done % self.evaluate_every == 0 or done == self.total):
                    self._evaluate(reporter)
                    meter.restart()
                ended = done == self.total or self.stopped_early
                if done % self.snapshot_every == 0 or ended or stop:
                    self.save()
                if stop and not ended:
                    raise Interrupted(stop)

    @property
    def stopped_early(self) -> bool:
        """Whether there were as many validations without a better one as the configuration has patience for."""
        patience = self.config.patience
        return bool(patience) and self.progress.step < self.total and self.progress.without_better >= patience

    def why_it_stopped(self) -> str:
        progress = self.progress
        best = f"step {progress.best_step}" if progress.best_step else "what the run began with"
        return (
            f"stopped at step {progress.step} of {self.total}: {progress.without_better} evaluations in a row were no "
            f"better than that of {best} (--patience {self.config.patience})"
        )

    def step(self, batches: Iterator[Batch]) -> dict[str, Any]:
        """One optimizer step; returns its numbers."""
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
        self.processes.agree(self._not_finite("gradient", norm, step, batch) if wrong else None)
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
        self.objective.begin(Moment(step, self.total, position / self.epoch_samples))

    def _backward(self, batch: Batch, step: int) -> tuple[float, dict[str, float]]:
        """Gradients of the whole batch, computed in `accumulate` parts. A loss that is not finite stops here, before
        it can touch the weights."""
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
                self.processes.agree(self._not_finite("loss", value, step, batch) if wrong else None)
                self.scaler.scale(loss / parts).backward()
            total += value / parts
            sums = {name: sums.get(name, 0) + each for name, each in measures.items()}
        mean, *everyones = self.processes.sum([total / self.processes.count, *sums.values()])
        return mean, dict(zip(sums, everyones, strict=True))

    def _not_finite(self, what: str, value: float, step: int, batch: Batch) -> str:
        shown = ", ".join(batch.ids[:4]) + (" ..." if len(batch.ids) > 4 else "")
        kept = snapshots.snapshots(self.folder)
        last = f"the last good snapshot is {kept[0]}" if kept else "there is no snapshot yet"
        return (
            f"the {what} of step {step + 1} is {value}; stopped before it reached the weights. {last}. "
            f"Try a lower --optimizer.lr, or look at the samples: {shown}"
        )

    def _evaluate(self, reporter: Reporter) -> None:
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
        """What the run has to show so far: the averaged weights where there is an average, whole in every process."""
        with self._averaged():
            if not distributed.is_sharded(self.learner):
                yield self.learner
                return
            assert self.another is not None
            yield distributed.gathered(self.learner, self.another())

    @contextmanager
    def _averaged(self) -> Iterator[None]:
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
        state = self.learner, self.optimizer, self.average
        self.progress.seconds = self.earlier + time.monotonic() - self.began
        if self.writer is None:
            snapshots.write(self.folder, self.progress, *state)
        else:
            self.writer.begin(self.progress, snapshots.pack(*state))

    def finish_writing(self) -> None:
        """Until the last snapshot is on disk."""
        if self.writer is not None:
            self.writer.wait()


class Meter:
    """Means over the steps since the last record."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def add(self, numbers: dict[str, Any]) -> None:
        self.steps.append(numbers)

    def record(self, step: int, epoch: float) -> dict[str, Any]:
        steps, count = self.steps, sum(each["count"] for each in self.steps)
        seconds = sum(each["seconds"] for each in steps)
        record = {
            "step": step,
            "kind": "train",
            "epoch": round(epoch, 4),
            "loss": sum(each["loss"] for each in steps) / len(steps),
            **{name: sum(each["measures"][name] for each in steps) / count for name in steps[0]["measures"]},
            "lr": steps[-1]["lr"],
            "gradient_norm": steps[-1]["gradient_norm"],
            "images_per_second": round(count / seconds, 1),
            "waiting": round(sum(each["waited"] for each in steps) / seconds, 4),
        }
        self.restart()
        return record


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Of dropout and masks: the same for a step whenever it is done."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def autocast(device: torch.device, precision: str) -> Any:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


@contextmanager
def interruptible(speaks: bool = True) -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP fill the list in place of stopping at once, and are answered at once where this
    process `speaks`; a second Ctrl-C does stop. Under nohup SIGHUP stays ignored. An ignored SIGINT does not: shells
    start whatever goes on in the background so, and who sends the signal there means it."""
    received: list[int] = []

    def remember(number: int, _frame: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        if speaks:
            _answer(number)
        if number == HANGUP:
            _without_terminal()

    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        numbers.append(HANGUP)
    try:
        before = {number: signal.signal(number, remember) for number in numbers}
    except ValueError:  # not in the main thread: whoever runs us there handles signals
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(number: int) -> None:
    """Say that the signal was heard. Written past Python's stream and the bar, which it may have interrupted while
    they were writing; the bar draws itself anew below."""
    again = "; Ctrl-C again stops without" if number == signal.SIGINT else ""
    text = f"{signal.Signals(number).name}: finishing the step, then saving{again} ..."
    with suppress(OSError):
        os.write(2, f"\r\x1b[K{text}\r\n".encode() if os.isatty(2) else f"{text}\n".encode())


def _without_terminal() -> None:
    """The terminal that hung up takes no more output; what is still said must not stop the run from being saved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # isatty says no of a terminal that is gone
            os.dup2(nowhere, stream)
    os.close(nowhere)
