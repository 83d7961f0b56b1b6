"""A job over many pictures: their rows stream from a model into a writer, and whatever stops it, it can be resumed."""

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.data.inputs import Input, Pictures, put_back, writable
from vitrail.errors import UserError
from vitrail.inference.choose import MANY, Loading, Say, open_engine
from vitrail.inference.engines import Engine
from vitrail.inference.engines.facts import Facts
from vitrail.inference.jobs.outputs import OutputFile, open_writer
from vitrail.inference.jobs.rows import Row, Rows
from vitrail.inference.jobs.writers import Writer, processes_folder
from vitrail.inference.predictor import Predictor, default_workers
from vitrail.launched import started_together

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class JobRequest:
    """A model, pictures, and how the one is run over the other."""

    model: "nn.Module | str | Path"
    pictures: Pictures
    engine: str | None = None
    loading: Loading = field(default_factory=Loading)
    batch_size: int | None = None
    workers: int | None = None


@dataclass
class Job:
    """A request whose model is loaded and whose pictures are being found: all that a stream of rows needs."""

    inputs: Iterator[Input]
    predictor: Predictor

    @property
    def engine(self) -> str:
        return self.predictor.engine.name

    @property
    def facts(self) -> Facts:
        return self.predictor.engine.facts

    def unseen(self, writer: Writer) -> Iterator[Input]:
        """Gives the inputs that the writer has no row of."""
        if not len(writer.seen):
            return self.inputs
        return (each for each in self.inputs if each.path is None or writable(each.path) not in writer.seen)


@dataclass
class Progress:
    """How far a job is."""

    n: int = 0
    """Rows written so far, what was resumed not among them."""
    errors: int = 0
    """Those of them whose pictures could not be read."""
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Pictures a second."""
        return self.n / self.seconds if self.seconds else 0.0

    @classmethod
    def of_all(cls, parts: Sequence["Progress"]) -> "Progress":
        """Adds up what processes did side by side."""
        n, errors = sum(each.n for each in parts), sum(each.errors for each in parts)
        return cls(n, errors, max(each.seconds for each in parts))


@dataclass(frozen=True)
class JobResult:
    """What a job has written."""

    path: Path
    """The file."""
    n: int
    """Rows that were added."""
    errors: int
    """Those of them whose pictures could not be read; they say why."""
    resumed: int
    """Rows that were there already."""
    seconds: float
    """From the first picture to the last."""
    engine: str
    """What ran the model."""
    facts: Facts = field(repr=False)
    """What the model says of itself."""
    first: bool = field(default=True, repr=False)
    """Whether this process is the first of those that did the job: the one that speaks."""

    @property
    def images_per_second(self) -> float:
        return self.n / self.seconds if self.seconds else 0.0


class Observer:
    """Is told how a job goes. This one keeps it to itself."""

    def say(self, text: str) -> None:
        """Takes a line about what is being done."""

    def started(self, seen: Container[str], processes: int) -> None:
        """Is told that rows begin to come: which paths have one already, and how many processes share the others."""

    def advanced(self, progress: Progress) -> None:
        """Is told after every batch how far this process is."""

    def ended(self) -> None:
        """Is told that no more rows come, whatever the reason."""


def open_job(request: JobRequest, say: Say = lambda _: None) -> Job:
    """Opens the engine once it is known how much there is to do: one picture, some, or many."""
    if request.workers is not None and request.workers < 1:
        raise UserError(f"--workers must be at least 1, not {request.workers}")
    inputs = request.pictures.found()
    first = _first(inputs, 2 if request.pictures.piped else MANY)
    if not first:
        raise UserError(f"there is no picture in {request.pictures.where}")
    workers = default_workers(single=len(first) == 1) if request.workers is None else request.workers
    engine = _open_engine(request, workers, many=len(first) == MANY, say=say)
    return Job(put_back(first, inputs), Predictor(engine, request.batch_size))


def _open_engine(request: JobRequest, workers: int, many: bool, say: Say) -> Engine:
    if isinstance(request.model, (str, Path)):
        return open_engine(request.model, request.engine, workers=workers, loading=request.loading, many=many, say=say)
    from vitrail.inference.engines.torch import TorchEngine

    return TorchEngine(request.model, workers)


def _first(inputs: Iterator[Input], most: int) -> list[Input]:
    """Takes up to so many, to see how much there is to do; but of the members of archives, which come with their bytes,
    two. A list that is piped in is perhaps still being made, so of it no more than two are waited for."""
    first: list[Input] = []
    for each in islice(inputs, most):
        first.append(each)
        if len(first) > 1 and "::" in (each.path or ""):
            break
    return first


def write(request: JobRequest, output: OutputFile, rows: Rows, observer: Observer | None = None) -> JobResult:
    """Writes the rows of all pictures into a file, by this process or by all that were started with it."""
    observer = observer or Observer()
    if started_together() or (output.resume and processes_folder(output.growing).exists()):
        from vitrail.inference.jobs import parallel  # imports torch, which one process with an exported model need not

        return parallel.write(request, output, rows, observer)
    job = open_job(request, observer.say)
    writer = open_writer(output.growing, rows.columns(job.facts), resume=output.resume, overwrite=output.overwrite)
    observer.started(writer.seen, 1)
    done = stream(writer, rows.batches(job.predictor, job.unseen(writer)), observer)
    output.finish()
    return JobResult(output.path, done.n, done.errors, writer.count, done.seconds, job.engine, job.facts)


def stream(writer: Writer, batches: Iterable[list[Row]], observer: Observer) -> Progress:
    """Writes rows as they come; whatever stops them, what is written stays and can be resumed."""
    done, start, finished = Progress(), time.perf_counter(), False
    try:
        try:
            for rows in batches:
                writer.write(rows)
                done.n += len(rows)
                done.errors += sum(row["error"] is not None for row in rows)
                done.seconds = time.perf_counter() - start
                observer.advanced(done)
            finished = True
        finally:
            writer.close(finished)
    finally:
        observer.ended()
    return done
