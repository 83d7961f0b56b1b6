"""Batches of a split, in an order and with augmentation that depend on the seed and the position alone.

The training stream is endless and every slot of it is a pure function of (seed, position): which sample stands
there, how it is augmented, and what replaces it if it cannot be read. So a stream that starts at position p is, bit
for bit, what an uninterrupted one gives from p on, with any number of workers.

Workers are threads, not processes. Pillow and numpy let go of Python's lock while they work, so threads decode in
parallel; and they start at once, share the data in memory, need no shared-memory mount, and end with the program.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from vitrail.config import DataConfig, Preprocessing, TransformConfig
from vitrail.config.data import Shuffle
from vitrail.data.decode import BadImage
from vitrail.data.mixing import mix, needs_soft_targets
from vitrail.data.order import create_order
from vitrail.data.sources import Split
from vitrail.data.transforms import EvaluationTransform, TrainingTransform
from vitrail.errors import UserError
from vitrail.launched import available_processors
from vitrail.random_stream import Draws
from vitrail.tasks import task

_CHUNK = 8
"""Encoded images a worker decodes at a time: few enough that a batch is shared among the workers."""
_AHEAD = 2
"""Batches prepared ahead of the loop."""
_ATTEMPTS = 100
"""Samples tried for one slot; with one bad in two, a hundred bad in a row do not happen."""

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True)
class BadSample:
    """A sample that was passed over, and why."""

    id: str
    reason: str


@dataclass
class Batch:
    """What a training or evaluation step needs."""

    images: torch.Tensor  # [batch, channels, rows, columns] float32, normalised
    targets: torch.Tensor  # [batch, ...], as the task collates them; of classes [batch] int64, -1 where there is none
    ids: list[str]
    soft: torch.Tensor | None = None  # [batch, outputs], where mixing or smoothing make targets soft
    bad: list[BadSample] = field(default_factory=list)
    position: int = 0
    """Samples consumed once this batch is: where a resumed stream has to start."""
    views: list[torch.Tensor] = field(default_factory=list)
    """Further views of the same samples, each as `images`, perhaps of another size; where a loader is asked for any."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> "Batch":
        """The samples from `start` to before `stop`."""
        soft = None if self.soft is None else self.soft[start:stop]
        views = [view[start:stop] for view in self.views]
        images, targets, ids = self.images[start:stop], self.targets[start:stop], self.ids[start:stop]
        return Batch(images, targets, ids, soft, self.bad, self.position, views)

    def to(self, device: torch.device) -> "Batch":
        soft = None if self.soft is None else self.soft.to(device, non_blocking=True)
        views = [view.to(device, non_blocking=True) for view in self.views]
        images, targets = (each.to(device, non_blocking=True) for each in (self.images, self.targets))
        return Batch(images, targets, self.ids, soft, self.bad, self.position, views)


@dataclass
class _Raw:
    """Some samples, ready but not yet normalised."""

    pixels: np.ndarray  # [samples, rows, columns, channels] uint8, or float32 from 0 to 1
    indices: list[int]
    bad: list[BadSample]
    views: list[np.ndarray] = field(default_factory=list)
    """The same samples again, for each further view."""


class TrainingLoader:
    """The endless training stream of a split, from `position` on, in batches of constant size.

    A sample that cannot be read is replaced by another one, drawn from (seed, position), so the batch size and all
    later positions stay as they are. It is counted once in `bad`; above `max_bad` (a share of the split) the
    iteration ends in a UserError.

    `views` are further views of every sample besides the first, each with a transform and a size of its own; every
    view has its own random numbers.

    Over several processes (`rank` of `world_size`) each takes its part of every global batch of
    batch_size * world_size; position counts the samples of all of them.
    """

    def __init__(
        self,
        split: Split,
        config: TransformConfig,
        preprocessing: Preprocessing,
        *,
        batch_size: int,
        seed: int,
        num_classes: int,
        position: int = 0,
        workers: int | None = None,
        max_bad: float = 0.01,
        max_pixels: int | None = None,
        views: Sequence[tuple[TransformConfig, Preprocessing]] = (),
        shuffle: Shuffle = DataConfig.shuffle,
        shuffle_buffer: int = DataConfig.shuffle_buffer,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if not len(split):
            raise UserError(f"the split {split.name!r} has no samples to train on")
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        limit = {} if max_pixels is None else {"max_pixels": max_pixels}
        self.split, self.config, self.preprocessing = split, config, preprocessing
        self.transform = TrainingTransform(config, preprocessing, **limit)
        self.views = [TrainingTransform(*view, **limit) for view in views]
        self.batch_size, self.seed, self.num_classes, self.position = batch_size, seed, num_classes, position
        self.workers = default_workers(split) if workers is None else workers
        self.max_bad = max_bad
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        self.bad: dict[str, str] = {}
        """Every sample that could not be read so far: id and reason."""
        self._order = create_order(split, seed, config.repeats, shuffle, shuffle_buffer)
        self._prepared: int | None = None
        self._normalise = Normaliser(preprocessing, self.device)

    def __iter__(self) -> Iterator[Batch]:
        starts = _count(self.position, self.batch_size * self.world_size)
        for start, raw in _prepare(starts, self._slots, self._load, self.workers, self._chunk):
            batch = self._finish(start, raw)
            self.position = batch.position
            yield batch

    @property
    def _chunk(self) -> int:
        return self.batch_size if self.split.in_memory else _CHUNK

    def _slots(self, start: int) -> list[int]:
        if (stretch := self._order.stretch(start)) != self._prepared:
            self._prepared = stretch
            self.split.prepare(self._order.soon(start))
        first = start + self.rank * self.batch_size
        return list(range(first, first + self.batch_size))

    def _load(self, slots: list[int]) -> _Raw:
        rows, columns = self.preprocessing.rows_columns
        raw = _Raw(np.empty((len(slots), rows, columns, self.transform.channels), self.transform.dtype), [], [])
        raw.views = [np.empty((len(slots), *view.image_size, view.channels), view.dtype) for view in self.views]
        for place, slot in enumerate(slots):
            raw.indices.append(self._fill(raw, place, slot))
        return raw

    def _fill(self, raw: _Raw, place: int, slot: int) -> int:
        """The sample that stands at a slot of the stream, or the first one drawn in its stead that can be read."""
        epoch, index, repeat = self._order.at(slot)
        substitutes = Draws("substitute", self.seed, slot)
        for _ in range(_ATTEMPTS):
            name = self.split.ids[index]
            try:
                # A substitute differs from its sample's own turn in this epoch by the slot in its key.
                draws = Draws("sample", self.seed, epoch, repeat, name)
                content = self.split.read(index)
                if self.views:
                    content = self.transform.decoded(content)  # once for all
                raw.pixels[place] = self.transform(content, draws)
                for number, view in enumerate(self.views):
                    raw.views[number][place] = view(content, Draws("view", number, self.seed, epoch, repeat, name))
                return index
            except BadImage as error:
                raw.bad.append(BadSample(name, str(error)))
                index, repeat = substitutes.integer(len(self.split)), f"for{slot}"
        raise UserError(
            f"{_ATTEMPTS} samples in a row cannot be read; the last: {raw.bad[-1].id} {raw.bad[-1].reason}. "
            "Find out what is wrong with `vitrail data check`"
        )

    def _finish(self, start: int, raw: _Raw) -> Batch:
        check_bad(self.bad, raw.bad, len(self.split), self.max_bad)
        images = self._normalise(raw.pixels)
        targets = collated(self.split, raw.indices, self.device)
        soft = None
        if needs_soft_targets(self.config):
            head = task(self.split.task).head
            soft = head.soft_targets(targets, self.num_classes, self.config.label_smoothing)
            images, soft = mix(images, soft, self.config, self.seed, start, self.rank)
        names = [self.split.ids[index] for index in raw.indices]
        position = start + self.batch_size * self.world_size
        return Batch(images, targets, names, soft, raw.bad, position, [self._normalise(view) for view in raw.views])


class EvaluationLoader:
    """Every sample of a split exactly once, in order; the last batch is short, nothing is padded.

    Samples that cannot be read are left out and listed in `bad`; a batch can be short, or empty, for it. Over
    several processes each takes every world_size-th sample, so together they take each once.
    """

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        *,
        batch_size: int,
        workers: int | None = None,
        max_bad: float = 1.0,
        max_pixels: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise UserError(f"the batch size must be at least 1, not {batch_size}")
        limit = {} if max_pixels is None else {"max_pixels": max_pixels}
        self.split, self.preprocessing, self.batch_size = split, preprocessing, batch_size
        self.transform = EvaluationTransform(preprocessing, **limit)
        self.workers = default_workers(split) if workers is None else workers
        self.max_bad, self.rank, self.world_size = max_bad, rank, world_size
        self.device = torch.device(device)
        self.bad: dict[str, str] = {}
        self._mine = list(range(rank, len(split), world_size))
        self._normalise = Normaliser(preprocessing, self.device)

    def __len__(self) -> int:
        """Batches."""
        return -(-len(self._mine) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        self.bad.clear()
        starts = range(0, len(self._mine), self.batch_size)
        chunk = self.batch_size if self.split.in_memory else _CHUNK
        for start, raw in _prepare(starts, self._slots, self._load, self.workers, chunk):
            check_bad(self.bad, raw.bad, len(self.split), self.max_bad)
            targets = collated(self.split, raw.indices, self.device)
            names = [self.split.ids[index] for index in raw.indices]
            position = min(start + self.batch_size, len(self._mine))
            yield Batch(self._normalise(raw.pixels), targets, names, None, raw.bad, position)

    def _slots(self, start: int) -> list[int]:
        return self._mine[start : start + self.batch_size]

    def _load(self, indices: list[int]) -> _Raw:
        rows, columns = self.preprocessing.rows_columns
        raw = _Raw(np.empty((len(indices), rows, columns, self.transform.channels), self.transform.dtype), [], [])
        for index in indices:
            try:
                raw.pixels[len(raw.indices)] = self.transform(self.split.read(index))
                raw.indices.append(index)
            except BadImage as error:
                raw.bad.append(BadSample(self.split.ids[index], str(error)))
        raw.pixels = raw.pixels[: len(raw.indices)]
        return raw


def collated(split: Split, indices: list[int], device: torch.device) -> torch.Tensor:
    """Gives the targets of some samples of a split as its task has them in a batch."""
    targets = torch.from_numpy(task(split.task).target.collate(split.targets[indices]))
    # Apple's processors have no double precision.
    return (targets.float() if device.type == "mps" and targets.dtype == torch.float64 else targets).to(device)


class Normaliser:
    """[batch, rows, columns, channels] to float32 [batch, channels, rows, columns], on the device.

    The order of operations (bytes by 255, less mean, by std) is torchvision's, so results are equal to the last bit.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.mean = torch.tensor(preprocessing.mean, device=self.device).view(-1, 1, 1)
        self.std = torch.tensor(preprocessing.std, device=self.device).view(-1, 1, 1)

    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        # Bytes cross to the device: a quarter of what floats would take.
        writable = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of others
        images = torch.from_numpy(writable).to(self.device).permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=torch.contiguous_format)
        # Floats may be the caller's own memory still.
        images = images.div_(255) if pixels.dtype == np.uint8 else images.clone()
        return images.sub_(self.mean).div_(self.std)


def check_bad(bad: dict[str, str], found: list[BadSample], count: int, max_bad: float) -> None:
    """Add what was found to the list, and stop when it has grown too long."""
    bad.update({each.id: each.reason for each in found})
    if found and len(bad) > max_bad * count + 1e-6:  # 0.29 * 100 is a little less than 29
        shown = "; ".join(f"{name} {reason}" for name, reason in list(bad.items())[:3])
        raise UserError(
            f"{len(bad)} of {count} images cannot be used, more than --data.max-bad {max_bad:.3g} allows: {shown}. "
            "Repair or remove them (vitrail data check lists them all), or raise --data.max-bad"
        )


def default_workers(split: Split) -> int:
    """One thread where samples are in memory already, else one a processor, up to eight."""
    return 1 if split.in_memory else min(available_processors(), 8)


def _count(start: int, step: int) -> Iterator[int]:
    while True:
        yield start
        start += step


def _prepare(
    starts: Iterable[int],
    slots: Callable[[int], list[int]],
    load: Callable[[list[int]], _Raw],
    workers: int,
    chunk: int,
) -> Iterator[tuple[int, _Raw]]:
    """Batches in order; with workers, a few are prepared ahead."""
    if workers == 0:
        for start in starts:
            yield start, load(slots(start))
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="vitrail-loader")
    waiting: deque[tuple[int, list[Future[_Raw]]]] = deque()
    try:
        for start in starts:
            wanted = slots(start)
            parts = [wanted[first : first + chunk] for first in range(0, len(wanted), chunk)]
            waiting.append((start, [pool.submit(load, part) for part in parts]))
            if len(waiting) > _AHEAD:
                yield _gather(*waiting.popleft())
        while waiting:
            yield _gather(*waiting.popleft())
    finally:
        # Also when the loop that takes the batches is left early.
        pool.shutdown(wait=True, cancel_futures=True)


def _gather(start: int, futures: list[Future[_Raw]]) -> tuple[int, _Raw]:
    parts = [future.result() for future in futures]
    if len(parts) == 1:
        return start, parts[0]
    return start, _Raw(
        np.concatenate([part.pixels for part in parts]),
        [index for part in parts for index in part.indices],
        [each for part in parts for each in part.bad],
        [np.concatenate(views) for views in zip(*(part.views for part in parts), strict=True)],
    )
