"""`--processes N`: the same command in N processes of this machine, started and watched by torchrun."""

import logging
import os
import sys

from vitrail.errors import UserError
from vitrail.launched import available_processors, started_together


def without(arguments: list[str], *names: str) -> list[str]:
    """The arguments less some flags and their values."""
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
    """Run `vitrail ARGUMENTS` in so many processes, and end as they end."""
    if not processes.isdigit() or not 1 <= int(processes) <= 1024:
        raise UserError(f"--processes must be a number from 1 to 1024, not {processes!r}")
    if started_together():
        raise UserError("--processes starts processes itself: leave it out under torchrun")
    # Each gets its share of the processors, where nobody has said otherwise: more threads than those are slow.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_processors() // int(processes))))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # The processes say themselves what is wrong; torchrun's account of it is for those who call torchrun.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    try:
        run(parse_args(["--standalone", "--nproc-per-node", processes, "-m", "vitrail", *arguments]))
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        sys.exit(status if status > 0 else 128 - status)
    except SignalException as error:
        sys.exit(128 + error.sigval)
