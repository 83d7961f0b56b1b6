"""Making batches of a split, in an order and with augmentation that depend only on the seed and the position.

The training stream is endless, and each position of it is a pure function of (seed, position): which sample is there,
how it is augmented, and which one replaces it if it cannot be read. So a stream that starts at position p is equal in
every bit to what an uninterrupted stream gives from p on, with any number of workers.

Workers are threads and not processes. Pillow and numpy release Python's global lock while they work, so threads decode
in parallel; and threads start at once, share the data in memory, need no shared-memory mount, and end with the program.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from vitrail.config import DataConfig, Preprocessing, TransformConfig
from vitrail.config.data import Shuffle
from vitrail.data.decode import BadImage
from vitrail.data.mixup_cutmix import mix, needs_soft_targets
from vitrail.data.order import create_order
from vitrail.data.sources import Split
from vitrail.data.transforms import EvaluationTransform, TrainingTransform
from vitrail.environment import available_processors
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.random_stream import RandomStream
from vitrail.tasks import task
from vitrail.tasks.base import Annotation

_CHUNK = 8
"""The number of encoded images that a worker decodes at a time, small so that all workers share the work on a batch."""
_AHEAD = 2
"""The number of batches that are prepared before the loop asks for them."""
_ATTEMPTS = 100
"""The number of samples that are tried for one position before giving up."""


@dataclass(frozen=True)
class BadSample:
    """A sample that could not be used."""

    id: str
    reason: str
    """The reason as a predicate that follows the id: "is empty"."""


@dataclass
class Batch:
    """The samples of one step of training or evaluation."""

    images: torch.Tensor
    """Normalised, float32 [batch, channels, rows, columns]."""
    targets: torch.Tensor
    """[batch, ...] as the task collates them; for classification int64 [batch], -1 for a sample without a class."""
    ids: list[str]
    soft: torch.Tensor | None = None
    """Soft targets [batch, outputs], if mixing or label smoothing make them."""
    bad: list[BadSample] = field(default_factory=list)
    """The samples that could not be read for this batch."""
    position: int = 0
    """The position in the stream after this batch, at which a resumed stream has to start."""
    views: list[torch.Tensor] = field(default_factory=list)
    """Further views of the same samples if the loader makes any, each like `images` but perhaps of another size."""
    annotations: list[Annotation] = field(default_factory=list)
    """In evaluation, for tasks whose right answers lie in pixels: the answers in the pictures' own pixels. `targets`
    has them in the pixels of `images`."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> "Batch":
        """Returns the samples from `start` up to but not including `stop`."""
        soft = None if self.soft is None else self.soft[start:stop]
        views = [view[start:stop] for view in self.views]
        images, targets, ids = self.images[start:stop], self.targets[start:stop], self.ids[start:stop]
        annotations = self.annotations[start:stop]
        return Batch(images, targets, ids, soft, self.bad, self.position, views, annotations)

    def to(self, device: torch.device) -> "Batch":
        """Returns the batch with its tensors on a device."""
        soft = None if self.soft is None else self.soft.to(device, non_blocking=True)
        views = [view.to(device, non_blocking=True) for view in self.views]
        images, targets = (tensor.to(device, non_blocking=True) for tensor in (self.images, self.targets))
        return Batch(images, targets, self.ids, soft, self.bad, self.position, views, self.annotations)


@dataclass
class _Raw:
    """Samples that are decoded and transformed, but not normalised yet."""

    pixels: np.ndarray
    """[samples, rows, columns, channels], uint8 or float32 from 0 to 1."""
    indices: list[int]
    """The place of each sample in the split."""
    bad: list[BadSample]
    """The samples that could not be read."""
    views: list[np.ndarray] = field(default_factory=list)
    """For each further view its pixels, like `pixels`."""
    moved: list[np.ndarray] = field(default_factory=list)
    """The right answers in the pixels of the model's input, for tasks whose answers lie in pixels."""
    annotations: list[Annotation] = field(default_factory=list)
    """The same in the pictures' own pixels; only for evaluation."""


class TrainingLoader:
    """Yields the endless training stream of a split in batches of constant size.

    A sample that cannot be read is replaced by another one, drawn from (seed, position), so that the batch size and all
    later positions stay the same. It is listed once in `bad`.

    Over several processes, each process takes its part of every global batch of batch_size * world_size samples. The
    position counts the samples of all processes.

    Args:
        split: The samples.
        config: The augmentation.
        preprocessing: The size and the normalisation.
        batch_size: The samples of a batch in each process.
        seed: The seed of the order and of the augmentation.
        num_classes: The number of outputs of soft targets.
        position: The position in the stream to start at.
        workers: The number of threads; 0 to load in the calling thread, None for `default_workers`.
        max_bad: The fraction of the split that may be unreadable; above it, iterating raises UserError.
        max_pixels: The largest picture that is decoded, in pixels; None for the default.
        views: For each further view of every sample its augmentation and preprocessing. Every view has random numbers
            of its own.
        shuffle: "global", "shards" or "auto"; see `create_order`.
        shuffle_buffer: The number of samples that are shuffled together if the order is by shards.
        rank: The number of this process.
        world_size: The number of processes.
        device: The device of the batches.
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
        self.workers = loader_workers(split) if workers is None else workers
        self.max_bad = max_bad
        self.rank, self.world_size, self.device = rank, world_size, torch.device(device)
        self.bad: dict[str, str] = {}
        """The samples that could not be read so far: reason by id."""
        self._order = create_order(split, seed, config.repeats, shuffle, shuffle_buffer)
        self._prepared: int | None = None
        self._normalise = Normaliser(preprocessing, self.device)
        self._in_pixels = task(split.task).target.in_pixels

    def __iter__(self) -> Iterator[Batch]:
        starts = _count(self.position, self.batch_size * self.world_size)
        for start, raw in _prepare(starts, self._slots, self._load, self.workers, self._chunk):
            batch = self._finish(start, raw)
            self.position = batch.position
            yield batch

    @property
    def _chunk(self) -> int:
        """Returns the number of samples that a worker loads at a time."""
        return self.batch_size if self.split.in_memory else _CHUNK

    def _slots(self, start: int) -> list[int]:
        """Returns the positions of this process's part of the global batch that begins at `start`.

        If a new stretch of shards begins there, the split begins to download the shards that will be read soon.
        """
        if (stretch := self._order.stretch(start)) != self._prepared:
            self._prepared = stretch
            self.split.prepare(self._order.soon(start))
        first = start + self.rank * self.batch_size
        return list(range(first, first + self.batch_size))

    def _load(self, slots: list[int]) -> _Raw:
        """Loads the samples at these positions of the stream."""
        rows, columns = self.preprocessing.rows_columns
        raw = _Raw(np.empty((len(slots), rows, columns, self.transform.channels), self.transform.dtype), [], [])
        raw.views = [np.empty((len(slots), *view.image_size, view.channels), view.dtype) for view in self.views]
        for row, slot in enumerate(slots):
            raw.indices.append(self._fill(raw, row, slot))
        return raw

    def _fill(self, raw: _Raw, row: int, slot: int) -> int:
        """Loads the sample at position `slot` of the stream into `row` of the pixels and returns its index.

        If it cannot be read, substitutes are drawn until one can be.
        """
        epoch, index, repeat = self._order.at(slot)
        substitutes = RandomStream("substitute", self.seed, slot)
        for _ in range(_ATTEMPTS):
            name = self.split.ids[index]
            try:
                # A substitute's key has the slot in it, so that it is augmented otherwise than at its own position.
                draws = RandomStream("sample", self.seed, epoch, repeat, name)
                content = self.split.read(index)
                if self.views:
                    content = self.transform.decoded(content)  # decode once for all views
                if self._in_pixels:
                    answer = self.split.annotation(index)
                    raw.pixels[row], frame = self.transform.with_frame(content, draws)
                    raw.moved.append(_moved(self.split, answer, frame))
                else:
                    raw.pixels[row] = self.transform(content, draws)
                for number, view in enumerate(self.views):
                    raw.views[number][row] = view(content, RandomStream("view", number, self.seed, epoch, repeat, name))
                return index
            except BadImage as error:
                raw.bad.append(BadSample(name, str(error)))
                index, repeat = substitutes.integer(len(self.split)), f"for{slot}"
        raise UserError(
            f"{_ATTEMPTS} samples in a row cannot be read; the last: {raw.bad[-1].id} {raw.bad[-1].reason}. "
            "Find out what is wrong with `vitrail data check`"
        )

    def _finish(self, start: int, raw: _Raw) -> Batch:
        """Normalises and mixes the samples of the global batch that begins at `start`."""
        check_bad(self.bad, raw.bad, len(self.split), self.max_bad)
        images = self._normalise(raw.pixels)
        targets = collated(self.split, raw.indices, self.device, raw.moved)
        soft = None
        if needs_soft_targets(self.config):
            head = task(self.split.task).head
            soft = head.soft_targets(targets, self.num_classes, self.config.label_smoothing)
            images, soft = mix(images, soft, self.config, self.seed, start, self.rank)
        names = [self.split.ids[index] for index in raw.indices]
        position = start + self.batch_size * self.world_size
        return Batch(images, targets, names, soft, raw.bad, position, [self._normalise(view) for view in raw.views])


class EvaluationLoader:
    """Yields every sample of a split exactly once, in order. Nothing is padded, so the last batch may be short.

    Samples that cannot be read are left out and listed in `bad`, which can make a batch short or even empty. Over
    several processes, each takes every world_size-th sample, so that together they take each sample once.

    Args:
        split: The samples.
        preprocessing: The size, crop and normalisation.
        batch_size: The samples of a batch.
        workers: The number of threads; 0 to load in the calling thread, None for `default_workers`.
        max_bad: The fraction of the split that may be unreadable; above it, iterating raises UserError.
        max_pixels: The largest picture that is decoded, in pixels; None for the default.
        rank: The number of this process.
        world_size: The number of processes.
        device: The device of the batches.
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
        self.workers = loader_workers(split) if workers is None else workers
        self.max_bad, self.rank, self.world_size = max_bad, rank, world_size
        self.device = torch.device(device)
        self.bad: dict[str, str] = {}
        """The samples that could not be read: reason by id."""
        self._mine = list(range(rank, len(split), world_size))
        self._normalise = Normaliser(preprocessing, self.device)
        self._in_pixels = task(split.task).target.in_pixels

    def __len__(self) -> int:
        """Returns the number of batches."""
        return -(-len(self._mine) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        self.bad.clear()
        starts = range(0, len(self._mine), self.batch_size)
        chunk = self.batch_size if self.split.in_memory else _CHUNK
        for start, raw in _prepare(starts, self._slots, self._load, self.workers, chunk):
            check_bad(self.bad, raw.bad, len(self.split), self.max_bad)
            targets = collated(self.split, raw.indices, self.device, raw.moved)
            names = [self.split.ids[index] for index in raw.indices]
            position = min(start + self.batch_size, len(self._mine))
            images = self._normalise(raw.pixels)
            yield Batch(images, targets, names, None, raw.bad, position, annotations=raw.annotations)

    def _slots(self, start: int) -> list[int]:
        """Returns the indices of the samples of the batch that begins at `start`."""
        return self._mine[start : start + self.batch_size]

    def _load(self, indices: list[int]) -> _Raw:
        """Loads these samples, without those that cannot be read."""
        rows, columns = self.preprocessing.rows_columns
        raw = _Raw(np.empty((len(indices), rows, columns, self.transform.channels), self.transform.dtype), [], [])
        for index in indices:
            try:
                row, content = len(raw.indices), self.split.read(index)
                if self._in_pixels:
                    answer = self.split.annotation(index)
                    raw.pixels[row], frame = self.transform.with_frame(content)
                    raw.moved.append(_moved(self.split, answer, frame))
                    raw.annotations.append(Annotation(answer, frame))
                else:
                    raw.pixels[row] = self.transform(content)
                raw.indices.append(index)
            except BadImage as error:
                raw.bad.append(BadSample(self.split.ids[index], str(error)))
        raw.pixels = raw.pixels[: len(raw.indices)]
        return raw


def collated(split: Split, indices: list[int], device: torch.device, moved: Sequence[np.ndarray] = ()) -> torch.Tensor:
    """Collates the targets of some samples of a split as its task does, as a tensor [samples, ...] on a device.

    moved: the right answers in the pixels of the model's input, for tasks whose answers lie in pixels.
    """
    targets = torch.from_numpy(
        np.stack(moved) if len(moved) else task(split.task).target.collate(split.targets[indices])
    )
    # Apple's GPUs have no double precision.
    return (targets.float() if device.type == "mps" and targets.dtype == torch.float64 else targets).to(device)


class Normaliser:
    """Normalises pixels [batch, rows, columns, channels] to float32 [batch, channels, rows, columns] on a device.

    The order of operations (bytes divided by 255, minus mean, divided by std) is torchvision's, so that the results are
    equal to the last bit. `data.preparation.ArrayNormaliser` does the same without torch: it is a class of its own
    because exported models are run where torch is not imported, and this one computes on the device of the model.
    """

    def __init__(self, preprocessing: Preprocessing, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.mean = torch.tensor(preprocessing.mean, device=self.device).view(-1, 1, 1)
        self.std = torch.tensor(preprocessing.std, device=self.device).view(-1, 1, 1)

    def __call__(self, pixels: np.ndarray) -> torch.Tensor:
        # Move bytes to the device and convert them there, since floats would take four times the transfer.
        writable = pixels if pixels.flags.writeable else pixels.copy()  # torch warns of arrays that are read-only
        images = torch.from_numpy(writable).to(self.device).permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=torch.contiguous_format)
        # Float images may still share memory with `pixels`, which must not change: clone them.
        images = images.div_(255) if pixels.dtype == np.uint8 else images.clone()
        return images.sub_(self.mean).div_(self.std)


def check_bad(bad: dict[str, str], found: list[BadSample], count: int, max_bad: float) -> None:
    """Adds newly found bad samples to the list of all, and raises UserError if these are too many.

    Args:
        bad: The samples that could not be read so far, reason by id.
        found: The new ones.
        count: The number of samples in the split.
        max_bad: The fraction of them that may be bad.
    """
    bad.update({sample.id: sample.reason for sample in found})
    if found and len(bad) > max_bad * count + 1e-6:  # the sum since 0.29 * 100 is a little less than 29
        shown = "; ".join(f"{name} {reason}" for name, reason in list(bad.items())[:3])
        raise UserError(
            f"{len(bad)} of {count} images cannot be used, more than --data.max-bad {max_bad:.3g} allows: {shown}. "
            "Repair or remove them (vitrail data check lists them all), or raise --data.max-bad"
        )


def _moved(split: Split, answer: np.ndarray | None, frame: Frame) -> np.ndarray:
    """Moves a right answer in pixels as its picture was moved. Raises BadImage if it does not fit the picture."""
    try:
        return task(split.task).target.moved(answer, frame)
    except ValueError as error:
        raise BadImage(str(error)) from error


def loader_workers(split: Split) -> int:
    """Returns the number of threads to load with: one if the samples are in memory, else one for each processor, at
    most eight."""
    return 1 if split.in_memory else min(available_processors(), 8)


def _count(start: int, step: int) -> Iterator[int]:
    """Yields start, start + step, start + 2 * step and so on, without end."""
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
    """Loads batches in order and yields the start of each with its samples. With workers, some are loaded ahead.

    Args:
        starts: The position at which each batch begins.
        slots: Returns the positions or indices of the samples of a batch.
        load: Loads some of these samples; it is called in the workers.
        workers: The number of threads; 0 to load in the calling thread.
        chunk: The number of samples that a worker loads at a time.
    """
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
        # This runs too if the caller stops iterating early.
        pool.shutdown(wait=True, cancel_futures=True)


def _gather(start: int, futures: list[Future[_Raw]]) -> tuple[int, _Raw]:
    """Waits for the parts of a batch and joins them."""
    parts = [future.result() for future in futures]
    if len(parts) == 1:
        return start, parts[0]
    return start, _Raw(
        np.concatenate([part.pixels for part in parts]),
        [index for part in parts for index in part.indices],
        [sample for part in parts for sample in part.bad],
        [np.concatenate(views) for views in zip(*(part.views for part in parts), strict=True)],
        [each for part in parts for each in part.moved],
        [each for part in parts for each in part.annotations],
    )
