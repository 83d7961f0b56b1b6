"""A group of processes that do one job: which of them this one is, and the small values they exchange.

torchrun starts them, on one machine or many. A program that was started by itself is a group of one, and every call
here returns at once. Weights and gradients do not go this way: torch's own DDP and FSDP move them.
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

from vitrail.environment import is_distributed, restart_count
from vitrail.errors import UserError

_T = TypeVar("_T")

_PATIENCE = timedelta(hours=2)
"""How long one process waits for another that is alive. One that has died is noticed at once."""
_NUMBERS = itertools.count()
"""Numbers the groups that this process has joined. All processes count them alike, so they agree on the number."""


@dataclass(frozen=True)
class ProcessGroup:
    """The group as one of its processes sees it: its own `rank` among `count`."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Tells whether this process is the one that writes files and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums each value over all processes."""
        if self.count == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def max(self, value: int) -> int:
        """Returns the largest value that any process has given."""
        if self.count == 1:
            return value
        number = torch.tensor(value)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return int(number)

    def gather(self, value: _T) -> list[_T]:
        """Returns the values of all processes, in the order of their ranks."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found

    def sum_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replaces a tensor, in place, by the sum of all processes' tensors."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def raise_if_any(self, failure: str | None) -> None:
        """Raises a UserError in every process if one of them has a failure, so that none waits for it without end."""
        if not self.max(failure is not None):
            return
        said = [each for each in self.gather(failure) if each is not None]
        raise UserError(said[0], said_by_another=not self.first)

    def run_on_all(self, action: Callable[[], _T]) -> _T:
        """Runs an action in every process and returns its own result. If it fails in one, it fails in all."""
        result: Any = None
        failure = None
        try:
            result = action()
        except UserError as error:
            if self.count == 1:
                raise
            failure = str(error)
        self.raise_if_any(failure)
        return result

    def run_on_first(self, action: Callable[[], _T]) -> _T:
        """Runs an action in the first process only. All processes return its result, or fail as it failed."""
        result = [self.run_on_all(action if self.first else lambda: None)]
        if self.count > 1:
            dist.broadcast_object_list(result)
        return result[0]  # pyright: ignore[reportReturnType]


def local_device(device: torch.device) -> torch.device:
    """Chooses this process's own accelerator among those of the machine."""
    if device.type != "cuda" or device.index is not None or not is_distributed():
        return device
    mine = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(mine)
    return mine


@contextmanager
def open_process_group(device: torch.device) -> Iterator[ProcessGroup]:
    """Connects the processes that were started with this one, and disconnects them at the end."""
    if not is_distributed():
        yield ProcessGroup()
        return
    # What is said here goes over the CPU even where gradients go over NCCL: it must not wait for the accelerator.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store, rank, count = next(dist.rendezvous("env://", timeout=_PATIENCE))  # pyright: ignore[reportPrivateImportUsage]
    # A job that is started again, or a program's next one, may meet in the same store, where old addresses still are.
    store = dist.PrefixStore(f"start-{restart_count()}-{next(_NUMBERS)}", store)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_PATIENCE)
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if "closed by peer" in str(error) or "Connection reset" in str(error):
            raise UserError(
                "another process of this job has ended, so this one stops too. torchrun --max-restarts N starts "
                "the job again by itself; by hand, go on with --resume"
            ) from error
        raise
    finally:
        dist.destroy_process_group()
