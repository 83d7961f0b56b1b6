"""Runs a job over many pictures: rows stream from a model into a writer, and whatever stops the job, it can be
resumed."""

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.data.decode_pool import DecodeLimits
from vitrail.data.inputs import Input, Pictures, put_back, writable
from vitrail.environment import is_distributed
from vitrail.errors import UserError
from vitrail.inference.engine_selection import MANY, Loading, Say, open_engine
from vitrail.inference.engines import Engine
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.jobs.outputs import OutputFile, open_writer
from vitrail.inference.jobs.rows import Row, RowKind
from vitrail.inference.jobs.writers import RowWriter, processes_folder
from vitrail.inference.predictor import Predictor, prediction_workers

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class JobRequest:
    """A model, pictures, and how the model is run over them."""

    model: "nn.Module | str | Path"
    pictures: Pictures
    """The pictures to run over."""
    engine: str | None = None
    """The name of the engine; None chooses."""
    loading: Loading = field(default_factory=Loading)
    """How the model is loaded, if it is not in memory."""
    batch_size: int | None = None
    """The number of pictures computed at a time; None takes what suits the engine."""
    workers: int | None = None
    """The number of threads; None takes one for each processor."""
    decode_limits: DecodeLimits = field(default_factory=DecodeLimits)
    """What decoding a file may take."""
    tiles: int = False
    """Whether large pictures are answered from tiles; a number is the longer side of these."""


@dataclass
class Job:
    """A request whose model is loaded and whose pictures are being found."""

    inputs: Iterator[Input]
    predictor: Predictor

    @property
    def engine(self) -> str:
        """Returns the name of the engine."""
        return self.predictor.engine.name

    @property
    def facts(self) -> ExportMetadata:
        """Returns what the model says of itself."""
        return self.predictor.engine.facts

    def unseen(self, writer: RowWriter) -> Iterator[Input]:
        """Returns the inputs that have no row in the writer yet."""
        if not len(writer.seen):
            return self.inputs
        return (each for each in self.inputs if each.path is None or writable(each.path) not in writer.seen)


@dataclass
class JobProgress:
    """The progress of a job."""

    n: int = 0
    """Rows written so far, without those of earlier jobs."""
    errors: int = 0
    """How many of them are of pictures that could not be read."""
    seconds: float = 0.0

    @property
    def speed(self) -> float:
        """Returns pictures per second."""
        return self.n / self.seconds if self.seconds else 0.0

    @classmethod
    def of_all(cls, parts: Sequence["JobProgress"]) -> "JobProgress":
        """Adds up the progress of processes that ran at the same time."""
        n, errors = sum(each.n for each in parts), sum(each.errors for each in parts)
        return cls(n, errors, max(each.seconds for each in parts))


@dataclass(frozen=True)
class JobResult:
    """A summary of what a job has written."""

    path: Path
    """The file that was written."""
    n: int
    """Rows that were added."""
    errors: int
    """How many of them are of pictures that could not be read; they say why."""
    resumed: int
    """Rows that were there already."""
    seconds: float
    """Seconds from the first picture to the last."""
    engine: str
    """The engine that ran the model."""
    facts: ExportMetadata = field(repr=False)
    """What the model says of itself."""
    first: bool = field(default=True, repr=False)
    """Whether this process is the first of those that did the job, the one that prints."""

    @property
    def images_per_second(self) -> float:
        """Returns pictures per second."""
        return self.n / self.seconds if self.seconds else 0.0


class Observer:
    """Hears of a job's progress. This one ignores it; subclasses show it."""

    def say(self, text: str) -> None:
        """Receives a line about what is being done."""

    def started(self, seen: Container[str], processes: int) -> None:
        """Notes that rows begin to come: `seen` are the paths that have one, `processes` the number that share the
        others."""

    def advanced(self, progress: JobProgress) -> None:
        """Notes, after every batch, the progress of this process."""

    def ended(self) -> None:
        """Notes that no more rows come, whatever the reason."""


def open_job(request: JobRequest, say: Say = lambda _: None) -> Job:
    """Opens the engine after looking at how much there is to do: one picture, some, or many."""
    if request.workers is not None and request.workers < 1:
        raise UserError(f"--workers must be at least 1, not {request.workers}")
    inputs = request.pictures.found()
    first = _first(inputs, 2 if request.pictures.piped else MANY)
    if not first:
        raise UserError(f"there is no picture in {request.pictures.where}")
    workers = prediction_workers(single=len(first) == 1) if request.workers is None else request.workers
    engine = _open_engine(request, workers, many=len(first) == MANY, say=say)
    return Job(put_back(first, inputs), Predictor(engine, request.batch_size, request.decode_limits, request.tiles))


def _open_engine(request: JobRequest, workers: int, many: bool, say: Say) -> Engine:
    """Opens the engine for a MODEL or for a model in memory."""
    if isinstance(request.model, (str, Path)):
        return open_engine(request.model, request.engine, workers=workers, loading=request.loading, many=many, say=say)
    from vitrail.inference.engines.torch import TorchEngine

    return TorchEngine(request.model, workers)


def _first(inputs: Iterator[Input], most: int) -> list[Input]:
    """Takes up to `most` inputs, to see how much there is to do.

    It stops after two if they are members of archives, which hold their bytes in memory.
    """
    first: list[Input] = []
    for each in islice(inputs, most):
        first.append(each)
        if len(first) > 1 and "::" in (each.path or ""):
            break
    return first


def write_job(request: JobRequest, output: OutputFile, rows: RowKind, observer: Observer | None = None) -> JobResult:
    """Writes the rows of all pictures to a file, by this process or by all that were started together with it."""
    observer = observer or Observer()
    if is_distributed() or (output.resume and processes_folder(output.growing).exists()):
        from vitrail.inference.jobs import parallel  # imports torch, which a single process does not need

        return parallel.write_in_parallel(request, output, rows, observer)
    job = open_job(request, observer.say)
    writer = open_writer(output.growing, rows.columns(job.facts), resume=output.resume, overwrite=output.overwrite)
    observer.started(writer.seen, 1)
    done = stream(writer, rows.batches(job.predictor, job.unseen(writer)), observer)
    output.finish()
    return JobResult(output.path, done.n, done.errors, writer.count, done.seconds, job.engine, job.facts)


def stream(writer: RowWriter, batches: Iterable[list[Row]], observer: Observer) -> JobProgress:
    """Writes rows as they come; whatever interrupts it, what is written stays and can be resumed."""
    done, start, finished = JobProgress(), time.perf_counter(), False
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
