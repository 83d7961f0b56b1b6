"""Which sample stands at a position of the endless training stream: a pure function of the seed and the position.

Nothing here knows of processes, batches or where a run was interrupted, so all of them can change.
"""

from typing import Protocol

import numpy as np

from vitrail.config.data import Shuffle
from vitrail.data.sources import Split
from vitrail.errors import UserError
from vitrail.random_stream import permutation

_BLOCKS = 4
"""Blocks kept: workers look a little ahead, and the next block is known before it is needed."""


class Order(Protocol):
    """An epoch has as many positions as the split has samples. With repeated augmentation each sample stands `repeats`
    times in a row, and an epoch shows that many fewer of them."""

    def at(self, position: int) -> tuple[int, int, int | str]:
        """(epoch, sample, repeat)."""
        ...

    def stretch(self, position: int) -> int | None:
        """A number that changes where other shards are read from here on; None: samples come from all over."""
        ...

    def soon(self, position: int) -> np.ndarray:
        """The samples of the stretch at a position, and of the next one."""
        ...


def create_order(split: Split, seed: int, repeats: int, shuffle: Shuffle, buffer: int) -> Order:
    """The order that a configuration asks for; `auto` goes by shards where they have to be fetched."""
    if shuffle == "global" or (shuffle == "auto" and not split.remote):
        return GlobalOrder(len(split), seed, repeats)
    shards = split.shards()
    if shards is None and shuffle == "shards":
        raise UserError(
            f"--data.shuffle shards: the split {split.name!r} does not lie in tar or parquet files; "
            "use --data.shuffle global"
        )
    return GlobalOrder(len(split), seed, repeats) if shards is None else ShardOrder(shards, seed, repeats, buffer)


class GlobalOrder:
    """Any sample anywhere: the best shuffle there is, and every read a jump."""

    def __init__(self, count: int, seed: int, repeats: int = 1) -> None:
        self.count, self.seed, self.repeats = count, seed, repeats
        self._orders: dict[int, np.ndarray] = {}

    def at(self, position: int) -> tuple[int, int, int | str]:
        epoch, place = divmod(position, self.count)
        order = self._orders.get(epoch)
        if order is None:
            order = permutation(self.count, "order", self.seed, epoch)
            # Workers look a little ahead, never far back: two epochs are enough to keep.
            self._orders = {old: kept for old, kept in self._orders.items() if old >= epoch - 1} | {epoch: order}
        return epoch, int(order[place // self.repeats]), place % self.repeats

    def stretch(self, position: int) -> None:
        return None

    def soon(self, position: int) -> np.ndarray:
        return np.empty(0, dtype=np.int64)


class ShardOrder:
    """The shards in a new order each epoch, and their samples shuffled by blocks of `buffer`.

    A block is of samples that follow each other, so it touches only the few shards they lie in. A block is worked out
    when it is needed: neither time nor memory depend on how many samples there are, beyond one number for each.
    """

    def __init__(self, shards: np.ndarray, seed: int, repeats: int = 1, buffer: int = 10_000) -> None:
        self.count, self.seed, self.repeats, self.buffer = len(shards), seed, repeats, buffer
        self._samples = np.argsort(shards, kind="stable")  # those of a shard side by side
        _, self._sizes = np.unique(shards, return_counts=True)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._blocks_an_epoch = -(-self.count // (self.repeats * self.buffer))
        self._blocks: dict[tuple[int, int], np.ndarray] = {}

    def at(self, position: int) -> tuple[int, int, int | str]:
        epoch, place = divmod(position, self.count)
        block, within = divmod(place // self.repeats, self.buffer)
        return epoch, int(self._block(epoch, block)[within]), place % self.repeats

    def stretch(self, position: int) -> int:
        epoch, block = self._place(position)
        return epoch * self._blocks_an_epoch + block

    def soon(self, position: int) -> np.ndarray:
        epoch, block = self._place(position)
        following = (epoch, block + 1) if block + 1 < self._blocks_an_epoch else (epoch + 1, 0)
        return np.concatenate([self._block(epoch, block), self._block(*following)])

    def _place(self, position: int) -> tuple[int, int]:
        epoch, place = divmod(position, self.count)
        return epoch, place // self.repeats // self.buffer

    def _block(self, epoch: int, block: int) -> np.ndarray:
        found = self._blocks.get((epoch, block))
        if found is None:
            found = self._mixed(epoch, block)
            # A new dict each time: threads may look at the old one meanwhile.
            latest = sorted(self._blocks)[1 - _BLOCKS :]
            self._blocks = {key: self._blocks[key] for key in latest} | {(epoch, block): found}
        return found

    def _mixed(self, epoch: int, block: int) -> np.ndarray:
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
