"""What a person and a program see of a run: a bar on a terminal, lines elsewhere, metrics.jsonl always."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Self

METRICS = "metrics.jsonl"


class Reporter:
    """Receives records (dicts with step and kind) and shows them. Use it as a context manager."""

    def __init__(self, run: Path, total: int, start: int, batch_size: int, tensorboard: bool = False):
        self.total, self.start, self.batch_size = total, start, batch_size
        self.run = run
        self.file = (run / METRICS).open("a", encoding="utf-8")
        self.records = read_metrics(run)
        self._bar = self._task = None
        self._last_line = 0.0
        self._validation = ""
        self._board = _tensorboard(run) if tensorboard else None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = [TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn()]
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("training", total=self.total, completed=self.start)
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
            said = validation(record)
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

    def _show(self, record: dict[str, Any]) -> None:
        shown = "".join(f"  {name} {record[name]:.2%}" for name in ("accuracy", "entropy", "usage") if name in record)
        text = f"loss {record['loss']:.4f}{shown}  {record['images_per_second']:.0f} images/s{self._validation}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=record["step"], description=text)
        elif time.monotonic() - self._last_line > 5 or record["step"] == self.total:
            self._last_line = time.monotonic()
            left = (self.total - record["step"]) * self.batch_size / max(record["images_per_second"], 1e-9)
            print(f"step {record['step']}/{self.total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)


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


def validation(record: dict[str, Any]) -> str:
    """A validation in few words: the accuracy, or without labels the loss and how good neighbours are."""
    if "top1" in record:
        return f"{record['top1']:.2%}"
    neighbours = f", kNN {record['knn_top1']:.2%}" if "knn_top1" in record else ""
    return f"loss {record['loss']:.4f}{neighbours}"


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
    temporary = run / f".{METRICS}"
    temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    temporary.replace(run / METRICS)


def _tensorboard(run: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        from vitrail.errors import UserError

        raise UserError("--tensorboard needs the package tensorboard: pip install 'vitrail[tensorboard]'") from error
    return SummaryWriter(str(run / "tensorboard"))
