"""Serving HTTP: a socket, its URL, and signals that drain before they end."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from kvevents.errors import TransportError

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that it is the client who closes."""


class HttpServer(uvicorn.Server):
    """Uvicorn with our signals: the first drains, the second ends at once, and neither is raised again.

    Args:
        app: what answers.
        drain_s: seconds that open requests have to end after a signal.
        on_started: called once it listens.
        on_stopping: called at the first signal: what never ends by itself is to be ended.
        protocol: makes a connection, called as uvicorn calls its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        drain_s: int,
        on_started: Callable[[], None],
        on_stopping: Callable[[], None] = lambda: None,
        protocol: Callable[..., asyncio.Protocol] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools" if protocol is None else cast("type[asyncio.Protocol]", protocol),
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=drain_s,
            )
        )
        self._on_started = on_started
        self._on_stopping = on_stopping
        self._unheard: OSError | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets)
        if self._unheard is not None:
            raise self._unheard

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:  # not when the application's own start failed
            try:
                self._on_started()
            except OSError as error:  # whoever waits for the news is gone: end in order, then say so
                self._unheard = error
                asyncio.get_running_loop().call_soon(self._stop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # then it leaves the application's task running, to be cancelled with a traceback
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._on_stopping()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        TransportError: the address is in use, or none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise TransportError(f"http://{host}:{port}: cannot listen there: {reason}") from error


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine reach a listening socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
