"""Refuses a training that the machine's free memory cannot hold, before it begins."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from vitrail.config import TrainConfig
from vitrail.data.sizes import byte_count
from vitrail.errors import UserError
from vitrail.models.cost import memory
from vitrail.models.scale import scale
from vitrail.training.objectives import objective_class

VARIABLE = "VITRAIL_MEMORY"
"""The environment variable that says how much memory there is, in place of what the machine says."""
_MARGIN = 0.9
"""What is advised takes at most this share of what is free."""
_PARTS = 4096
"""A batch is not advised to be computed in more parts than this."""


def check_memory(config: TrainConfig, device: torch.device, processes: int = 1) -> None:
    """Raises a UserError where a step is planned to take more memory than is free, with the numbers and two remedies.

    Args:
        config: The training.
        device: Where it will run: the memory of the machine, or of a CUDA device.
        processes: How many share every batch.
    """
    if config.freeze != "nothing":  # no activations are kept for a backbone that does not learn
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
    """Bytes of a step in each process, as `vitrail plan` counts them; patches that a model does not see count less."""
    batch, size = config.batch_size // processes // config.accumulate, 4 if config.precision == "float32" else 2
    parts = memory(config.model, batch, config.optimizer.name, size)
    if config.parallel == "fsdp" and processes > 1:
        parts = scale(config.model, batch * processes, processes, config.optimizer.name, size == 2).memory["fsdp"]
    return sum(parts.values()) - int(objective_class(config).unseen(config) * parts["activations"])


def free_memory(
    device: torch.device, system: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Gives the bytes that can still be taken: of the machine, less where a control group (a container) has a limit, or
    of a CUDA device; None where nothing tells.

    Args:
        device: Whose memory is meant.
        system: Where the kernel tells of the machine and of this process.
        groups: Where it tells of control groups.
    """
    if given := os.environ.get(VARIABLE):
        return byte_count(given, VARIABLE)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    return min([*_of_machine(system), *_of_groups(system, groups)], default=None)


def _of_machine(system: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (system / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024 * int(line.split()[1])


def _of_groups(system: Path, groups: Path) -> Iterator[int]:
    """What the group of this process and each one above it have left. Cached files give way, and count as free."""
    with suppress(OSError):
        for line in (system / "self" / "cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if kinds == "":
                root, files = groups, ("memory.max", "memory.current", ("inactive_file ", "active_file "))
            elif "memory" in kinds.split(","):
                root = groups / "memory"
                files = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file ")
            else:
                continue
            group = root / name.strip("/")
            for each in (group, *group.parents):
                if each.is_relative_to(root):
                    yield from _left(each, *files)


def _left(group: Path, limit: str, used: str, cached: tuple[str, ...]) -> Iterator[int]:
    with suppress(OSError, ValueError):  # a group without a limit has no file of it, or says "max"
        most, now = int((group / limit).read_text()), int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        yield max(0, most - now + sum(int(line.split()[1]) for line in lines if line.startswith(cached)))


def _remedies(config: TrainConfig, processes: int, beside: int, free: int) -> list[str]:
    """What would fit, by the same count, in the order of what changes least."""

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
