"""Resumable training state on disk: written whole or not at all, checked when read.

A snapshot is a folder: `state.safetensors` (weights, optimizer, average; several files where several processes wrote
it), `state.json` (counters), `SHA256SUMS`. It is written under a temporary name, synced, renamed, and the folder above
synced; only then an older one goes. Reading compares every byte with its checksum and falls back to the newest good
one, saying so.
"""

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

from vitrail.errors import UserError
from vitrail.io.checksums import SUMS, sum_line
from vitrail.io.files import sync
from vitrail.training.learner import Learner
from vitrail.training.optimizer import Average

TENSORS, COUNTERS = "state.safetensors", "state.json"
KEPT = 2


@dataclass
class Progress:
    """Where a run is: what is not a tensor, and all there is to resume from besides them."""

    step: int = 0
    """Optimizer steps done."""
    position: int = 0
    """Samples consumed."""
    best: float | None = None
    """The objective's score of the best validation so far; None: there was none."""
    best_loss: float = 0.0
    """Its loss: of equal scores the lower one is better."""
    best_step: int = 0
    """Its step; 0: the weights that the run began with."""
    without_better: int = 0
    """Validations in a row, up to the last one, that were no better than the best before them."""
    loss_scale: dict[str, Any] = field(default_factory=dict)
    """The state of the loss scaler under fp16; it follows what overflowed."""
    seconds: float = field(default=0.0, compare=False)
    """Of work, that of the processes before this one included."""
    threads: int = field(default_factory=torch.get_num_threads)
    """Sums are added in another order by another number of threads: bits may differ then."""


def write(
    folder: Path,
    progress: Progress,
    learner: nn.Module | Learner,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
) -> Path:
    """Write the snapshot of a step and remove the ones that are older than the last `KEPT`."""
    final = folder / name_of(progress)
    temporary = folder / f".{final.name}.{os.getpid()}"
    tensors = pack(learner, optimizer, average)
    try:
        clear(folder, temporary)
        save_file(tensors, temporary / TENSORS)
        finish(temporary, final, progress)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise not_written(final, error) from error
    return final


def name_of(progress: Progress) -> str:
    return f"step-{progress.step:09d}"


def clear(folder: Path, temporary: Path) -> None:
    """An empty folder to write into, and nothing of what a killed process left: only one run writes here at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()


def finish(temporary: Path, final: Path, progress: Progress) -> None:
    """The tensors are there: add the counters and checksums, put all on disk, give it its name, let the oldest go."""
    (temporary / COUNTERS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    (temporary / SUMS).write_bytes(_sums(_parts(temporary)))
    for path in (*temporary.iterdir(), temporary):
        sync(path)
    if final.exists():  # the same step, written again after a resume
        shutil.rmtree(final)
    temporary.rename(final)
    sync(final.parent)
    for old in snapshots(final.parent)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def not_written(final: Path, error: BaseException) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(
        f"{final}: the snapshot cannot be written: {reason}. The disk is {final.parent}'s; earlier snapshots are whole"
    )


def snapshots(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted(folder.glob("step-*"), reverse=True) if folder.is_dir() else []


def newest(folder: Path) -> tuple[Progress | None, Path, list[str]]:
    """The newest snapshot that is whole, and what was wrong with the ones passed over; no progress: there is none."""
    notes: list[str] = []
    for snapshot in snapshots(folder):
        try:
            _verify(snapshot)
            return Progress(**json.loads((snapshot / COUNTERS).read_text(encoding="utf-8"))), snapshot, notes
        except (OSError, ValueError, TypeError) as error:
            notes.append(f"{snapshot}: damaged ({error}); the one before it is used")
    return None, folder, notes


def read(folder: Path) -> tuple[Progress, dict[str, Tensor], list[str]] | None:
    """The newest whole snapshot's counters and tensors, whoever wrote it; None where there is none."""
    progress, snapshot, notes = newest(folder)
    if progress is None:
        return None
    if (snapshot / TENSORS).exists():
        return progress, load_file(snapshot / TENSORS), notes
    from vitrail.training.sharded import read_whole

    return progress, read_whole(snapshot), notes


def pack(learner: nn.Module | Learner, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Every tensor of the training state under one name each."""
    tensors = {f"model.{name}": tensor.detach() for name, tensor in learner.state_dict().items()}
    for name, state in _optimizer_states(learner, optimizer).items():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.weights.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def unpack(
    tensors: dict[str, Tensor],
    learner: nn.Module | Learner,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
) -> None:
    """Put a snapshot's tensors back; it must be of the same model and optimizer."""
    wanted = {f"model.{name}" for name in learner.state_dict()}
    wanted |= {f"average.{name}" for name in average.weights} if average is not None else set()
    if lacking := sorted(wanted - tensors.keys()):
        raise another_configuration(lacking[0])
    for name, own in learner.state_dict().items():
        own.copy_(tensors[f"model.{name}"])
    if average is not None:
        for name, own in average.weights.items():
            own.copy_(tensors[f"average.{name}"])
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
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


def another_configuration(lacking: str) -> UserError:
    return UserError(f"the snapshot is of another configuration: it lacks {lacking}")


def blank(learner: nn.Module | Learner, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Tensors of a snapshot's names and shapes to read into; the optimizer need not have made a step."""
    tensors = {name: torch.empty_like(tensor) for name, tensor in pack(learner, optimizer, average).items()}
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    adaptive = isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            start = f"optimizer.{names[id(parameter)]}"
            for key in ("exp_avg", "exp_avg_sq") if adaptive else ("momentum_buffer",):
                tensors[f"{start}.{key}"] = torch.empty_like(parameter)
            if adaptive:
                tensors[f"{start}.step"] = torch.empty(())
    return tensors


def _optimizer_states(learner: nn.Module | Learner, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    return {names[id(parameter)]: state for parameter, state in optimizer.state.items()}


def _verify(snapshot: Path) -> None:
    """Every byte is what was written, those of the list of sums too."""
    parts = _parts(snapshot)
    if not {COUNTERS} < {part.name for part in parts}:
        raise ValueError("its files are not all there")
    said = (snapshot / SUMS).read_bytes()
    for part in parts:
        if _sums([part]) not in said:
            raise ValueError(f"{part.name} does not match its SHA-256")
    if said != _sums(parts):
        raise ValueError(f"{SUMS} lists other files")


def _parts(snapshot: Path) -> list[Path]:
    return sorted(path for path in snapshot.iterdir() if path.name != SUMS)


def _sums(parts: list[Path]) -> bytes:
    return "".join(map(sum_line, parts)).encode()
