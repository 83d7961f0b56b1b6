"""The order of the endless training stream: which sample is at a position, as a pure function of seed and position.

It does not depend on the number of processes, the batch size or an interruption, so all of these may change on resume.
"""

from typing import Protocol

import numpy as np

from vitrail.config.data import Shuffle
from vitrail.data.sources import Split
from vitrail.errors import UserError
from vitrail.random_stream import permutation

_BLOCKS = 4
"""The number of shuffled blocks that are kept: that in use, the next, and those of workers further ahead or behind."""


class Order(Protocol):
    """An order of the samples of a split.

    An epoch has as many positions as the split has samples. With repeated augmentation, each sample is at `repeats`
    positions in a row, and an epoch has only 1 / `repeats` of the samples.
    """

    def at(self, position: int) -> tuple[int, int, int | str]:
        """Returns (epoch, index of the sample in the split, number of the repeat) at a position of the stream."""
        ...

    def stretch(self, position: int) -> int | None:
        """Returns the number of the stretch at a position: positions that read from the same few shards.

        Returns None if an order reads from all shards at any time.
        """
        ...

    def soon(self, position: int) -> np.ndarray:
        """Returns the indices, int64, of the samples in the stretch at a position and in the next stretch."""
        ...


def create_order(split: Split, seed: int, repeats: int, shuffle: Shuffle, buffer: int) -> Order:
    """Creates the order that a configuration asks for.

    Args:
        split: The samples.
        seed: The seed of the order.
        repeats: The number of positions in a row that have the same sample.
        shuffle: "global"; "shards"; or "auto", by shards if they must be downloaded, else global.
        buffer: The number of samples that are shuffled together if the order is by shards.

    Raises:
        UserError: If the order is to be by shards and the split has none.
    """
    if shuffle == "global" or (shuffle == "auto" and not split.remote):
        return GlobalOrder(len(split), seed, repeats)
    shards = split.shards()
    if shards is None and shuffle == "shards":
        raise UserError(
            f"--data.shuffle shards: the split {split.name!r} is not stored in tar or parquet files; "
            "use --data.shuffle global"
        )
    return GlobalOrder(len(split), seed, repeats) if shards is None else ShardOrder(shards, seed, repeats, buffer)


class GlobalOrder(Order):
    """Shuffles all samples of an epoch together. Samples are read from any shard at any time."""

    def __init__(self, count: int, seed: int, repeats: int = 1) -> None:
        self.count, self.seed, self.repeats = count, seed, repeats
        self._orders: dict[int, np.ndarray] = {}

    def at(self, position: int) -> tuple[int, int, int | str]:
        epoch, offset = divmod(position, self.count)
        order = self._orders.get(epoch)
        if order is None:
            order = permutation(self.count, "order", self.seed, epoch)
            # Keep two epochs: workers may be a little ahead of each other, but not by more.
            self._orders = {old: kept for old, kept in self._orders.items() if old >= epoch - 1} | {epoch: order}
        return epoch, int(order[offset // self.repeats]), offset % self.repeats

    def stretch(self, position: int) -> None:
        return None

    def soon(self, position: int) -> np.ndarray:
        return np.empty(0, dtype=np.int64)


class ShardOrder(Order):
    """Puts the shards in a new order each epoch, and shuffles their samples in blocks of `buffer`.

    A block has consecutive samples, so it reads from only a few shards. It is computed when it is needed, so that time
    and memory do not grow with the number of samples, except for one number for each sample.
    """

    def __init__(self, shards: np.ndarray, seed: int, repeats: int = 1, buffer: int = 10_000) -> None:
        """Takes the number of the shard that each sample is in, integers [samples]."""
        self.count, self.seed, self.repeats, self.buffer = len(shards), seed, repeats, buffer
        self._samples = np.argsort(shards, kind="stable")  # indices of samples, those of a shard side by side
        _, self._sizes = np.unique(shards, return_counts=True)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._blocks_an_epoch = -(-self.count // (self.repeats * self.buffer))
        self._blocks: dict[tuple[int, int], np.ndarray] = {}

    def at(self, position: int) -> tuple[int, int, int | str]:
        epoch, offset = divmod(position, self.count)
        block, within = divmod(offset // self.repeats, self.buffer)
        return epoch, int(self._block(epoch, block)[within]), offset % self.repeats

    def stretch(self, position: int) -> int:
        epoch, block = self._block_at(position)
        return epoch * self._blocks_an_epoch + block

    def soon(self, position: int) -> np.ndarray:
        epoch, block = self._block_at(position)
        following = (epoch, block + 1) if block + 1 < self._blocks_an_epoch else (epoch + 1, 0)
        return np.concatenate([self._block(epoch, block), self._block(*following)])

    def _block_at(self, position: int) -> tuple[int, int]:
        """Returns (epoch, number of the block) at a position."""
        epoch, offset = divmod(position, self.count)
        return epoch, offset // self.repeats // self.buffer

    def _block(self, epoch: int, block: int) -> np.ndarray:
        """Returns the indices of a block's samples in their order, from memory if it is one of the last blocks."""
        found = self._blocks.get((epoch, block))
        if found is None:
            found = self._mixed(epoch, block)
            # Assign a new dict and do not change the old one, which other threads may be reading.
            latest = sorted(self._blocks)[1 - _BLOCKS :]
            self._blocks = {key: self._blocks[key] for key in latest} | {(epoch, block): found}
        return found

    def _mixed(self, epoch: int, block: int) -> np.ndarray:
        """Computes the indices of a block's samples in their order."""
        order = permutation(len(self._sizes), "shards", self.seed, epoch)
        ends = np.cumsum(self._sizes[order])
        first, last = block * self.buffer, min((block + 1) * self.buffer, self.count)
        touched = range(int(np.searchsorted(ends, first, "right")), int(np.searchsorted(ends, last - 1, "right")) + 1)
        parts = []
        for number in touched:
            shard = order[number]
            begins = ends[number] - self._sizes[shard]
            skipped, taken = max(first - begins, 0), min(last - begins, self._sizes[shard])
            parts.append(self._samples[self._starts[shard] + skipped : self._starts[shard] + taken])
        return np.concatenate(parts)[permutation(last - first, "block", self.seed, epoch, block)]
