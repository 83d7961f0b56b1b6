"""One step over several processes: torch's DDP by default, FSDP where a model does not fit.

The global batch is the configuration's, whatever the number of processes: each computes its part, and gradients are
averaged. So a run can go on with more or fewer of them.

FSDP's modules take a second to import. What it makes is known by its methods here, so that a run that does without it
starts without them.
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
from vitrail.processes import Processes
from vitrail.training.learner import Learner
from vitrail.training.objectives.base import Objective


class Step(nn.Module):
    """A batch -> its loss and what else was measured. The one module that DDP and FSDP wrap: whatever an objective
    does with the model happens inside its forward pass, where they are watching."""

    def __init__(self, model: Any, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        losses = self.objective(self.model, batch)
        return losses.loss, losses.measures


def wrapped(step: Step, config: TrainConfig, processes: Processes) -> nn.Module:
    """The step as the processes take it together. FSDP replaces the parameters: build the optimizer afterwards."""
    if processes.count == 1:
        return step
    if config.parallel == "ddp":
        return DistributedDataParallel(step, forward_sync_buffers=False, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    # Weights travel and compute in half precision; gradients are added up in full.
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    # A block's weights are there while it computes, and no longer.
    for block in getattr(step.model, "blocks", None) or getattr(step.model, "stages", ()):
        fully_shard(block, mp_policy=policy)
    fully_shard(step, mp_policy=policy)
    return step


def before_the_last_part(stepper: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Gradients of a step's parts are added up at home; only with the last one they travel."""
    if synchronise := getattr(stepper, "set_requires_gradient_sync", None):  # FSDP
        synchronise(last)
    elif isinstance(stepper, DistributedDataParallel) and not last:
        return stepper.no_sync()
    return nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """A tensor that the processes have in parts, put together in each of them."""
    return tensor.full_tensor() if is_part(tensor) else tensor  # pyright: ignore[reportAttributeAccessIssue]


def is_part(tensor: Tensor) -> bool:
    """Whether it is FSDP's: a DTensor."""
    return hasattr(tensor, "full_tensor")


def is_sharded(learner: Learner) -> bool:
    return any(map(is_part, learner.parameters()))


def gathered(learner: Learner, into: Learner) -> Learner:
    """The learner's weights in a plain one, as wide as they are."""
    into.load_state_dict({name: whole(tensor) for name, tensor in learner.state_dict().items()})
    return into


def part_of_batch(config: TrainConfig, processes: Processes) -> int:
    """Samples of a batch that are each process's."""
    if config.batch_size % (processes.count * config.accumulate):
        parts = f" in {config.accumulate} parts each" if config.accumulate > 1 else ""
        raise UserError(
            f"--batch-size {config.batch_size} cannot be shared equally by {processes.count} processes{parts}; "
            f"choose a multiple of {processes.count * config.accumulate}"
        )
    return config.batch_size // processes.count


def together(batches: Iterator[Batch], processes: Processes, samples: int, max_bad: float) -> Iterator[Batch]:
    """A process's own part of the stream. What goes wrong in one process is known to all at the same step: bad samples
    are counted over all of them, and a failure is everyone's."""
    if processes.count == 1:
        yield from batches
        return
    bad: dict[str, str] = {}
    while True:
        batch = processes.all_or_none(lambda: next(batches))
        if processes.sum([len(batch.bad)])[0]:
            batch.bad = [each for part in processes.gather(batch.bad) for each in part]
            processes.all_or_none(lambda found=batch.bad: check_bad(bad, found, samples, max_bad))
        yield batch
