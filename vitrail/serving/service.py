"""The state that all routes share: models, batcher, limits, metrics; and the one way from images to answers."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import Request

from vitrail.data.decode_pool import DecodePool
from vitrail.inference.engines import Engine, processors
from vitrail.serving.batcher import ApartDecoding, Batcher
from vitrail.serving.errors import ApiError, ClientDisconnected, busy_error
from vitrail.serving.limits import Limits, affordable_connections
from vitrail.serving.logs import log
from vitrail.serving.memory import release_memory
from vitrail.serving.metrics import Metrics
from vitrail.serving.models import ServedModel, ServedModels

_MOST_DECODING_PROCESSES = 4
"""More would let costly images take more of the processors, and of the memory, from all others."""
_WATCH_INTERVAL = 1.0
"""Seconds between checks of the models' health."""


class Service:
    """The models of one server and what runs them. There is one for each server.

    `draining` is set by the signal to end: from then on the server says that it is not ready, but still answers.
    """

    def __init__(self, engines: dict[str, Engine], limits: Limits):
        self.limits = limits
        self.metrics = Metrics()
        self.decoders = DecodePool(max(2, min(processors(), _MOST_DECODING_PROCESSES)))
        self.models = ServedModels(engines, limits, self.metrics, self.decoders)
        self.batcher = Batcher(
            max_queue=self.models.max_queue(),
            max_wait=limits.max_wait_ms / 1000,
            decoders=max(2, processors()),
            workers=max(served.engine.workers for served in self.models),
            apart=ApartDecoding(self.decoders.most, limits.decode_seconds),
        )
        self.metrics.watch_queue(lambda: self.batcher.waiting)
        for served in self.models:
            self.metrics.ready.labels(served.name).set_function(lambda served=served: float(self.ready(served)))
        self.body_bytes = 0
        """Bytes of all request bodies in memory."""
        self.max_connections = limits.max_connections
        """The most connections at a time: fewer than `Limits` says, if the system allows this process fewer files."""
        self.draining = False
        self.rejected_early = 0
        """Requests rejected before they were parsed (`overload`) since the log last said how many."""
        self._answering = asyncio.Semaphore(processors())
        """Room for the threads that make answers in the pixels of pictures."""
        self._used = False
        """Whether anything was computed since memory was last released to the system."""

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Starts the threads and the watch over the models, and stops them at the end.

        The server listens from the start; models are warmed up meanwhile, by the watch.
        """
        with contextlib.ExitStack() as stack:
            for each in self.models.running():
                stack.enter_context(each)
            self.batcher.start(operation for served in self.models for operation in served.operations.values())
            self.max_connections = affordable_connections(self.limits.max_connections)
            if self.max_connections < self.limits.max_connections:
                log("few file descriptors", logging.WARNING, max_connections=self.max_connections)
            watching = asyncio.create_task(self._watch_models())
            try:
                yield
            finally:
                watching.cancel()
                self.batcher.stop()
                self.decoders.close()

    def ready(self, served: ServedModel | None = None) -> bool:
        """Tells whether a model answers now; without one, whether all do. Images must be decoded for that."""
        asked = [served] if served is not None else list(self.models)
        answers = all(each.warm and not each.failing for each in asked)
        return answers and self.decoders.works and not self.batcher.stalled(self.limits.stall_seconds)

    async def _watch_models(self) -> None:
        """Runs models that are new, or failed last time, until they answer; once a second, as long as the server runs.

        The same loop logs how many requests were rejected early, and releases memory when nothing is pending.
        """
        while True:
            if self.rejected_early:
                log("overloaded", logging.WARNING, requests=self.rejected_early, waiting=self.batcher.pending)
                self.rejected_early = 0
            if self._used and not self.batcher.waiting:
                self._used = False
                release_memory()
            if not self.decoders.works:
                try:
                    await asyncio.to_thread(self.decoders.start)
                except Exception as error:
                    log("not ready", logging.ERROR, reason=str(error))
            for served in self.models:
                if not served.warm or served.failing:
                    try:
                        await self.models.warm_up(served, self.batcher)
                        log("ready", model=served.name, engine=served.engine.name)
                    except Exception as error:  # whatever it is, the watch goes on
                        log("not ready", logging.ERROR, model=served.name, reason=str(error))
            await asyncio.sleep(_WATCH_INTERVAL)

    def overload_error(self) -> ApiError | None:
        """Returns the error for a request that would find the queue full, or None while there is room.

        It is asked before anything else is done for a request: under overload most requests are refused, and the time
        that takes is missing for those that are answered.
        """
        if not self.batcher.full():
            return None
        return busy_error(f"{self.batcher.pending} images are waiting, as many as there is room for")

    def check_ready(self, served: ServedModel) -> None:
        """Raises the ApiError 503 while a model cannot answer, so that the request's body is not read in vain."""
        if not served.warm:
            raise ApiError(503, "not_ready", f"the model {served.name!r} is warming up", retry_after=1)
        if self.batcher.stalled(self.limits.stall_seconds):
            raise ApiError(503, "not_ready", "the model does not answer", retry_after=10)

    async def run(self, request: Request, served: ServedModel, what: str, contents: Sequence[Any]) -> list[Any]:
        """Computes an answer, or an ApiError, for each of a request's images.

        It raises ApiError 504 after the deadline and ClientDisconnected when the client leaves; in both cases what is
        not begun is dropped.

        Args:
            request: The request, whose body has been read.
            served: The model that answers.
            what: The name of one of the model's operations.
            contents: What the operation's `prepare` takes: bytes of image files, or inputs that are prepared already.
        """
        pending = self.batcher.submit(served.operation(what), contents)
        self._used = True
        gone = asyncio.ensure_future(request.receive())  # after the body this returns when the client has left
        try:
            async with asyncio.timeout(self.limits.deadline_seconds):
                await asyncio.wait((gone, pending.future), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise ApiError(504, "deadline", f"no answer within {self.limits.deadline_seconds:g} seconds") from None
        finally:
            finished = pending.future.done()
            if not finished:
                self.batcher.drop(pending)
            gone.cancel()
        if not finished:
            raise ClientDisconnected
        return pending.answers

    async def apart(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Returns `function(argument)`, computed in a thread; at most as many run at a time as there are processors."""
        async with self._answering:
            return await asyncio.to_thread(function, argument)

    async def run_one(self, request: Request, served: ServedModel, what: str, content: Any) -> Any:
        """Computes the answer to a request of a single image, and raises its ApiError if that is what it is."""
        (answer,) = await self.run(request, served, what, [content])
        if isinstance(answer, ApiError):
            raise answer
        return answer


def get_service(request: Request) -> Service:
    """Returns the service of the server that received the request."""
    return request.app.state.service
