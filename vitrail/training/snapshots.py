"""Snapshots: resumable training state on disk, written whole or not at all, and checked when it is read.

A snapshot is a folder with `state.safetensors` (weights, optimizer, average; several files if several processes wrote
it), `state.json` (counters) and `SHA256SUMS`. It is written under a temporary name, synced, renamed, and the folder
above it is synced; only then an older snapshot is removed. Reading compares every byte with its checksum, and falls
back to the newest good snapshot, with a note.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.checkpoints.files import check_length
from vitrail.errors import UserError, first_line, is_out_of_memory
from vitrail.io.checksums import LARGEST_SUMS, SUMS, sum_line
from vitrail.io.documents import read_json, read_text
from vitrail.io.files import sync
from vitrail.training.learner import Learner
from vitrail.training.optimizer import Average

TENSORS, COUNTERS = "state.safetensors", "state.json"
"""The names of the files in a snapshot."""
KEPT = 2
"""How many snapshots are kept."""
WHOLE = ("step", "position", "best_step", "without_better", "threads", "steps", "count")
"""Counters that are whole numbers."""


@dataclass(frozen=True)
class Window:
    """Sums over the steps since the last record of the metrics, and the last step's own numbers."""

    steps: int = 0
    loss: float = 0.0
    measures: dict[str, float] = field(default_factory=dict)
    count: int = 0
    """Samples."""
    seconds: float = 0.0
    waited: float = 0.0
    """Seconds of these that were spent waiting for data."""
    lr: float = 0.0
    gradient_norm: float = 0.0


@dataclass
class RunProgress:
    """The counters of a run: everything in a snapshot that is not a tensor."""

    step: int = 0
    """Optimizer steps done."""
    position: int = 0
    """Samples consumed."""
    best: float | None = None
    """Score of the best validation so far, as the objective computes it; None: there was none."""
    best_loss: float = 0.0
    """Loss of the best validation: of equal scores, the one with the lower loss is better."""
    best_step: int = 0
    """Step of the best validation; 0: the weights that the run began with."""
    without_better: int = 0
    """How many validations in a row, up to the last one, were no better than the best."""
    loss_scale: dict[str, Any] = field(default_factory=dict)
    """State of the loss scaler under fp16, which depends on earlier overflows."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds of work so far, before and after interruptions."""
    window: Window = field(default_factory=Window, compare=False)
    """Sums that the next record of the metrics is made of; its times are those of the machine."""
    threads: int = field(default_factory=torch.get_num_threads)
    """Threads that compute: with another number sums are added in another order, and bits may differ."""


def write_snapshot(
    folder: Path,
    progress: RunProgress,
    learner: nn.Module | Learner,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
) -> Path:
    """Writes the snapshot of a step, and removes all but the newest `KEPT`; a UserError if it cannot be written.

    Returns:
        The snapshot's folder.
    """
    final = folder / name_of(progress)
    temporary = folder / f".{final.name}.{os.getpid()}"
    tensors = pack(learner, optimizer, average)
    try:
        clear(folder, temporary)
        save_file(tensors, temporary / TENSORS)
        finish_snapshot(temporary, final, progress)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise not_written(final, error) from error
    return final


def name_of(progress: RunProgress) -> str:
    """Returns the folder name of a snapshot."""
    return f"step-{progress.step:09d}"


def clear(folder: Path, temporary: Path) -> None:
    """Makes an empty folder to write into, and removes what a killed process has left: only one run writes here at a
    time."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()


def finish_snapshot(temporary: Path, final: Path, progress: RunProgress) -> None:
    """Completes a snapshot whose tensors are written: adds counters and checksums, syncs all to disk, renames it from
    `temporary` to `final`, and removes older snapshots."""
    (temporary / COUNTERS).write_text(json.dumps(asdict(progress)), encoding="utf-8")
    (temporary / SUMS).write_bytes(_sums(_parts(temporary)))
    for path in (*temporary.iterdir(), temporary):
        sync(path)
    if final.exists():  # a run that was resumed writes the same step again
        shutil.rmtree(final)
    temporary.rename(final)
    sync(final.parent)
    for old in snapshots(final.parent)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def not_written(final: Path, error: BaseException) -> UserError:
    """Makes the UserError that says a snapshot could not be written."""
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(
        f"{final}: the snapshot cannot be written: {reason}. The disk is {final.parent}'s; earlier snapshots are whole"
    )


def snapshots(folder: Path) -> list[Path]:
    """Lists the snapshots in a folder, the newest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((each for each in found if re.fullmatch(r"step-[0-9]{9,}", each.name)), reverse=True)


def newest(folder: Path) -> tuple[RunProgress | None, Path, list[str]]:
    """Finds the newest snapshot that is whole.

    Returns:
        Its progress, or None if the run has not written any yet; its folder; and notes on damaged ones that were passed
        over.

    Raises:
        UserError: if all are damaged. The run would begin anew, and remove what could be repaired.
    """
    damaged: dict[Path, str] = {}
    for snapshot in snapshots(folder):
        try:
            _verify(snapshot)
            progress = _read_progress(snapshot / COUNTERS)
        except (OSError, ValueError, UserError) as error:
            if is_out_of_memory(error):
                raise
            damaged[snapshot] = str(error).removeprefix(f"{snapshot}{os.sep}")
        else:
            told = [f"{each}: damaged ({why}); the one before it is used" for each, why in damaged.items()]
            return progress, snapshot, told
    if damaged:
        listed = ", ".join(f"{each.name} ({why})" for each, why in damaged.items())
        raise UserError(
            f"{folder}: every snapshot is damaged: {listed}. Put back a copy of one, or start a new run; its best/ and "
            "bundle/ can still be used as they are"
        )
    return None, folder, []


def _read_progress(path: Path) -> RunProgress:
    """Reads the counters of a snapshot, which may be of an earlier version: what they lack keeps its default."""
    values = read_json(path, finite=False)
    try:
        window = Window(**values.get("window", {}))
        progress = RunProgress(**{**values, "window": window})
        plain = {name: value for name, value in vars(progress).items() if name not in ("window", "loss_scale")}
        plain |= {**vars(window), **window.measures, "measures": 0, "best": progress.best or 0}
        for name, value in plain.items():
            kind = int if name in WHOLE else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or (name in WHOLE and value < 0):
                raise TypeError(f"{name} is {value!r:.60}")
    except TypeError as error:
        raise UserError(f"{path}: no run has written this: {first_line(error)}") from error
    return progress


def read_snapshot(folder: Path) -> tuple[RunProgress, dict[str, Tensor], list[str]] | None:
    """Reads the newest snapshot that is whole, by however many processes it was written.

    Returns:
        Its progress, its tensors by name, and notes on damaged ones that were passed over; None if there is no
            snapshot.
    """
    progress, snapshot, notes = newest(folder)
    if progress is None:
        return None
    if (snapshot / TENSORS).exists():
        try:
            return progress, load_file(snapshot / TENSORS), notes
        except (
            SafetensorError,
            OSError,
            ValueError,
            TypeError,
            RuntimeError,
        ) as error:
            raise UserError(f"{snapshot / TENSORS}: no run has written this: {first_line(error)}") from error
    from vitrail.training.sharded import read_whole

    return progress, read_whole(snapshot), notes


def pack(learner: nn.Module | Learner, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Collects every tensor of the training state, each under a name of its own."""
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
    """Copies a snapshot's tensors into a learner, optimizer and average; a UserError if they are of another
    configuration."""
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
            if odd := [key for key, each in state.items() if each.ndim and each.shape != parameter.shape]:
                raise another_configuration(f"{start}{odd[0]} of the shape {tuple(parameter.shape)}")
            if state:
                optimizer.state[parameter] = state


def another_configuration(lacking: str) -> UserError:
    """Makes the UserError that says a snapshot lacks a tensor of this configuration."""
    return UserError(f"the snapshot is of another configuration: it lacks {lacking}")


def blank(learner: nn.Module | Learner, optimizer: torch.optim.Optimizer, average: Average | None) -> dict[str, Tensor]:
    """Makes empty tensors with the names and shapes of a snapshot, to read into, even before the optimizer's first
    step."""
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
    """Returns the optimizer's state by the name of its parameter."""
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    return {names[id(parameter)]: state for parameter, state in optimizer.state.items()}


def _verify(snapshot: Path) -> None:
    """Raises a ValueError unless every file of a snapshot has the bytes that were written, the list of checksums
    included."""
    parts = _parts(snapshot)
    if not {COUNTERS} < {part.name for part in parts}:
        raise ValueError("its files are not all there")
    listed = read_text(snapshot / SUMS, LARGEST_SUMS).encode()
    for part in parts:
        if part.suffix == ".safetensors":
            check_length(part)
        if _sums([part]) not in listed:
            raise ValueError(f"{part.name} does not match its SHA-256")
    if listed != _sums(parts):
        raise ValueError(f"{SUMS} lists other files")


def _parts(snapshot: Path) -> list[Path]:
    """Lists the files of a snapshot but for its checksums, sorted."""
    return sorted(path for path in snapshot.iterdir() if path.name != SUMS)


def _sums(parts: list[Path]) -> bytes:
    """Computes the contents of SHA256SUMS."""
    return "".join(map(sum_line, parts)).encode()
