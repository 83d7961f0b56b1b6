"""Several processes that do one job together: who this one is, and the little they tell each other.

torchrun starts them, on one machine or many; started by nothing, a program is the only process and every call here
returns at once. What goes over these calls is small. Weights and gradients travel inside torch's own DDP and FSDP.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vitrail.errors import UserError
from vitrail.launched import started_together, starts

_T = TypeVar("_T")

PATIENCE = timedelta(hours=2)
"""How long one process waits for another that is alive; one that died is noticed at once."""
_NUMBERS = itertools.count()
"""Of the times that this process has joined others: all of them count alike."""


@dataclass(frozen=True)
class Processes:
    """This process among `count`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Of every value over the processes."""
        if self.count == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def largest(self, value: int) -> int:
        if self.count == 1:
            return value
        number = torch.tensor(value)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def gather(self, value: _T) -> list[_T]:
        """What each process has, in their order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of every process's tensor, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, failure: str | None) -> None:
        """A UserError in every process if something went wrong in one: nobody is left waiting for it."""
        if not self.largest(failure is not None):
            return
        said = [each for each in self.gather(failure) if each is not None]
        raise UserError(said[0], said_by_another=not self.first)

    def all_or_none(self, action: Callable[[], _T]) -> _T:
        """What each process does for itself; if one fails, all do."""
        result: Any = None
        failure = None
        try:
            result = action()
        except UserError as error:
            if self.count == 1:
                raise
            failure = str(error)
        self.agree(failure)
        return result

    def first_alone(self, action: Callable[[], _T]) -> _T:
        """Done by the first process; all return what it returned, or fail as it failed."""
        result = [self.all_or_none(action if self.first else lambda: None)]
        if self.count > 1:
            dist.broadcast_object_list(result)
        return result[0]  # pyright: ignore[reportReturnType]


def local_device(device: torch.device) -> torch.device:
    """Of the accelerators of a machine, the one that is this process's."""
    if device.type != "cuda" or device.index is not None or not started_together():
        return device
    mine = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(mine)
    return mine


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """The processes that were started with this one, connected; it alone where there are none."""
    if not started_together():
        yield Processes()
        return
    # What is said here goes over the CPU even where gradients go over NCCL: it must not wait for the accelerator.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, count = next(dist.rendezvous("env://", timeout=PATIENCE))  # pyright: ignore[reportPrivateImportUsage]
    # A job that is started again, or a program's next one, may meet in the same store, where old addresses still are.
    store = dist.PrefixStore(f"start-{starts()}-{next(_NUMBERS)}", store)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if "closed by peer" in str(error) or "Connection reset" in str(error):
            raise UserError(
                "another process of this job has ended, so this one stops too. torchrun --max-restarts N starts "
                "the job again by itself; by hand, go on with --resume"
            ) from error
        raise
    finally:
        dist.destroy_process_group()
