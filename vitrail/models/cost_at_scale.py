"""Computes what a training costs on many accelerators: memory on each, bytes sent between them, time. Without torch.

Under DDP every accelerator holds the whole model, and each batch ends with a sum of all gradients. In a ring of n
accelerators each sends 2 (n - 1) / n of the gradients' bytes.

Under FSDP each holds one nth of weights, gradients and optimizer. The weights of a block are gathered when it computes,
once in the forward and once in the backward pass, and its gradients are summed and distributed: each of the three sends
(n - 1) / n of the block's bytes. What lies outside the blocks is gathered once a step.

Bytes are sent while the accelerator computes: some during the forward pass, the others during the backward pass, which
takes twice as long. The accelerator waits only for what is not sent by then.
"""

import math
from dataclasses import dataclass
from typing import get_args

from vitrail.config import ModelConfig
from vitrail.config.training import Parallel
from vitrail.errors import UserError
from vitrail.models.cost import block_parameters, cost, memory

FULL = 4
"""Bytes of a float32 number."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that each accelerator sends in a step, during its forward and its backward pass."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        """Bytes that each accelerator sends in a step."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Pace:
    """The speed of a training."""

    step_seconds: float
    compute_seconds: float
    """Seconds of a step spent computing, without waiting for bytes that are sent."""
    images_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class CostAtScale:
    """The cost of a training on many accelerators, known before it starts."""

    accelerators: int
    batch: int
    """Images in a step on each accelerator."""
    memory: dict[str, dict[str, int]]
    """Bytes on each accelerator by what they hold, under "ddp" and under "fsdp"."""
    traffic: dict[str, Traffic]
    """Bytes that each accelerator sends, under "ddp" and under "fsdp"."""


def scale(
    config: ModelConfig, batch: int, accelerators: int, optimizer: str = "adamw", half: bool = False
) -> CostAtScale:
    """Computes memory and traffic of a training on several accelerators.

    Args:
        config: the model.
        batch: images in a step on all accelerators together; a UserError if they cannot be shared equally.
        accelerators: how many there are.
        optimizer: "adamw" or "sgd".
        half: whether weights are sent and activations kept in two bytes.
    """
    if batch % accelerators:
        raise UserError(
            f"--batch {batch} cannot be shared equally by --accelerators {accelerators}; "
            f"choose a multiple of {accelerators}"
        )
    size, own = FULL // 2 if half else FULL, batch // accelerators
    whole = memory(config, own, optimizer, size)
    return CostAtScale(
        accelerators,
        own,
        {"ddp": whole, "fsdp": _sharded(config, whole, accelerators, size)},
        {kind: _traffic(config, kind, accelerators, size) for kind in get_args(Parallel)},
    )


def pace(
    config: ModelConfig, batch: int, accelerators: int, traffic: Traffic, flops: float, bandwidth: float | None
) -> Pace:
    """Computes how fast a training goes.

    Args:
        config: the model.
        batch: images in a step on all accelerators together.
        accelerators: how many there are.
        traffic: the bytes that each sends in a step.
        flops: FLOPs a second that each accelerator sustains.
        bandwidth: bytes a second that each can send; None: sending takes no time.
    """
    one = cost(config)
    forward = 2 * one.macs * batch / accelerators / flops
    # Gradient checkpointing repeats the forward pass during the backward pass.
    backward = (3 if config.gradient_checkpointing and config.family == "vit" else 2) * forward
    speed = bandwidth or math.inf
    step = max(forward, traffic.forward / speed) + max(backward, traffic.backward / speed)
    return Pace(step, forward + backward, batch / step, one.tokens * batch / step)


def shards(images: int, image_bytes: int, shard_bytes: int) -> int:
    """Computes how many shards of `shard_bytes` a data set fills."""
    return -(-images * image_bytes // shard_bytes)


def _sharded(config: ModelConfig, whole: dict[str, int], accelerators: int, size: int) -> dict[str, int]:
    """Computes the bytes on each accelerator under FSDP. whole: the bytes under DDP; size: bytes of a number that is
    gathered."""
    blocks = block_parameters(config)
    outside, largest = cost(config).parameters - sum(blocks), max(blocks, default=0)
    parts = {name: -(-whole[name] // accelerators) for name in ("weights", "gradients", "optimizer")}
    # Gathered at one time: what lies outside the blocks, the block that computes, the next block, which is being
    # gathered, and the gradients of one block.
    gathered = 0 if accelerators == 1 else size * (outside + 3 * largest)
    # No half-precision copies: the weights are gathered in two bytes already.
    return {**parts, "gathered": gathered, "activations": whole["activations"]}


def _traffic(config: ModelConfig, kind: str, accelerators: int, size: int) -> Traffic:
    """Computes the bytes that each accelerator sends in a step. size: bytes of a weight that is sent."""
    parameters, blocks = cost(config).parameters, sum(block_parameters(config))

    def sent(count: int) -> int:
        return count * (accelerators - 1) // accelerators

    if kind == "ddp":
        return Traffic(0, sent(2 * FULL * parameters))
    # Gradients are summed in float32, whatever precision weights are sent in.
    return Traffic(sent(size * parameters), sent(size * blocks + FULL * parameters))
