"""The engine as a process: sockets, signals, a short drain at the end."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop

from kvevents.engine.app import create_app
from kvevents.engine.config import EngineConfig
from kvevents.engine.engine import Engine
from kvevents.engine.publishing import EventSockets
from kvevents.errors import TransportError

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that it is the client who closes."""


def run_engine(config: EngineConfig, *, announce: Callable[[dict[str, object]], None]) -> None:
    """Serve until SIGINT or SIGTERM; blocks.

    Args:
        config: the engine's settings.
        announce: called once it listens, with its `url` and its `kv_events` as in `/server_info`.

    Raises:
        TransportError: an address that cannot be bound.
        ConfigError: an endpoint that cannot be read.
    """
    uvloop.run(_serve(config, announce))


async def _serve(config: EngineConfig, announce: Callable[[dict[str, object]], None]) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(config.host, config.port))
        sockets = None
        if config.kv_events is not None and config.kv_events.is_on:
            sockets = stack.enter_context(EventSockets(config.kv_events, dp_size=config.dp_size))
        async with Engine(config, sockets=sockets) as engine:
            server = _Server(create_app(engine), drain_s=config.drain_s)
            server.on_started = lambda: announce({"url": _url(listener), "kv_events": engine.describe()["kv_events"]})
            await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Uvicorn with our signals: the first drains, the second ends at once, and neither is raised again."""

    def __init__(self, app: Any, *, drain_s: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=drain_s,
            )
        )
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()

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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise TransportError(f"http://{host}:{port}: cannot listen there: {reason}") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
