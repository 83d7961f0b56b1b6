"""Runs commands in several processes, started by torchrun or by `--processes N` on this machine."""

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitrail.cli import note, read_flags
from vitrail.environment import available_processors, is_distributed, is_first
from vitrail.errors import UserError


def run_command(name: str, command: Callable[..., None], arguments: list[str]) -> None:
    """Reads the arguments of a command and runs it; with --processes N, in N processes."""

    @functools.wraps(command)
    def chosen(*values: Any, processes: int | None = None, **named: Any) -> None:
        """Runs the command here, or starts the processes that run it."""
        if processes is None:
            return command(*values, **named)
        return launch(str(processes), [name, *without(arguments, "--processes")])

    read_flags(chosen, arguments, name)


@contextmanager
def report_once() -> Iterator[None]:
    """Lets only the first process print a UserError that every process raises before they are connected."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error), said_by_another=not is_first()) from error


def _signal(number: int) -> str:
    """Returns the name of a signal, with what mostly sends it where that is not a person."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (the system sends it where memory runs out)" if name == "SIGKILL" else name


def without(arguments: list[str], *names: str) -> list[str]:
    """Returns the arguments without the named flags and their values."""
    kept, skip = [], False
    for each in arguments:
        if skip:
            skip = False
        elif each in names:
            skip = True
        elif each.partition("=")[0] not in names:
            kept.append(each)
    return kept


def launch(processes: str, arguments: list[str]) -> None:
    """Runs `vitrail ARGUMENTS` in several processes and exits with their status."""
    if not processes.isdigit() or not 1 <= int(processes) <= 1024:
        raise UserError(f"--processes must be a number from 1 to 1024, not {processes!r}")
    if is_distributed():
        raise UserError("--processes starts processes itself: leave it out under torchrun")
    # Unless the user has set it, each process gets its share of the processors: more threads would be slow.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_processors() // int(processes))))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # The processes report errors themselves; torchrun's own report is for those who call torchrun.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    try:
        run(parse_args(["--standalone", "--nproc-per-node", processes, "-m", "vitrail", *arguments]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:  # it has said why itself
            sys.exit(failure.exitcode)
        who = f"process {rank} of {processes} was ended by {_signal(-failure.exitcode)}"
        note(f"vitrail: {who}, and the others with it; what is saved stays, and --resume goes on with it")
        sys.exit(128 - failure.exitcode)
    except SignalException as error:
        sys.exit(128 + error.sigval)
