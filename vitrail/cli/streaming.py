"""What `predict` and `embed` share: inputs, an engine, and rows that stream to a writer under a progress bar."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from vitrail.cli import emit_json, note
from vitrail.cli.bar import Bar, Total
from vitrail.errors import UserError
from vitrail.inference.choose import MANY, Loading, Say, open_engine
from vitrail.inference.inputs import STDIN, Input, find, put_back
from vitrail.inference.outputs import Row, Writer, shares_folder, writable
from vitrail.inference.predictor import Predictor, default_workers
from vitrail.launched import started_together


@dataclass(frozen=True)
class Work:
    """What is asked for: pictures, and what is to run over them."""

    model: str
    paths: tuple[str, ...]
    engine: str | None
    loading: Loading
    batch_size: int | None
    workers: int | None


@dataclass
class Job:
    """The work, opened: everything that a stream of rows needs."""

    inputs: Iterator[Input]
    predictor: Predictor

    @property
    def engine(self) -> str:
        return self.predictor.engine.name

    def unseen(self, writer: Writer) -> Iterator[Input]:
        """The inputs that the writer has no row of."""
        if not len(writer.seen):
            return self.inputs
        return (each for each in self.inputs if each.path is None or writable(each.path) not in writer.seen)


class OpenWriter(Protocol):
    def __call__(self, job: Job, path: Path, *, resume: bool, overwrite: bool) -> Writer: ...


@dataclass(frozen=True)
class Output:
    """A file, and what goes into it."""

    path: Path
    resume: bool
    overwrite: bool
    writer: OpenWriter
    rows: Callable[[Job, Iterable[Input]], Iterable[list[Row]]]
    """One for each input, in their order."""


@dataclass
class Done:
    n: int = 0
    errors: int = 0
    seconds: float = 0.0
    resumed: int = 0
    """Rows that were there already."""
    first: bool = True
    """Whether this process is the one that speaks."""

    @property
    def speed(self) -> float:
        return self.n / self.seconds if self.seconds else 0.0

    @classmethod
    def of_all(cls, parts: Sequence["Done"], resumed: int, first: bool) -> "Done":
        """What processes did side by side."""
        n, errors = sum(each.n for each in parts), sum(each.errors for each in parts)
        return cls(n, errors, max(each.seconds for each in parts), resumed, first)


def open_job(work: Work, say: Say = lambda _: None) -> Job:
    """The engine is opened when it is known how much there is to do: one picture, some, or many."""
    if not work.paths:
        raise UserError("give pictures: files, folders, globs, archives, or - for a list on stdin")
    if work.workers is not None and work.workers < 1:
        raise UserError(f"--workers must be at least 1, not {work.workers}")
    inputs = find(work.paths, sys.stdin.buffer if STDIN in work.paths else None)
    first = _first(inputs, 2 if STDIN in work.paths else MANY)
    if not first:
        raise UserError(f"there is no picture in {', '.join(work.paths)}")
    count = default_workers(single=len(first) == 1) if work.workers is None else work.workers
    many = len(first) == MANY
    opened = open_engine(work.model, work.engine, workers=count, loading=work.loading, many=many, say=say)
    return Job(put_back(first, inputs), Predictor(opened, work.batch_size))


def _first(inputs: Iterator[Input], most: int) -> list[Input]:
    """Up to so many, to see how much there is to do; but of the members of archives, which come with their bytes, two.
    A list on stdin is perhaps still being made, so of it no more than two are waited for."""
    first: list[Input] = []
    for each in islice(inputs, most):
        first.append(each)
        if len(first) > 1 and "::" in (each.path or ""):
            break
    return first


def write(work: Work, output: Output) -> tuple[Job, Done]:
    """The rows of all inputs into a file, by this process or by all that were started with it."""
    if started_together() or (output.resume and shares_folder(output.path).exists()):
        from vitrail.cli import streaming_together

        return streaming_together.write(work, output)
    job = open_job(work, note)
    writer = output.writer(job, output.path, resume=output.resume, overwrite=output.overwrite)
    done = show(writer, output.rows(job, job.unseen(writer)), Bar(total=Total(work.paths, writer.seen)))
    done.resumed = writer.count
    return job, done


def show(writer: Writer, batches: Iterable[list[Row]], bar: Bar | None = None) -> Done:
    """Write the rows as they come; whatever stops the job, what is written stays and can be resumed."""
    done, start, finished = Done(), time.perf_counter(), False
    with bar or Bar() as bar:
        try:
            for rows in batches:
                writer.write(rows)
                done.n += len(rows)
                done.errors += sum(row["error"] is not None for row in rows)
                done.seconds = time.perf_counter() - start
                bar.update(done)
            finished = True
        finally:
            writer.close(finished)
    return done


def tell(job: Job, done: Done, out: Path, json: bool, **more: Any) -> None:
    """What was written, in a line or as JSON."""
    if done.first and json:
        emit_json(
            {
                "out": str(out),
                "n": done.n,
                "errors": done.errors,
                "resumed": done.resumed,
                "engine": job.engine,
                "seconds": round(done.seconds, 3),
                "images_per_second": round(done.speed, 2),
                **more,
            }
        )
    elif done.first:
        note(f"{done.n} pictures, {done.errors} unreadable, {done.speed:.1f} images/s ({job.engine}): {out}")
    check_some(done)


def check_some(done: Done) -> None:
    if done.n and done.errors == done.n and not done.resumed:
        raise UserError("not one of the pictures could be read", said_by_another=not done.first)
