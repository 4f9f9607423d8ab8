"""The router as a process: its socket, its signals, a drain at the end."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvloop
from starlette.types import ASGIApp

from kvevents.errors import TransportError
from kvevents.server.app import create_app
from kvevents.server.settings import Settings, check_binding

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that it is the client who closes."""


def run_router(
    settings: Settings, *, host: str, port: int, drain_s: int, announce: Callable[[dict[str, object]], None]
) -> None:
    """Serve until SIGINT or SIGTERM, then let open requests end; blocks.

    Args:
        settings: of the service.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        drain_s: seconds that open requests have to end after a signal; a second signal ends them at once.
        announce: called with the `url` once it listens and has asked its workers once.

    Raises:
        ConfigError: the address is not loopback and a token is missing, or the policy is unknown.
        TransportError: the address cannot be bound.
    """
    check_binding(host, settings)
    app = create_app(settings)
    with listen(host, port) as listener:
        server = HttpServer(app, drain_s=drain_s, on_started=lambda: announce({"url": url_of(listener)}))
        uvloop.run(server.serve(sockets=[listener]))


class HttpServer(uvicorn.Server):
    """Uvicorn with our signals: the first drains, the second ends at once, and neither is raised again."""

    def __init__(self, app: ASGIApp, *, drain_s: int, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

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


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        TransportError: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = error.strerror or error
        raise TransportError(
            f"cannot listen on {host} port {port}: {why}; choose another --port, or 0 for a free one"
        ) from error


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine reach a listening socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
