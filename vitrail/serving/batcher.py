"""Dynamic batching: images that arrive together are decoded side by side and run as one batch.

    event loop          decoders (threads)              workers (threads, as many as the engines are made for)
    submit ----------> prepare: bytes -> array ------> wait for a full batch, or max_wait, then run it
        ^                       | a bad image fails alone       |
        +-----------------------+-------------------------------+   answers, a batch at a time

Images that may take long to decode have a queue and decoders of their own, apart from the others: these threads only
wait for a process that decodes. So however many of them come, others are decoded beside them.

An `Operation` is one kind of work on one model, such as its predictions or its features; only images of one operation
share a batch. All operations share the workers: more models do not mean more threads. Workers choose the next batch
themselves, so that between decoding and computing nothing waits for the event loop.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.serving.errors import ApiError, busy_error, internal_error
from vitrail.serving.logs import log


class Operation:
    """One kind of work on one model, and the prepared images that wait for it.

    `prepare` turns one upload into an input, in a decoder's thread; `is_apart` tells whether that may take long. `run`
    turns a batch of inputs into as many answers, in a worker's thread. `max_batch` is the most inputs that `run` is
    given at once.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[Any], Any],
        run: Callable[[list[Any]], Sequence[Any]],
        max_batch: int,
        *,
        is_apart: Callable[[Any], bool] = lambda content: False,
        after: Callable[[int, float, Exception | None], None] = lambda size, seconds, error: None,
    ):
        self.name, self.prepare, self.run, self.max_batch = name, prepare, run, max_batch
        self.is_apart = is_apart
        self.after = after
        """Called after every batch with its size, the seconds it took, and the exception that ended it, if one did."""
        self.ready: deque[PendingImage] = deque()
        """Images that are prepared and wait for a worker, in the order in which they became ready."""

    def take(self) -> "list[PendingImage]":
        """Removes the next batch from the queue and returns it, leaving out images of requests that were dropped."""
        batch: list[PendingImage] = []
        while self.ready and len(batch) < self.max_batch:
            image = self.ready.popleft()
            if not image.request.dropped:
                batch.append(image)
        return batch


class PendingRequest:
    """The images of one request that are not all answered yet.

    `future` receives the list of answers, one for each image in the request's order: a row of the model's output, or an
    ApiError.
    """

    def __init__(self, count: int, future: "asyncio.Future[list[Any]]"):
        self.answers: list[Any] = [None] * count
        self.left = count
        """Images without an answer so far."""
        self.left_apart = 0
        """Those of them that are decoded apart."""
        self.future = future
        self.dropped = False
        """Whether nobody waits for the answers any more."""


class PendingImage:
    """One image of a request: the `place` of its answer, and its `content`, first the upload and then the input."""

    __slots__ = ("apart", "content", "operation", "place", "request", "since")

    def __init__(self, request: PendingRequest, place: int, operation: Operation, content: Any):
        self.request, self.place, self.operation, self.content = request, place, operation, content
        self.apart = False
        """Whether it is decoded apart."""
        self.since = 0.0
        """The time from which it waits: for a decoder apart, and once it is prepared for its batch."""


@dataclass(frozen=True)
class ApartDecoding:
    """Settings for images that may take long to decode, which have threads and a queue of their own."""

    decoders: int = 1
    """Threads that decode them: as many as there are processes to do it."""
    max_wait: float = 10.0
    """Seconds for which one may wait for others to be decoded."""


class Batcher:
    """Decodes images in `decoders` threads, or apart, and runs them in batches in `workers` threads.

    At most `max_queue` images are pending, and as many that are decoded apart; the first image of a batch waits at most
    `max_wait` seconds for others.
    `submit`, `drop` and all counting belong to the event loop's thread; the rest to the threads that are started here.
    """

    def __init__(self, *, max_queue: int, max_wait: float, decoders: int, workers: int = 1, apart: ApartDecoding):
        self.max_queue, self.max_wait, self.apart = max_queue, max_wait, apart
        self.pending = 0
        """Images accepted and not answered yet, but for those that are decoded apart."""
        self.pending_apart = 0
        """Images that are decoded apart and not answered yet."""
        self._decoding: dict[int, float] = {}
        """The time at which each decoder began its present image, by thread; idle ones have no entry."""
        self._began: dict[int, float] = {}
        """The time at which each worker began its present batch, by thread; idle workers have no entry."""
        self.operations: list[Operation] = []
        self._incoming: queue.SimpleQueue[PendingImage | None] = queue.SimpleQueue()
        self._incoming_apart: queue.SimpleQueue[PendingImage | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Daemons: a model that hangs must not keep the program from ending.
        self._decoders = [threading.Thread(target=self._decode, name="decoder", daemon=True) for _ in range(decoders)]
        self._decoders_apart = [
            threading.Thread(target=self._decode_apart, name="decoder apart", daemon=True)
            for _ in range(apart.decoders)
        ]
        self._workers = [threading.Thread(target=self._compute, name="worker", daemon=True) for _ in range(workers)]

    def start(self, operations: Iterable[Operation]) -> None:
        """Starts the threads. Must be called in the event loop that will submit the requests."""
        self._loop = asyncio.get_running_loop()
        self.operations = list(operations)
        for thread in (*self._decoders, *self._decoders_apart, *self._workers):
            thread.start()

    def stop(self) -> None:
        """Tells the threads to end after what they are doing now, and waits for none of them."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for _ in self._decoders:
            self._incoming.put(None)
        for _ in self._decoders_apart:
            self._incoming_apart.put(None)

    @property
    def waiting(self) -> int:
        """The number of images that are accepted and not answered yet."""
        return self.pending + self.pending_apart

    def full(self, more: int = 1) -> bool:
        """Tells whether the queue has no room for `more` images."""
        return self.pending + more > self.max_queue

    def submit(self, operation: Operation, contents: Sequence[Any]) -> PendingRequest:
        """Accepts the images of one request, or raises the ApiError 503 where there is no room for all of them."""
        if self.full(len(contents)):
            raise busy_error(f"{self.pending} images are waiting and there is no room for {len(contents)} more")
        assert self._loop is not None
        request = PendingRequest(len(contents), self._loop.create_future())
        self.pending += len(contents)
        for place, content in enumerate(contents):
            self._incoming.put(PendingImage(request, place, operation, content))
        return request

    def drop(self, request: PendingRequest) -> None:
        """Gives up a request that nobody waits for: none of its images is begun any more, and its room is free."""
        if not request.dropped:
            request.dropped = True
            self.pending -= request.left - request.left_apart
            self.pending_apart -= request.left_apart

    def stalled(self, seconds: float) -> bool:
        """Tells whether a worker has been running one batch for more than `seconds`, or all decoders one image, or a
        thread has ended."""
        now = time.monotonic()
        long = [now - began > seconds for began in list(self._decoding.values())]
        return (
            any(now - began > seconds for began in list(self._began.values()))
            or sum(long) == len(self._decoders)
            or not all(thread.is_alive() for thread in (*self._decoders, *self._decoders_apart, *self._workers))
        )

    # Decoders

    def _decode(self) -> None:
        while (image := self._incoming.get()) is not None:
            if not image.request.dropped:
                self._decoding[threading.get_ident()] = time.monotonic()
                self._prepare(image)
                del self._decoding[threading.get_ident()]
            del image  # or the last image stays in memory until the next one comes

    def _decode_apart(self) -> None:
        while (image := self._incoming_apart.get()) is not None:
            if not image.request.dropped:
                self._prepare(image)
            del image

    def _prepare(self, image: PendingImage) -> None:
        operation = image.operation
        try:
            if not image.apart and operation.is_apart(image.content):
                self._call_in_loop(self._set_apart, image)
                return
            if image.apart and time.monotonic() - image.since > self.apart.max_wait:
                raise busy_error("other images of this kind are taking long to decode")
            image.content = operation.prepare(image.content)
        except ApiError as error:
            self._deliver([image], [error])
        except Exception as error:
            log("preparing an image failed", logging.ERROR, error=error, operation=operation.name)
            self._deliver([image], [internal_error()])
        else:
            image.since = time.monotonic()
            with self._changed:
                operation.ready.append(image)
                self._changed.notify()

    def _set_apart(self, image: PendingImage) -> None:
        """Moves an image to the queue of those that are decoded apart, where it takes no room from others."""
        if image.request.dropped:
            return
        if self.pending_apart >= self.max_queue:
            self._finish([image], [busy_error(f"{self.pending_apart} images of this kind are waiting")])
            return
        image.apart, image.since = True, time.monotonic()
        image.request.left_apart += 1
        self.pending_apart += 1
        self.pending -= 1
        self._incoming_apart.put(image)

    # Workers

    def _compute(self) -> None:
        while batch := self._next_batch():
            self._deliver(batch, self._run(batch[0].operation, [image.content for image in batch]))
            del batch  # or it stays in memory until the next one comes

    def _next_batch(self) -> list[PendingImage]:
        """Waits for a batch that is due and returns it; an empty list when the batcher has been stopped.

        A batch is due when it is full, or when its first image has waited long enough. Of several the one that has been
        due longest comes first.
        """
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                due = [(self._due_at(operation), operation) for operation in self.operations if operation.ready]
                at, operation = min(due, key=lambda each: each[0], default=(None, None))
                if operation is None or at is None:
                    self._changed.wait()
                elif at > now:
                    self._changed.wait(at - now)
                elif batch := operation.take():
                    return batch
        return []

    def _due_at(self, operation: Operation) -> float:
        first = operation.ready[0].since
        return first if len(operation.ready) >= operation.max_batch else first + self.max_wait

    def _run(self, operation: Operation, inputs: list[Any]) -> Sequence[Any]:
        """Runs a batch and returns an answer or an ApiError for each input. Where a batch fails, each runs alone."""
        began = self._began[threading.get_ident()] = time.monotonic()
        failure = None
        try:
            answers = operation.run(inputs)
            assert len(answers) == len(inputs)
        except ApiError as error:
            answers = [error] * len(inputs)
        except Exception as error:
            failure = error
            log("running the model failed", logging.ERROR, error=error, operation=operation.name, batch=len(inputs))
            answers = [ApiError(500, "model_failed", "the model could not be run on this image")] * len(inputs)
        del self._began[threading.get_ident()]
        operation.after(len(inputs), time.monotonic() - began, failure)
        if failure is not None and len(inputs) > 1:  # one input may be at fault, or the batch too large for the memory
            return [self._run(operation, [each])[0] for each in inputs]
        return answers

    # Back to the event loop

    def _deliver(self, images: list[PendingImage], answers: Sequence[Any]) -> None:
        self._call_in_loop(self._finish, images, answers)

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: the server has ended
            assert self._stopping or self._loop.is_closed()

    def _finish(self, images: list[PendingImage], answers: Sequence[Any]) -> None:
        for image, answer in zip(images, answers, strict=True):
            request = image.request
            if request.dropped:
                continue
            request.answers[image.place] = answer
            request.left -= 1
            if image.apart:
                request.left_apart -= 1
                self.pending_apart -= 1
            else:
                self.pending -= 1
            if request.left == 0 and not request.future.done():
                request.future.set_result(request.answers)
