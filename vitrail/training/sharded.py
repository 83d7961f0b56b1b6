"""Snapshots that several processes write together, by torch.distributed.checkpoint.

Each process writes its part of the tensors to a safetensors file, which says what part of each tensor it holds, so that
any number of processes can read them. Unlike torch's own format it has no pickle. Training goes on meanwhile: a thread
writes a copy. The folder, its checksums and its renaming are those of `snapshots.py`.
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
from vitrail.process_group import ProcessGroup
from vitrail.training import snapshots
from vitrail.training.snapshots import RunProgress


class SnapshotWriter:
    """Writes snapshots in the background, one at a time, all processes together."""

    def __init__(self, folder: Path, processes: ProcessGroup):
        self.folder, self.processes = folder, processes
        # The thread has a process group of its own, so that its messages do not mix with those of the training.
        self.group: Any = dist.new_group(backend="gloo")
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="vitrail-snapshot")
        self.writing: Future[None] | None = None

    def begin(self, progress: RunProgress, tensors: dict[str, Tensor]) -> None:
        """Copies the tensors, starts writing the copy, and returns. If the write before has failed, that is raised
        now."""
        self.wait()
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self.writing = self.pool.submit(self._write, replace(progress), copied)

    def wait(self) -> None:
        """Waits until the snapshot that is being written is complete in every process; raises in all if it failed in
        one."""
        if (writing := self.writing) is not None:
            self.writing = None
            self.processes.run_on_all(writing.result)

    def _write(self, progress: RunProgress, tensors: dict[str, Tensor]) -> None:
        final = self.folder / snapshots.name_of(progress)
        temporary = self.folder / f".{final.name}.shared"
        try:
            self._first(lambda: snapshots.clear(self.folder, temporary))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                writer = HuggingFaceStorageWriter(path=str(temporary), save_distributed=True)
                save(tensors, storage_writer=writer, process_group=self.group)
            self._first(lambda: snapshots.finish_snapshot(temporary, final, progress))
        except (OSError, SafetensorError, CheckpointException) as error:
            if self.processes.first:
                shutil.rmtree(temporary, ignore_errors=True)
            raise snapshots.not_written(final, error) from error

    def _first(self, action: Callable[[], Any]) -> None:
        """Runs an action in the first process while the others wait; raises in all if it failed."""
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
    """Reads every tensor of a snapshot whole, in this process alone."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _described(snapshot).items()}
    _fill(snapshot, tensors, alone=True)
    return tensors


def read_into(snapshot: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Reads a snapshot into existing tensors; of a tensor that each process holds a part of, each reads its own part.

    States of the optimizer that the snapshot does not have are left out, since the optimizer had not made them then.

    Returns:
        The tensors that were read.

    Raises:
        UserError: if the snapshot lacks another tensor.
    """
    there = _described(snapshot)
    chosen = {name: each for name, each in tensors.items() if name in there or not name.startswith("optimizer.")}
    if lacking := sorted(chosen.keys() - there.keys()):
        raise snapshots.another_configuration(lacking[0])
    _fill(snapshot, chosen, alone=False)
    return chosen


def _described(snapshot: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Returns shape and type of the tensors of a snapshot, by name."""
    described: dict[str, Any] = HuggingFaceStorageReader(str(snapshot)).read_metadata().state_dict_metadata
    return {name: (each.size, each.properties.dtype) for name, each in described.items()}


def _fill(snapshot: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    """Reads a snapshot into tensors. alone: whether this process reads without the others."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(tensors, storage_reader=HuggingFaceStorageReader(str(snapshot)), no_dist=alone)
    except (CheckpointException, RuntimeError, ValueError, KeyError) as error:
        raise UserError(f"{snapshot}: cannot be read into this configuration: {str(error).splitlines()[0]}") from error
