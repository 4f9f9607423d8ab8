"""The router as a process."""

from collections.abc import Callable

import uvloop

from kvevents.engine.listening import HttpServer, listen, url_of
from kvevents.errors import TransportError
from kvevents.server.app import create_app
from kvevents.server.settings import Settings, check_binding


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
        TransportError: the address cannot be bound, or the router did not start.
    """
    check_binding(host, settings)
    app = create_app(settings)
    with listen(host, port) as listener:
        server = HttpServer(app, drain_s=drain_s, on_started=lambda: announce({"url": url_of(listener)}))
        uvloop.run(server.serve(sockets=[listener]))
    if not server.started:
        raise TransportError("the router did not start; its log says why")
