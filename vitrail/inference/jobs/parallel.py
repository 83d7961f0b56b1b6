"""A job by several processes: each takes some of the pictures, and the first makes one file of what all wrote."""

from dataclasses import replace
from pathlib import Path

from vitrail.errors import UserError
from vitrail.inference.jobs import process_files
from vitrail.inference.jobs.job import Job, JobRequest, JobResult, Observer, Progress, open_job, stream
from vitrail.inference.jobs.outputs import OutputFile, open_writer
from vitrail.inference.jobs.rows import Rows
from vitrail.inference.jobs.writers import Writer, prepare
from vitrail.launched import starts
from vitrail.models.device import choose_device
from vitrail.processes import Processes, joined, local_device


def write(request: JobRequest, output: OutputFile, rows: Rows, observer: Observer) -> JobResult:
    """Writes the rows of this process's pictures beside the output, and lets the first process make one file of all.

    What goes wrong before the first row stops all processes. Later one that fails just ends: its neighbours learn of
    it, or are ended by torchrun, and what all have written is there to go on with.
    """
    out = output.growing
    with joined(local_device(choose_device(request.loading.device))) as processes:
        observer = observer if processes.first else Observer()
        job = _open_job(request, processes, observer)
        columns = rows.columns(job.facts)
        # torchrun repeats the command word for word when a process has died: then what is there is the job's own.
        resume, overwrite = output.resume or starts() > 0, output.overwrite and not starts() > 0
        processes.first_alone(lambda: prepare(out, resume, overwrite))

        def opened(path: Path) -> Writer:
            return open_writer(path, columns, resume=True)

        seen = processes.first_alone(lambda: process_files.recover(out, opened))
        place = process_files.path_of(out, processes.rank, processes.count)
        own = processes.all_or_none(lambda: process_files.ProcessFile(place, opened))
        processes.first_alone(lambda: process_files.check_visible(out, processes.count))
        inputs = own.take(job.inputs, processes.rank, processes.count, seen)
        observer.started(seen, processes.count)
        mine = stream(own, rows.batches(job.predictor, inputs), observer)
        done = Progress.of_all(processes.gather(mine))
        counts = processes.gather(own.rows)
        processes.first_alone(lambda: process_files.join(out, counts))
        processes.first_alone(output.finish)
    return JobResult(output.path, done.n, done.errors, len(seen), done.seconds, job.engine, job.facts, processes.first)


def _open_job(request: JobRequest, processes: Processes, observer: Observer) -> Job:
    """Opens the job in every process: the first chooses the engine, and exports the model where that needs it; the
    others take the same."""
    if request.pictures.piped and processes.count > 1:
        raise UserError(
            "- reads a list from stdin, which processes cannot share: give files, folders or globs, or use one process",
            said_by_another=not processes.first,
        )
    own = processes.all_or_none(lambda: open_job(request, observer.say) if processes.first else None)
    engine = processes.gather(own and own.engine)[0]
    return processes.all_or_none(lambda: own or open_job(replace(request, engine=engine)))
