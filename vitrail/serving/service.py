"""What the routes share: models, batcher, limits; and the one way to an answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request

from vitrail.inference.engines import Engine, processors
from vitrail.serving.batcher import Batcher
from vitrail.serving.limits import Limits
from vitrail.serving.logs import log
from vitrail.serving.memory import give_back
from vitrail.serving.metrics import Metrics
from vitrail.serving.models import Models, Served
from vitrail.serving.refusals import ClientGone, Refusal, busy

_LOOK_EVERY = 1.0
"""Seconds between looks at the models' health."""


class Service:
    """One a server. `draining` is set by the signal to end: from then on it is not ready, but answers."""

    def __init__(self, engines: dict[str, Engine], limits: Limits):
        self.limits = limits
        self.metrics = Metrics()
        self.models = Models(engines, limits, self.metrics)
        self.batcher = Batcher(
            max_queue=self.models.max_queue(),
            max_wait=limits.max_wait_ms / 1000,
            decoders=max(2, processors()),
            workers=max(served.engine.workers for served in self.models),
        )
        self.metrics.watch_queue(lambda: self.batcher.pending)
        for served in self.models:
            self.metrics.ready.labels(served.name).set_function(lambda served=served: float(self.ready(served)))
        self.body_bytes = 0
        """Of all request bodies in memory."""
        self.draining = False
        self.turned_away = 0
        """Requests refused at the door since the log last said so."""
        self._used = False
        """Whether there was work since memory was last given back."""

    @contextlib.asynccontextmanager
    async def life(self, app: Any) -> AsyncIterator[None]:
        """Threads start, models are warmed up while the server already listens, and their health is watched."""
        with contextlib.ExitStack() as stack:
            for each in self.models.running():
                stack.enter_context(each)
            self.batcher.start(lane for served in self.models for lane in served.lanes.values())
            watching = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                watching.cancel()
                self.batcher.stop()

    def ready(self, served: Served | None = None) -> bool:
        """Whether a model, or all of them, answer now."""
        asked = [served] if served is not None else list(self.models)
        return not self.batcher.stalled(self.limits.stall_seconds) and all(
            each.warm and not each.failing for each in asked
        )

    async def _watch(self) -> None:
        """A model that has not answered yet, or not the last time, is asked until it does; then it is ready (again)."""
        while True:
            if self.turned_away:
                log("turned away", logging.WARNING, requests=self.turned_away, waiting=self.batcher.pending)
                self.turned_away = 0
            if self._used and not self.batcher.pending:
                self._used = False
                give_back()
            for served in self.models:
                if not served.warm or served.failing:
                    try:
                        await self.models.warm_up(served, self.batcher)
                        log("ready", model=served.name, engine=served.engine.name)
                    except Exception as error:  # whatever it is, the watch goes on
                        log("not ready", logging.ERROR, model=served.name, reason=str(error))
            await asyncio.sleep(_LOOK_EVERY)

    def no_room(self) -> Refusal | None:
        """What images are told that there is no room for, before anything else is done for them: under overload most
        of what comes is refused, and what that costs is taken from those that are answered."""
        if not self.batcher.full():
            return None
        return busy(f"{self.batcher.pending} images are waiting, as many as there is room for")

    def accepting(self, served: Served) -> None:
        """Refuse before the body is read what would be refused after."""
        if not served.warm:
            raise Refusal(503, "not_ready", f"the model {served.name!r} is warming up", retry_after=1)
        if self.batcher.stalled(self.limits.stall_seconds):
            raise Refusal(503, "not_ready", "the model does not answer", retry_after=10)

    async def answers(self, request: Request, served: Served, what: str, contents: Sequence[Any]) -> list[Any]:
        """An answer or a Refusal for each; within the deadline, and only for as long as somebody waits for them."""
        work = self.batcher.submit(served.lane(what), contents)
        self._used = True
        gone = asyncio.ensure_future(request.receive())  # after the body this returns when the client has left
        try:
            async with asyncio.timeout(self.limits.deadline_seconds):
                await asyncio.wait((gone, work.future), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise Refusal(504, "deadline", f"no answer within {self.limits.deadline_seconds:g} seconds") from None
        finally:
            finished = work.future.done()
            if not finished:
                self.batcher.drop(work)
            gone.cancel()
        if not finished:
            raise ClientGone
        return work.answers

    async def one(self, request: Request, served: Served, what: str, content: Any) -> Any:
        (answer,) = await self.answers(request, served, what, [content])
        if isinstance(answer, Refusal):
            raise answer
        return answer


def service_of(request: Request) -> Service:
    return request.app.state.service
