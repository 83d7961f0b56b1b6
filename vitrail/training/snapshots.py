"""Resumable training state on disk: written whole or not at all, checked when read.

A snapshot is a folder: `state.safetensors` (weights, optimizer, average), `state.json` (counters), `SHA256SUMS`. It is
written under a temporary name, synced, renamed, and the folder above synced; only then an older one goes. Reading
compares every byte with its checksum and falls back to the newest good one, saying so.
"""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.checkpoints.files import sync
from vitrail.errors import UserError
from vitrail.training.optimizer import Average

TENSORS, COUNTERS, SUMS = "state.safetensors", "state.json", "SHA256SUMS"
KEPT = 2


@dataclass
class Progress:
    """Where a run is: what is not a tensor, and all there is to resume from besides them."""

    step: int = 0
    """Optimizer steps done."""
    position: int = 0
    """Samples consumed."""
    best: float = -1.0
    """The best validation accuracy so far, and its step."""
    best_step: int = 0
    threads: int = field(default_factory=torch.get_num_threads)
    """Sums are added in another order by another number of threads: bits may differ then."""


def write(
    folder: Path, progress: Progress, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None
) -> Path:
    """Write the snapshot of a step and remove the ones that are older than the last `KEPT`."""
    name = f"step-{progress.step:09d}"
    final, temporary = folder / name, folder / f".{name}.{os.getpid()}"
    tensors = pack(model, optimizer, average)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear_temporary(folder)
        temporary.mkdir()
        save_file(tensors, temporary / TENSORS)
        (temporary / COUNTERS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
        sums = "".join(f"{_digest(temporary / part)}  {part}\n" for part in (TENSORS, COUNTERS))
        (temporary / SUMS).write_text(sums, encoding="utf-8")
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        if final.exists():  # the same step, written again after a resume
            shutil.rmtree(final)
        temporary.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"{final}: the snapshot cannot be written: {reason}. The disk is {folder}'s; earlier snapshots are whole"
        ) from error
    for old in snapshots(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def snapshots(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []


def read(folder: Path) -> tuple[Progress, dict[str, Tensor], list[str]] | None:
    """The newest snapshot that is whole, and what was wrong with the ones passed over; None where there is none."""
    notes: list[str] = []
    for snapshot in snapshots(folder):
        try:
            _verify(snapshot)
            progress = Progress(**json.loads((snapshot / COUNTERS).read_text(encoding="utf-8")))
            return progress, load_file(snapshot / TENSORS), notes
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            notes.append(f"{snapshot}: damaged ({error}); the one before it is used")
    return None


def pack(model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Every tensor of the training state under one name each."""
    tensors = {f"model.{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    for name, state in _optimizer_states(model, optimizer).items():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def unpack(
    tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None
) -> None:
    """Put a snapshot's tensors back; it must be of the same model and optimizer."""
    wanted = {f"model.{name}" for name in model.state_dict()}
    wanted |= {f"average.{name}" for name in average.weights} if average is not None else set()
    if lacking := sorted(wanted - tensors.keys()):
        raise UserError(f"the snapshot is of another configuration: it lacks {lacking[0]}")
    for name, own in model.state_dict().items():
        own.copy_(tensors[f"model.{name}"])
    if average is not None:
        for name, own in average.weights.items():
            own.copy_(tensors[f"average.{name}"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            start = f"optimizer.{names[id(parameter)]}."
            state: dict[str, Any] = {
                key.removeprefix(start): value.clone().to(parameter.device)
                for key, value in tensors.items()
                if key.startswith(start) and "." not in key.removeprefix(start)
            }
            if state:
                optimizer.state[parameter] = state


def _optimizer_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: state for parameter, state in optimizer.state.items()}


def _verify(snapshot: Path) -> None:
    lines = (snapshot / SUMS).read_text(encoding="utf-8").splitlines()
    sums = {name: value for value, _, name in (line.partition("  ") for line in lines)}
    for part in (TENSORS, COUNTERS):
        if sums.get(part) != _digest(snapshot / part):
            raise ValueError(f"{part} does not match its SHA-256")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _clear_temporary(folder: Path) -> None:
    """What a killed process left behind; only one run writes to a folder at a time."""
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)
