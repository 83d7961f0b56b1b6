"""`predict` and `embed` in several processes: each takes a share of the inputs, the first makes one file of them."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli import note
from vitrail.cli.bar import Bar
from vitrail.cli.streaming import Done, Job, Output, Work, open_job, show
from vitrail.errors import UserError
from vitrail.inference import shares
from vitrail.inference.inputs import STDIN
from vitrail.inference.outputs import Writer, make_way

if TYPE_CHECKING:
    from vitrail.processes import Processes


def write(work: Work, output: Output) -> tuple[Job, Done]:
    """Each process writes the rows of its inputs beside the output; the first makes one file of them.

    What goes wrong before the first row stops all of them. Later a process that fails just ends: its neighbours learn
    of it, or are ended by torchrun, and what all have written is there to go on with.
    """
    from vitrail.launched import starts
    from vitrail.models.device import choose_device
    from vitrail.processes import joined, local_device

    out = output.path
    with joined(local_device(choose_device(work.loading.device))) as processes:
        job = _open_job(work, processes)
        # torchrun repeats the command word for word when a process has died: then what is there is the job's own.
        resume, overwrite = output.resume or starts() > 0, output.overwrite and not starts() > 0
        processes.first_alone(lambda: make_way(out, resume, overwrite))

        def opened(path: Path) -> Writer:
            return output.writer(job, path, resume=True, overwrite=False)

        seen = processes.first_alone(lambda: shares.settle(out, opened))
        place = shares.share_of(out, processes.rank, processes.count)
        share = processes.all_or_none(lambda: shares.Share(place, opened))
        processes.first_alone(lambda: shares.check_shared(out, processes.count))
        inputs = share.take(job.inputs, processes.rank, processes.count, seen)
        mine = show(share, output.rows(job, inputs), Bar(processes.count if processes.first else 0))
        done = Done.of_all(processes.gather(mine), resumed=len(seen), first=processes.first)
        rows = processes.gather(share.rows)
        processes.first_alone(lambda: shares.join(out, rows))
    return job, done


def _open_job(work: Work, processes: "Processes") -> Job:
    """The first process chooses the engine, and exports the model where that needs it; the others take the same."""
    if STDIN in work.paths and processes.count > 1:
        raise UserError(
            "- reads a list from stdin, which processes cannot share: give files, folders or globs, or use one process",
            said_by_another=not processes.first,
        )
    own = processes.all_or_none(lambda: open_job(work, note) if processes.first else None)
    engine = processes.gather(own and own.engine)[0]
    return processes.all_or_none(lambda: own or open_job(replace(work, engine=engine)))
