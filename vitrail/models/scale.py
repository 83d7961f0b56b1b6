"""What a training costs on many accelerators: memory on each, bytes between them, time. No torch here.

ddp has the whole model on every accelerator, and each batch ends with a sum of all gradients: by a ring of n, each one
sends 2 (n - 1) / n of their bytes. fsdp has one nth of weights, gradients and optimizer on each. The weights of a block
are gathered when it computes, forward and again backward, and its gradients are added up and shared out: each of the
three sends (n - 1) / n of the bytes. What lies outside of the blocks is gathered once a step.

Bytes travel while the accelerator computes, behind the forward pass and behind the backward pass, which is twice as
long. Only what takes longer than that is waited for.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.cost import block_parameters, cost, memory

Parallel = Literal["ddp", "fsdp"]
FULL = 4
"""Bytes of a number in float32."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that each accelerator sends in a step."""

    forward: int
    backward: int

    @property
    def total(self) -> int:
        return self.forward + self.backward


@dataclass(frozen=True)
class Pace:
    """How fast it goes."""

    step_seconds: float
    compute_seconds: float
    """Of a step, without waiting for what travels."""
    images_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class Scale:
    """A training on many accelerators before it is paid for."""

    accelerators: int
    batch: int
    """Images of a step on each."""
    memory: dict[str, dict[str, int]]
    """Under ddp and under fsdp: bytes on each accelerator, by what they hold."""
    traffic: dict[str, Traffic]


def scale(config: ModelConfig, batch: int, accelerators: int, optimizer: str = "adamw", half: bool = False) -> Scale:
    """`batch` is the whole batch, shared by all; `half`: weights travel and activations are kept in two bytes."""
    if batch % accelerators:
        raise UserError(
            f"--batch {batch} cannot be shared equally by --accelerators {accelerators}; "
            f"choose a multiple of {accelerators}"
        )
    size, own = FULL // 2 if half else FULL, batch // accelerators
    whole = memory(config, own, optimizer, size)
    return Scale(
        accelerators,
        own,
        {"ddp": whole, "fsdp": _sharded(config, whole, accelerators, size)},
        {kind: _traffic(config, kind, accelerators, size) for kind in get_args(Parallel)},
    )


def pace(
    config: ModelConfig, batch: int, accelerators: int, traffic: Traffic, flops: float, bandwidth: float | None
) -> Pace:
    """At so many FLOPs a second sustained by each accelerator, and so many bytes a second out of each. Without a
    bandwidth, nothing is waited for."""
    one = cost(config)
    forward = 2 * one.macs * batch / accelerators / flops
    # With gradient checkpointing the forward pass is done again on the way back.
    backward = (3 if config.gradient_checkpointing and config.family == "vit" else 2) * forward
    speed = bandwidth or math.inf
    step = max(forward, traffic.forward / speed) + max(backward, traffic.backward / speed)
    return Pace(step, forward + backward, batch / step, one.tokens * batch / step)


def shards(images: int, image_bytes: int, shard_bytes: int) -> int:
    """How many shards of a size a data set fills."""
    return -(-images * image_bytes // shard_bytes)


def _sharded(config: ModelConfig, whole: dict[str, int], accelerators: int, size: int) -> dict[str, int]:
    blocks = block_parameters(config)
    outside, largest = cost(config).parameters - sum(blocks), max(blocks, default=0)
    parts = {name: -(-whole[name] // accelerators) for name in ("weights", "gradients", "optimizer")}
    # Whole at one time: what lies outside of the blocks, the block that computes, the next one, which is on its way,
    # and the gradients of one.
    gathered = 0 if accelerators == 1 else size * (outside + 3 * largest)
    # Weights that are gathered in two bytes need no copies in two bytes.
    return {**parts, "gathered": gathered, "activations": whole["activations"]}


def _traffic(config: ModelConfig, kind: str, accelerators: int, size: int) -> Traffic:
    parameters, blocks = cost(config).parameters, sum(block_parameters(config))

    def sent(count: int) -> int:
        return count * (accelerators - 1) // accelerators

    if kind == "ddp":
        return Traffic(0, sent(2 * FULL * parameters))
    # Gradients are added up in float32, whatever weights travel in.
    return Traffic(sent(size * parameters), sent(size * blocks + FULL * parameters))
