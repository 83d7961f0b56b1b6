"""Takes a training step in several processes: by torch's DDP, or by FSDP for a model that does not fit into each of
them.

The batch size is that of all processes together, whatever their number: each computes a part, and gradients are
averaged. So a run can be resumed with more or fewer processes.

FSDP takes a second to import. Its tensors are recognised here by their methods, so that a run without FSDP starts
without that second.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.config import TrainConfig
from vitrail.data.loader import Batch, check_bad
from vitrail.errors import UserError
from vitrail.process_group import ProcessGroup
from vitrail.training.learner import Learner
from vitrail.training.objectives.base import Objective


class Step(nn.Module):
    """The forward pass of a training step: batch -> (loss, other measures). DDP and FSDP wrap this one module, so they
    see everything that an objective does with the model."""

    def __init__(self, model: Any, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Computes the mean loss of a batch, and the sums of its other measures."""
        losses = self.objective(self.model, batch)
        return losses.loss, losses.measures


def wrapped(step: Step, config: TrainConfig, processes: ProcessGroup) -> nn.Module:
    """Wraps the step for several processes. FSDP replaces the parameters, so the optimizer has to be built
    afterwards."""
    if processes.count == 1:
        return step
    if config.parallel == "ddp":
        return DistributedDataParallel(step, forward_sync_buffers=False, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    # Weights are sent and used in half precision; gradients are summed in float32.
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    # The weights of a block are gathered only while it computes.
    for block in getattr(step.model, "blocks", None) or getattr(step.model, "stages", ()):
        fully_shard(block, mp_policy=policy)
    fully_shard(step, mp_policy=policy)
    return step


def before_the_last_part(stepper: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Makes a context in which gradients are accumulated without being sent to other processes, until the last part of
    a batch."""
    if synchronise := getattr(stepper, "set_requires_gradient_sync", None):  # FSDP
        synchronise(last)
    elif isinstance(stepper, DistributedDataParallel) and not last:
        return stepper.no_sync()
    return nullcontext()


def gather_whole(tensor: Tensor) -> Tensor:
    """Returns a tensor whole in every process, gathered if each process holds a part of it."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def is_part(tensor: Tensor) -> bool:
    """Whether each process holds only a part of this tensor, as FSDP makes it (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def is_sharded(learner: Learner) -> bool:
    """Whether each process holds only a part of the weights."""
    return any(map(is_part, learner.parameters()))


def gathered(learner: Learner, into: Learner) -> Learner:
    """Copies the learner's weights, gathered from all processes, `into` another learner, and returns that."""
    into.load_state_dict({name: gather_whole(tensor) for name, tensor in learner.state_dict().items()})
    return into


def part_of_batch(config: TrainConfig, processes: ProcessGroup) -> int:
    """Returns the number of samples of a batch that each process computes; a UserError if they cannot be shared
    equally."""
    if config.batch_size % (processes.count * config.accumulate):
        parts = f" in {config.accumulate} parts each" if config.accumulate > 1 else ""
        raise UserError(
            f"--batch-size {config.batch_size} cannot be shared equally by {processes.count} processes{parts}; "
            f"choose a multiple of {processes.count * config.accumulate}"
        )
    return config.batch_size // processes.count


def synchronised_stream(
    batches: Iterator[Batch], processes: ProcessGroup, samples: int, max_bad: float
) -> Iterator[Batch]:
    """Yields this process's batches, and makes failures common to all processes at the same step: bad samples are
    counted over all of them, and what one process raises is raised in all.

    Args:
        batches: this process's part of each batch.
        processes: the processes that take each step together.
        samples: the number of training samples.
        max_bad: the largest share of them that may be bad.
    """
    if processes.count == 1:
        yield from batches
        return
    bad: dict[str, str] = {}
    while True:
        batch = processes.run_on_all(lambda: next(batches))
        if processes.sum([len(batch.bad)])[0]:
            batch.bad = [each for part in processes.gather(batch.bad) for each in part]
            processes.run_on_all(lambda found=batch.bad: check_bad(bad, found, samples, max_bad))
        yield batch
