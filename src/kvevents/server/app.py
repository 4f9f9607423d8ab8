"""The application: every path and what serves it."""

import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from kvevents.errors import KVEventsError
from kvevents.server.access import AccessMiddleware
from kvevents.server.configuration import Settings
from kvevents.server.control import Control
from kvevents.server.endpoints import ANY_METHOD, endpoints, not_here
from kvevents.server.errors import HttpError, respond
from kvevents.server.fleet import Discover, Subscribe
from kvevents.server.service import Service
from kvevents.server.watch import Watch
from kvevents.transport import Subscriber, discover


def create_app(
    settings: Settings,
    *,
    discover: Discover = discover,
    subscribe: Subscribe = Subscriber,
) -> Starlette:
    """The router's control endpoints as an ASGI application. Its lifespan finds the workers and receives their events.

    The paths that are passed on to workers are none of it: `app.state.service.proxy.connect` makes the connections
    that answer both, see `kvevents.server.run`.

    Args:
        settings: of the service.
        discover: finds a worker's event sources; `kvevents.transport.discover`.
        subscribe: makes what receives from sources into the index; `kvevents.transport.Subscriber`.

    Raises:
        ConfigError: an unknown policy.
    """
    service = Service(settings, discover=discover, subscribe=subscribe)
    control = Control(service)
    watch = Watch(service)
    table = endpoints(service, control, watch)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with service.running(), watch.running():
            yield

    errors: tuple[type[Exception], ...] = (HttpError, KVEventsError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(
        routes=[
            *(one.route if one.handler is not None else Route(one.path, not_here, methods=ANY_METHOD) for one in table),
        ],
        middleware=[Middleware(AccessMiddleware, access=service.access)],
        exception_handlers=dict.fromkeys(errors, respond),
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.watch = watch
    return app
