"""The life of a server: bind, listen, drain on SIGTERM or Ctrl-C, end with status 0."""

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from vitrail.inference.engines import Engine
from vitrail.serving.address import bind
from vitrail.serving.app import create_app
from vitrail.serving.connection import connection_class
from vitrail.serving.door import Door
from vitrail.serving.keys import Keys
from vitrail.serving.limits import Limits
from vitrail.serving.logs import log
from vitrail.serving.service import Service

_LAST_CALL = 0.25
"""Seconds between the signal and the closed door: for requests that were sent before anybody could know."""
_SWITCH = 0.001
"""Seconds a thread may keep Python to itself while others wait: a fifth of the default, for the model's sake."""


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]):
        super().__init__(config)
        self.service, self._tell = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Not ready any more, still answering for a moment, then closed to new ones; what was accepted is answered."""
        self.service.draining = True
        log("draining", waiting=self.service.batcher.pending)
        await asyncio.sleep(_LAST_CALL)
        await super().shutdown(sockets)
        log("ended")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, not raised again at the end: a server that has drained ended well."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def make_server(
    engines: dict[str, Engine], limits: Limits, keys: Keys, started: Callable[[], None] = lambda: None
) -> Server:
    service = Service(engines, limits)
    config = uvicorn.Config(
        create_app(service, keys),
        http=connection_class(limits, Door(service, keys)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(limits.drain_seconds)),
    )
    return Server(config, service, started)


def serve(
    engines: dict[str, Engine],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    limits: Limits | None = None,
    keys: Keys | None = None,
    insecure: bool = False,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until a signal. `started` is told the address once the server listens."""
    listener = bind(host, port, open_to_all=insecure or bool(keys and keys.digests))
    bound = listener.getsockname()
    name = f"[{bound[0]}]" if listener.family == socket.AF_INET6 else bound[0]
    server = make_server(engines, limits or Limits(), keys or Keys(()), lambda: started(f"http://{name}:{bound[1]}"))
    sys.setswitchinterval(_SWITCH)
    with listener:
        server.run(sockets=[listener])
