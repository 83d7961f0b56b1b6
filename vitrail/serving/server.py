"""The server's process: it listens, serves, and on SIGTERM or Ctrl-C answers what it has accepted and ends with 0."""

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from vitrail.inference.engines import Engine
from vitrail.serving.address import open_listener
from vitrail.serving.app import create_app
from vitrail.serving.connection import make_connection_class
from vitrail.serving.keys import ApiKeys
from vitrail.serving.limits import Limits
from vitrail.serving.logs import log
from vitrail.serving.overload import OverloadResponder
from vitrail.serving.service import Service

_STILL_LISTENING = 0.25
"""Seconds between the signal and the end of listening: clients may send before they can know."""
_ACCEPTED_AT_ONCE = 8
"""New connections that the event loop takes before it does other things. Where no more files may be opened, asyncio
fails, and logs it, as many times in a row."""
_WAITING_CONNECTIONS = 512
"""New connections that may wait in the system until they are accepted."""
_SWITCH_INTERVAL = 0.001
"""Seconds a thread may hold Python's lock while others wait: a fifth of the default, so that models wait less."""


class Server(uvicorn.Server):
    """A uvicorn server that drains before it ends. `started` is called once it listens."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]):
        super().__init__(config)
        self.service, self._started = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and then calls `started`."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_WAITING_CONNECTIONS)  # asyncio has set the number that it accepts at once
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the server: first it is not ready, then it takes no new connections, then everything is answered."""
        self.service.draining = True
        log("draining", waiting=self.service.batcher.pending)
        await asyncio.sleep(_STILL_LISTENING)
        await super().shutdown(sockets)
        log("ended")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGINT and SIGTERM while the server runs.

        Unlike uvicorn it does not raise them again at the end: a server that has drained has ended well.
        """
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
    engines: dict[str, Engine], limits: Limits, keys: ApiKeys, started: Callable[[], None] = lambda: None
) -> Server:
    """Returns a server of these engines by name, ready to `run` with the sockets it shall listen at."""
    service = Service(engines, limits)
    config = uvicorn.Config(
        create_app(service, keys),
        http=make_connection_class(service, OverloadResponder(service, keys)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        backlog=_ACCEPTED_AT_ONCE,
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
    keys: ApiKeys | None = None,
    insecure: bool = False,
    started: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves models until a signal ends it.

    Args:
        engines: What runs each model, by the name requests ask for; the first answers requests that name none.
        host: The address to listen at.
        port: The port to listen at; 0 takes a free one.
        limits: Limits on requests and on the server, `Limits()` by default.
        keys: The keys that requests must carry; by default none is asked for.
        insecure: Whether to listen beyond this machine without keys.
        started: Called with the server's URL once it listens.
    """
    listener = open_listener(host, port, open_to_all=insecure or bool(keys and keys.digests))
    bound = listener.getsockname()
    name = f"[{bound[0]}]" if listener.family == socket.AF_INET6 else bound[0]
    server = make_server(engines, limits or Limits(), keys or ApiKeys(()), lambda: started(f"http://{name}:{bound[1]}"))
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        sys.setswitchinterval(before)
