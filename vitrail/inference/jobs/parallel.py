"""Runs a job in several processes: each takes some of the pictures, and the first joins what all wrote."""

from dataclasses import replace
from pathlib import Path

from vitrail.environment import restart_count
from vitrail.errors import UserError
from vitrail.inference.jobs import process_files
from vitrail.inference.jobs.job import Job, JobProgress, JobRequest, JobResult, Observer, open_job, stream
from vitrail.inference.jobs.outputs import OutputFile, open_writer
from vitrail.inference.jobs.rows import RowKind
from vitrail.inference.jobs.writers import RowWriter, prepare_output
from vitrail.models.device import choose_device
from vitrail.process_group import ProcessGroup, local_device, open_process_group


def write_in_parallel(request: JobRequest, output: OutputFile, rows: RowKind, observer: Observer) -> JobResult:
    """Writes the rows of this process's pictures beside the output, and lets the first process join the files of all.

    An error before the first row stops all processes. Later, a process that fails just ends; the others notice it or
    are ended by torchrun, and what all have written can be resumed.
    """
    out = output.growing
    with open_process_group(local_device(choose_device(request.loading.device))) as processes:
        observer = observer if processes.first else Observer()
        job = _open_job(request, processes, observer)
        columns = rows.columns(job.facts)
        # After a process has died torchrun starts the same command again: what exists then is from this job, so resume.
        resume, overwrite = output.resume or restart_count() > 0, output.overwrite and not restart_count() > 0
        processes.run_on_first(lambda: prepare_output(out, resume, overwrite))

        def opened(path: Path) -> RowWriter:
            """Opens a writer that continues the file if it exists."""
            return open_writer(path, columns, resume=True)

        seen = processes.run_on_first(lambda: process_files.recover(out, opened))
        place = process_files.path_of(out, processes.rank, processes.count)
        own = processes.run_on_all(lambda: process_files.ProcessFile(place, opened))
        processes.run_on_first(lambda: process_files.check_visible(out, processes.count))
        inputs = own.take(job.inputs, processes.rank, processes.count, seen)
        observer.started(seen, processes.count)
        mine = stream(own, rows.batches(job.predictor, inputs), observer)
        done = JobProgress.of_all(processes.gather(mine))
        counts = processes.gather(own.rows)
        processes.run_on_first(lambda: process_files.join_process_files(out, counts))
        processes.run_on_first(output.finish)
    return JobResult(output.path, done.n, done.errors, len(seen), done.seconds, job.engine, job.facts, processes.first)


def _open_job(request: JobRequest, processes: ProcessGroup, observer: Observer) -> Job:
    """Opens the job in every process.

    The first process chooses the engine, and exports the model if needed; the others take the same engine.
    """
    if request.pictures.piped and processes.count > 1:
        raise UserError(
            "- reads a list from stdin, which processes cannot share: give files, folders or globs, or use one process",
            said_by_another=not processes.first,
        )
    own = processes.run_on_all(lambda: open_job(request, observer.say) if processes.first else None)
    engine = processes.gather(own and own.engine)[0]
    return processes.run_on_all(lambda: own or open_job(replace(request, engine=engine)))
