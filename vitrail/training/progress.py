"""What a person and a program see of a run: a bar on a terminal, lines elsewhere, metrics.jsonl always."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Self

from vitrail.io.files import replacing
from vitrail.io.progress import duration
from vitrail.tasks.base import Meter

METRICS = "metrics.jsonl"
_ALWAYS = ("step", "kind", "epoch", "loss", "lr", "gradient_norm", "images_per_second", "waiting")
"""In every record of training; what else there is, the objective measures."""
_SHARES = ("accuracy", "entropy", "usage")


class Reporter:
    """Receives records (dicts with step and kind) and shows them. Use it as a context manager."""

    def __init__(self, run: Path, total: int, start: int, meter: type[Meter] | None = None, tensorboard: bool = False):
        """Opens the run's metrics. meter: of the task whose validations are recorded; None without labels."""
        self.total, self.start, self.meter = total, start, meter
        self.run = run
        self.file = (run / METRICS).open("a", encoding="utf-8")
        self.records = read_metrics(run)
        self._bar = self._task = None
        self._last_line = 0.0
        self._first: tuple[int, float] | None = None
        self._text = self._validation = ""
        self._board = _tensorboard(run) if tensorboard else None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn()]
            self._bar = Progress(*columns, TextColumn("{task.fields[left]}"), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("training", total=self.total, completed=self.start, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self.file.close()
        if self._board is not None:
            self._board.close()

    def record(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        self.records.append(record)
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)) and name != "step":
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["step"])
        if record["kind"] == "val":
            said = self._validated(record)
            self._validation = f"  val {said}"
            self.say(f"step {record['step']}: validation {said} of {record['n']}")
        elif record["kind"] == "train":
            self._show(record)

    def say(self, text: str) -> None:
        """A line for the person."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def step(self, done: int, numbers: dict[str, Any]) -> None:
        """A step was done: the bar moves, whether or not there is a record of it."""
        if not self._text:
            speed = numbers["count"] / max(numbers["seconds"], 1e-9)
            self._text = f"loss {numbers['loss']:.4f}  {speed:.0f} images/s"
        left, text = self._left(done), f"{self._text}{self._validation}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=text, left=left)
        elif time.monotonic() - self._last_line > 5 or done == self.total:
            self._last_line = time.monotonic()
            print(f"step {done}/{self.total}  {text}  {left}".rstrip(), file=sys.stderr, flush=True)

    def _show(self, record: dict[str, Any]) -> None:
        others = {name: value for name, value in record.items() if name not in _ALWAYS}
        shown = "".join(f"  {name} {value:{'.2%' if name in _SHARES else '.4g'}}" for name, value in others.items())
        self._text = f"loss {record['loss']:.4f}{shown}  {record['images_per_second']:.0f} images/s"

    def _validated(self, record: dict[str, Any]) -> str:
        """A validation in few words: as the task says it, or without labels the loss and how good neighbours are."""
        if self.meter is not None:
            return self.meter.words(record)
        neighbours = f", kNN {record['knn_top1']:.2%}" if "knn_top1" in record else ""
        return f"loss {record['loss']:.4f}{neighbours}"

    def _left(self, done: int) -> str:
        """How long the rest will take at the pace so far, validation included. The first step, which prepares much
        that the others find ready, does not count."""
        now = time.monotonic()
        if self._first is None:
            self._first = done, now
        first, began = self._first
        return f"{duration((self.total - done) * (now - began) / (done - first))} left" if done >= first + 2 else ""


def say(text: str) -> None:
    """A line for the person, where there is no bar yet."""
    print(text, file=sys.stderr, flush=True)


class Silent(Reporter):
    """For a process beside the one that speaks: it keeps records and shows nothing."""

    def __init__(self) -> None:
        self.records = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def say(self, text: str) -> None:
        pass

    def step(self, done: int, numbers: dict[str, Any]) -> None:
        pass


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run; a last line that a kill cut short is left out."""
    path = run / METRICS
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def forget_after(run: Path, step: int) -> None:
    """Drop the records of steps that a resumed run will do again."""
    kept = [record for record in read_metrics(run) if record["step"] <= step]
    with replacing(run / METRICS) as temporary:
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


def _tensorboard(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        from vitrail.errors import UserError

        raise UserError("--tensorboard needs the package tensorboard: pip install 'vitrail[tensorboard]'") from error
    return SummaryWriter(str(run / "tensorboard"))
