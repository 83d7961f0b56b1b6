"""Refuses a training that needs more memory than the machine has free, before it begins."""

import os
from pathlib import Path

import torch

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.io.free_memory import VARIABLE, free_machine_memory
from vitrail.models.cost import memory
from vitrail.models.cost_at_scale import scale
from vitrail.training.objectives import objective_class

_MARGIN = 0.9
"""The largest share of the free memory that a suggested change may need."""
_PARTS = 4096
"""The largest number of parts that a batch is suggested to be computed in."""


def check_memory(config: TrainConfig, device: torch.device, processes: int = 1) -> None:
    """Raises a UserError if a step needs more memory than is free, with both amounts and two remedies.

    Args:
        config: the training.
        device: where it will run: the memory of the machine, or of a CUDA device, counts.
        processes: how many processes share every batch.
    """
    if config.freeze != "nothing":  # a backbone that does not learn keeps no activations
        return
    free = free_memory(device)
    # Processes on one machine share its memory; each accelerator has its own.
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
    needed = beside * planned(config, processes)
    if free is None or needed <= free:
        return
    model, (rows, columns) = config.model, config.model.rows_columns
    at_once = config.batch_size // config.accumulate
    where = "" if device.type == "cpu" else f" on {device}"
    shares = f", {beside} processes" if beside > 1 else ""
    raise UserError(
        f"{model.name or 'the model'} at {rows} x {columns} px with {at_once} images at a time is planned to take "
        f"{_bytes(needed)} of memory{shares}, and {_bytes(free)} are free{where}: give "
        f"{', or '.join(_remedies(config, processes, beside, free)[:2])}.\n"
        f"{VARIABLE}={-(-needed // 10**9)}GB in the environment lets it begin all the same"
    )


def planned(config: TrainConfig, processes: int = 1) -> int:
    """Computes the bytes that a step needs in each process, counted as `vitrail plan` does, less what hidden patches
    save."""
    batch, size = config.batch_size // processes // config.accumulate, 4 if config.precision == "float32" else 2
    parts = memory(config.model, batch, config.optimizer.name, size)
    if config.parallel == "fsdp" and processes > 1:
        parts = scale(config.model, batch * processes, processes, config.optimizer.name, size == 2).memory["fsdp"]
    return sum(parts.values()) - int(objective_class(config).unseen(config) * parts["activations"])


def free_memory(
    device: torch.device, system: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Returns the bytes that can still be used, of the machine or of a CUDA device; None if that is not known.

    VITRAIL_MEMORY in the environment counts in place of both.

    Args:
        device: whose memory is meant.
        system: as for `free_machine_memory`.
        groups: as for `free_machine_memory`.
    """
    if device.type == "cpu" or os.environ.get(VARIABLE):
        return free_machine_memory(system, groups)
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def _remedies(config: TrainConfig, processes: int, beside: int, free: int) -> list[str]:
    """Lists flags with which the training fits, by the same count; first those that change the training least."""

    def fits(changed: TrainConfig) -> int:
        needed = beside * planned(changed, processes)
        return needed if needed <= _MARGIN * free else 0

    found = []
    share = config.batch_size // processes
    parts = [each for each in range(config.accumulate + 1, min(share, _PARTS) + 1) if share % each == 0]
    checkpointed = config.with_(model=config.model.with_(gradient_checkpointing=True))
    for start, flag in ((config, ""), (checkpointed, "--model.gradient-checkpointing")):
        if flag and (needed := fits(start)):
            found.append(f"{flag} ({_bytes(needed)})")
        for each in parts:
            if needed := fits(start.with_(accumulate=each)):
                found.append(f"{f'{flag} --accumulate {each}'.strip()} ({_bytes(needed)})")
                break
    smaller = config.batch_size
    while (smaller := smaller // 2) >= processes * config.accumulate:
        if smaller % (processes * config.accumulate) == 0 and (needed := fits(config.with_(batch_size=smaller))):
            found.append(f"--batch-size {smaller} ({_bytes(needed)})")
            break
    return [*found, "a smaller model", "smaller pictures (--model.image-size)"]


def _bytes(amount: float) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e8 else f"{amount / 1e6:.1f} MB"
