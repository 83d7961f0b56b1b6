"""Dynamic batching: images that arrive together are decoded side by side and run as one batch.

    event loop          decoders (threads)              workers (threads, as many as the engines are made for)
    submit ----------> prepare: bytes -> array ------> wait for a full batch, or max_wait, then run it
        ^                       | a bad image fails alone       |
        +-----------------------+-------------------------------+   answers, a batch at a time

A `Lane` is one kind of work on one model; only images of a lane share a batch. All lanes share the workers: more models
do not mean more threads. Workers look at the lanes themselves, so that between decoding and computing nothing waits
for the event loop.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vitrail.serving.logs import log
from vitrail.serving.refusals import Refusal, busy, internal


class Lane:
    """prepare: what came in -> an input, by any thread. run: inputs -> as many answers, by a worker."""

    def __init__(
        self,
        name: str,
        prepare: Callable[[Any], Any],
        run: Callable[[list[Any]], Sequence[Any]],
        max_batch: int,
        *,
        after: Callable[[int, float, Exception | None], None] = lambda size, seconds, error: None,
    ):
        self.name, self.prepare, self.run, self.max_batch = name, prepare, run, max_batch
        self.after = after
        """Told of every batch: its size, how long it took, and what went wrong."""
        self.ready: deque[Item] = deque()

    def take(self) -> "list[Item]":
        """The next batch, without those that nobody waits for."""
        batch: list[Item] = []
        while self.ready and len(batch) < self.max_batch:
            item = self.ready.popleft()
            if not item.work.dropped:
                batch.append(item)
        return batch


class Work:
    """What one request asked for: an answer, or a Refusal, for each of its images."""

    def __init__(self, count: int, future: "asyncio.Future[list[Any]]"):
        self.answers: list[Any] = [None] * count
        self.left = count
        self.future = future
        self.dropped = False


class Item:
    __slots__ = ("content", "lane", "place", "since", "work")

    def __init__(self, work: Work, place: int, lane: Lane, content: Any):
        self.work, self.place, self.lane, self.content = work, place, lane, content
        self.since = 0.0


class Batcher:
    """`submit`, `drop` and all counting belong to the event loop's thread; the rest to the threads it starts."""

    def __init__(self, *, max_queue: int, max_wait: float, decoders: int, workers: int = 1):
        self.max_queue, self.max_wait = max_queue, max_wait
        self.pending = 0
        """Images accepted and not answered yet."""
        self._began: dict[int, float] = {}
        """By thread, when the batch began that it is computing."""
        self.lanes: list[Lane] = []
        self._incoming: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Daemons: a model that hangs must not keep the program from ending.
        self._decoders = [threading.Thread(target=self._decode, name="decoder", daemon=True) for _ in range(decoders)]
        self._workers = [threading.Thread(target=self._compute, name="worker", daemon=True) for _ in range(workers)]

    def start(self, lanes: Iterable[Lane]) -> None:
        self._loop = asyncio.get_running_loop()
        self.lanes = list(lanes)
        for thread in (*self._decoders, *self._workers):
            thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for _ in self._decoders:
            self._incoming.put(None)

    def full(self, more: int = 1) -> bool:
        return self.pending + more > self.max_queue

    def submit(self, lane: Lane, contents: Sequence[Any]) -> Work:
        if self.full(len(contents)):
            raise busy(f"{self.pending} images are waiting and there is no room for {len(contents)} more")
        assert self._loop is not None
        work = Work(len(contents), self._loop.create_future())
        self.pending += len(contents)
        for place, content in enumerate(contents):
            self._incoming.put(Item(work, place, lane, content))
        return work

    def drop(self, work: Work) -> None:
        """Nobody waits for it: what is not begun will not be."""
        if not work.dropped:
            work.dropped = True
            self.pending -= work.left

    def stalled(self, seconds: float) -> bool:
        """Whether a worker has been at one batch for longer, or is gone."""
        now = time.monotonic()
        return any(now - began > seconds for began in list(self._began.values())) or not all(
            worker.is_alive() for worker in self._workers
        )

    # Decoders

    def _decode(self) -> None:
        while (item := self._incoming.get()) is not None:
            if item.work.dropped:
                continue
            try:
                item.content = item.lane.prepare(item.content)
            except Refusal as refusal:
                self._deliver([item], [refusal])
            except Exception as error:
                log("preparing an image failed", logging.ERROR, error=error, lane=item.lane.name)
                self._deliver([item], [internal()])
            else:
                item.since = time.monotonic()
                with self._changed:
                    item.lane.ready.append(item)
                    self._changed.notify()
            del item  # or the last image stays in memory until the next one comes

    # Workers

    def _compute(self) -> None:
        while batch := self._next_batch():
            self._deliver(batch, self._run(batch[0].lane, [item.content for item in batch]))
            del batch  # or it stays in memory until the next one comes

    def _next_batch(self) -> list[Item]:
        """Of the lane whose batch is full, or whose first image has waited long enough; the one due longest first."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                due = [(self._due_at(lane), lane) for lane in self.lanes if lane.ready]
                at, lane = min(due, key=lambda each: each[0], default=(None, None))
                if lane is None or at is None:
                    self._changed.wait()
                elif at > now:
                    self._changed.wait(at - now)
                elif batch := lane.take():
                    return batch
        return []

    def _due_at(self, lane: Lane) -> float:
        first = lane.ready[0].since
        return first if len(lane.ready) >= lane.max_batch else first + self.max_wait

    def _run(self, lane: Lane, inputs: list[Any]) -> Sequence[Any]:
        began = self._began[threading.get_ident()] = time.monotonic()
        failure = None
        try:
            answers = lane.run(inputs)
            assert len(answers) == len(inputs)
        except Refusal as refusal:
            answers = [refusal] * len(inputs)
        except Exception as error:
            failure = error
            log("running the model failed", logging.ERROR, error=error, lane=lane.name, batch=len(inputs))
            answers = [Refusal(500, "model_failed", "the model could not be run on this image")] * len(inputs)
        del self._began[threading.get_ident()]
        lane.after(len(inputs), time.monotonic() - began, failure)
        if failure is not None and len(inputs) > 1:  # one of them may be at fault, or all together too large
            return [self._run(lane, [each])[0] for each in inputs]
        return answers

    # Back to the event loop

    def _deliver(self, items: list[Item], answers: Sequence[Any]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._finish, items, answers)
        except RuntimeError:  # the loop is closed: the server has ended
            assert self._stopping or self._loop.is_closed()

    def _finish(self, items: list[Item], answers: Sequence[Any]) -> None:
        for item, answer in zip(items, answers, strict=True):
            work = item.work
            if work.dropped:
                continue
            work.answers[item.place] = answer
            work.left -= 1
            self.pending -= 1
            if work.left == 0 and not work.future.done():
                work.future.set_result(work.answers)
