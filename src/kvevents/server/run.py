"""The router as a process."""

import contextlib
import gc
import math
import resource
from collections.abc import Callable

import uvloop

from kvevents.engine.listening import HttpServer, listen, url_of
from kvevents.errors import TransportError
from kvevents.server.app import create_app
from kvevents.server.configuration import Settings


def run_router(settings: Settings, *, announce: Callable[[dict[str, object]], None]) -> None:
    """Serve until SIGINT or SIGTERM, then let open requests end; blocks.

    Args:
        settings: of the service.
        announce: called with the `url` once it listens and has asked its workers once.

    Raises:
        ConfigError: the address is not loopback and a token is missing, or the policy is unknown.
        TransportError: the address cannot be bound, or the router did not start.
    """
    settings.security.check_binding(settings.listen)
    app = create_app(settings)
    _allow_connections()
    with listen(settings.listen.host, settings.listen.port) as listener:

        def on_started() -> None:
            # What is there now stays: a collection that looks through all of it holds every stream up for 50 ms.
            gc.collect()
            gc.freeze()
            announce({"url": url_of(listener)})

        server = HttpServer(
            app,
            drain_s=math.ceil(settings.listen.drain_s),
            on_started=on_started,
            on_stopping=app.state.watch.close,
            protocol=app.state.service.proxy.connect,
        )
        uvloop.run(server.serve(sockets=[listener]))
    if not server.started:
        raise TransportError("the router did not start; its log says why")


def _allow_connections() -> None:
    """Take as many open files as the system allows: a client's connection is one, and its worker's another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # not allowed after all: then it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
