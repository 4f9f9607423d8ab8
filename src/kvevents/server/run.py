"""The router as a process."""

import math
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
    with listen(settings.listen.host, settings.listen.port) as listener:
        server = HttpServer(
            app,
            drain_s=math.ceil(settings.listen.drain_s),
            on_started=lambda: announce({"url": url_of(listener)}),
            on_stopping=app.state.watch.close,
            protocol=app.state.service.proxy.connect,
        )
        uvloop.run(server.serve(sockets=[listener]))
    if not server.started:
        raise TransportError("the router did not start; its log says why")
