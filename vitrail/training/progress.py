"""Shows the progress of a run: a bar on a terminal, lines elsewhere, and records in metrics.jsonl always."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Self

from vitrail.errors import UserError
from vitrail.io.documents import parse_object, read_text
from vitrail.io.files import replacing, writing
from vitrail.io.progress import duration
from vitrail.tasks.base import Meter

METRICS = "metrics.jsonl"
"""The file of a run's records, one JSON object on each line."""
_ALWAYS = ("step", "kind", "epoch", "loss", "lr", "gradient_norm", "images_per_second", "waiting")
"""The keys of every record of training; any others are measures of the objective."""
_NUMBERS = {"loss": (int, float), "images_per_second": (int, float)}
"""The keys that a record of training must have to be shown, and the types of their values."""
LARGEST_METRICS = 2**30
"""The largest metrics.jsonl that is read, in bytes; a line takes 200."""
_SHARES = ("accuracy", "entropy", "usage")
"""Measures that are shown as percentages."""


class Reporter:
    """Receives records, which are dicts with step and kind, writes them to metrics.jsonl and shows them. It is a
    context manager."""

    def __init__(self, run: Path, total: int, start: int, meter: type[Meter] | None = None, tensorboard: bool = False):
        """Opens the run's metrics.

        Args:
            run: the run's folder.
            total: optimizer steps of the whole run.
            start: steps that are done already.
            meter: of the task whose validations are recorded; None without labels.
            tensorboard: whether to write records for TensorBoard too.
        """
        self.total, self.start, self.meter = total, start, meter
        self.run = run
        self.records = read_metrics(run)
        with writing(run / METRICS):
            self.file = (run / METRICS).open("a", encoding="utf-8")
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

    def check_folder(self) -> None:
        """Raises a UserError where the run's folder is not the one any more that it began in: what is written from then
        on would be lost, or land in a folder that is somebody else's."""
        try:
            same = os.path.samestat((self.run / METRICS).stat(), os.fstat(self.file.fileno()))
        except OSError:
            same = False
        if not same:
            raise UserError(f"{self.run}: was deleted or moved while the run was training there; begin it again")

    def record(self, record: dict[str, Any]) -> None:
        """Writes a record and shows it."""
        with writing(self.run / METRICS):
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        self.records.append(record)
        if self._board is not None:
            for name, value in record.items():
                if isinstance(value, (int, float)) and name != "step":
                    self._board.add_scalar(f"{record['kind']}/{name}", value, record["step"])
        if record["kind"] == "val":
            words = self._validated(record)
            self._validation = f"  val {words}"
            self.say(f"step {record['step']}: validation {words} of {record['n']}")
        elif record["kind"] == "train":
            self._show(record)

    def say(self, text: str) -> None:
        """Shows a line to the user."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def step(self, done: int, numbers: dict[str, Any]) -> None:
        """Moves the bar after a step, whether or not there is a record of the step."""
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
        """Keeps a training record's numbers for the bar."""
        others = {name: value for name, value in record.items() if name not in _ALWAYS}
        shown = "".join(f"  {name} {value:{'.2%' if name in _SHARES else '.4g'}}" for name, value in others.items())
        self._text = f"loss {record['loss']:.4f}{shown}  {record['images_per_second']:.0f} images/s"

    def _validated(self, record: dict[str, Any]) -> str:
        """Writes a validation in a few words: as the task does, or without labels the loss and the accuracy of nearest
        neighbours."""
        if self.meter is not None:
            return self.meter.words(record)
        neighbours = f", kNN {record['knn_top1']:.2%}" if "knn_top1" in record else ""
        return f"loss {record['loss']:.4f}{neighbours}"

    def _left(self, done: int) -> str:
        """Writes how long the remaining steps will take at the speed so far, validations included. The first step is
        slower than the others and does not count."""
        now = time.monotonic()
        if self._first is None:
            self._first = done, now
        first, began = self._first
        return f"{duration((self.total - done) * (now - began) / (done - first))} left" if done >= first + 2 else ""


def say(text: str) -> None:
    """Shows a line to the user while there is no bar."""
    print(text, file=sys.stderr, flush=True)


class Silent(Reporter):
    """Keeps records and shows nothing: for all processes but the first."""

    def __init__(self) -> None:
        self.records = []

    def check_folder(self) -> None:
        pass

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
    """Reads the records of a run; a last line that is incomplete, since the run was killed, is left out.

    Raises UserError for any other line that no run has written.
    """
    path = run / METRICS
    *lines, last = read_text(path, LARGEST_METRICS).split("\n") if path.exists() else [""]
    records = []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            record = parse_object(line, where, finite=False)
        except UserError:
            # What follows was written after a loss of power, perhaps, whose line has an end by chance.
            if number == len(lines) and not last:
                break
            raise
        kind = record.get("kind")
        wanted = {"step": int, "kind": str, **(_NUMBERS if kind == "train" else {})}
        if wrong := [name for name, type_ in wanted.items() if not isinstance(record.get(name), type_)]:
            raise UserError(f"{where}: has no {wrong[0]} as a run writes it; take the line out of the file")
        records.append(record)
    return records


def forget_after(run: Path, step: int) -> None:
    """Removes the records of steps after `step`, which a resumed run will take again."""
    kept = [record for record in read_metrics(run) if record["step"] <= step]
    with writing(run / METRICS), replacing(run / METRICS) as temporary:
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


def _tensorboard(run: Path) -> Any:
    """Makes the writer for TensorBoard; a UserError if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'vitrail[tensorboard]'") from error
    return SummaryWriter(str(run / "tensorboard"))
