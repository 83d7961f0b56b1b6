"""Snapshots that several processes write together, by torch.distributed.checkpoint.

Each process writes its share of the tensors as a safetensors file, which says which part of each tensor it holds, so
any number of processes can read them. The format has no pickle, unlike torch's own. Training goes on meanwhile: a copy
is taken, and a thread writes it. The folder, its checksums and its renaming are those of `snapshots.py`.
"""

import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitrail.errors import UserError
from vitrail.processes import Processes
from vitrail.training import snapshots
from vitrail.training.snapshots import Progress


class Writer:
    """Writes one snapshot at a time in the background, all processes together."""

    def __init__(self, folder: Path, processes: Processes):
        self.folder, self.processes = folder, processes
        # A group of its own: what the thread says must not get between what the training says.
        self.group: Any = dist.new_group(backend="gloo")
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="vitrail-snapshot")
        self.writing: Future[None] | None = None

    def begin(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        """Take a copy and return; what failed in the write before is said now."""
        self.wait()
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.writing = self.pool.submit(self._write, replace(progress), copied)

    def wait(self) -> None:
        """Until the snapshot that is being written is whole in every process's eyes."""
        if (writing := self.writing) is not None:
            self.writing = None
            self.processes.all_or_none(writing.result)

    def _write(self, progress: Progress, tensors: dict[str, Tensor]) -> None:
        final = self.folder / snapshots.name_of(progress)
        temporary = self.folder / f".{final.name}.shared"
        try:
            self._first(lambda: snapshots.clear(self.folder, temporary))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                writer = HuggingFaceStorageWriter(path=str(temporary), save_distributed=True)
                save(tensors, storage_writer=writer, process_group=self.group)
            self._first(lambda: snapshots.finish(temporary, final, progress))
        except (OSError, SafetensorError, CheckpointException) as error:
            if self.processes.first:
                shutil.rmtree(temporary, ignore_errors=True)
            raise snapshots.not_written(final, error) from error

    def _first(self, action: Callable[[], Any]) -> None:
        """By the first process, while the others wait; its failure is theirs."""
        failure = None
        if self.processes.first:
            try:
                action()
            except OSError as error:
                failure = error
        failed = torch.tensor(failure is not None, dtype=torch.int64)
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=self.group)
        if failed:
            raise failure or OSError("the first process could not write it")


def read_whole(snapshot: Path) -> dict[str, Tensor]:
    """Every tensor put together, in this process alone."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _described(snapshot).items()}
    _fill(snapshot, tensors, alone=True)
    return tensors


def read_into(snapshot: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Read into tensors that are there: of one that the processes have in parts, each reads its own. What the optimizer
    had not begun with then is left out."""
    there = _described(snapshot)
    chosen = {name: each for name, each in tensors.items() if name in there or not name.startswith("optimizer.")}
    if lacking := sorted(chosen.keys() - there.keys()):
        raise snapshots.another_configuration(lacking[0])
    _fill(snapshot, chosen, alone=False)
    return chosen


def _described(snapshot: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    described: dict[str, Any] = HuggingFaceStorageReader(str(snapshot)).read_metadata().state_dict_metadata
    return {name: (each.size, each.properties.dtype) for name, each in described.items()}


def _fill(snapshot: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(tensors, storage_reader=HuggingFaceStorageReader(str(snapshot)), no_dist=alone)
    except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{snapshot}: cannot be read into this configuration: {str(error).splitlines()[0]}") from error
