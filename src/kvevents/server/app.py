"""The application: every path and what serves it."""

import contextlib
from collections.abc import AsyncIterator

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from kvevents.errors import KVEventsError
from kvevents.server.access import AccessMiddleware
from kvevents.server.access.access import LOGIN, LOGOUT
from kvevents.server.access.middleware import Login
from kvevents.server.configuration import Settings
from kvevents.server.control import Control
from kvevents.server.decisions import Decisions
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
    decisions = Decisions(service)
    watch = Watch(service)
    login = Login(service.access)

    async def models(_request: Request) -> Response:
        served = await service.fleet.models()
        return Response(msgspec.json.encode({"object": "list", "data": served}), media_type="application/json")

    async def not_here(_request: Request) -> Response:
        raise HTTPException(405, "POST only", {"allow": "POST"})  # and POST goes to a worker: see `Proxy`

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with service.running(), watch.running():
            yield

    errors: tuple[type[Exception], ...] = (HttpError, KVEventsError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(
        routes=[
            *(Route(path, not_here) for path in settings.proxy.paths),
            Route("/v1/models", models),
            Route("/route", decisions.route, methods=["POST"]),
            Route("/query", decisions.query, methods=["POST"]),
            Route("/workers", control.workers),
            Route("/workers", control.add_worker, methods=["POST"]),
            Route("/workers/{worker_id:path}", control.remove_worker, methods=["DELETE"]),
            Route("/holdings/{worker_id:path}", control.holdings),
            Route("/snapshot", control.snapshot),
            Route("/policy", control.set_policy, methods=["POST"]),
            *watch.routes,
            Route(LOGIN, login.login, methods=["POST"]),
            Route(LOGOUT, login.logout, methods=["POST"]),
            Route("/metrics", control.metrics),
            Route("/health", control.health),
            Route("/ready", control.ready),
        ],
        middleware=[Middleware(AccessMiddleware, access=service.access)],
        exception_handlers=dict.fromkeys(errors, respond),
        lifespan=lifespan,
    )
    app.state.service = service
    return app
