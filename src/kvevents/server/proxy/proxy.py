"""The data plane as a whole: what its connections and exchanges share."""

import asyncio
import secrets
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import ASGIApp

from kvevents.routing import Decision
from kvevents.server.access.access import Access, Asked
from kvevents.server.errors import HttpError
from kvevents.server.prompts import Prompt
from kvevents.server.proxy.admission import Admission
from kvevents.server.proxy.bridge import ApplicationCall
from kvevents.server.proxy.connection import Answer, ClientConnection
from kvevents.server.proxy.counters import Counters
from kvevents.server.proxy.deadlines import Deadlines
from kvevents.server.proxy.direct import DirectAnswer
from kvevents.server.proxy.exchange import Exchange
from kvevents.server.proxy.heads import RequestHead, read_request_head
from kvevents.server.proxy.pool import Pool
from kvevents.server.proxy.request import Request

if TYPE_CHECKING:
    from kvevents.server.service import Service

_EXPIRY_S = 1.0


class ServerState(Protocol):
    """What the proxy uses of `uvicorn.server.ServerState`."""

    connections: set[Any]
    tasks: set["asyncio.Task[None]"]
    default_headers: list[tuple[bytes, bytes]]


class Proxy:
    """Makes connections, and keeps what they share. Lives on one event loop.

    The process is uvicorn's (sockets, lifespan, signals, the wait for open connections); the connections are ours. It
    takes `connect` as its HTTP protocol, and the application as what answers everything but the proxy's paths.

    Attributes:
        counters: sums since the start.
        admission: who is in flight where, and who waits.
        pool: connections to the workers.
        is_draining: whether the process is about to end.
    """

    def __init__(self, service: "Service") -> None:
        self.service = service
        self.settings = service.settings.proxy
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.pool = Pool(self.settings)
        self.admission = Admission(self._limit, max_waiting=self.settings.max_waiting)
        self.is_draining = False
        self._paths = frozenset(self.settings.paths)
        self._refuses_unknown = self.settings.unknown_models == "refuse"
        self._connections: set[ClientConnection] = set()
        self._buffered_bytes = 0
        self._name = secrets.token_hex(8).encode()
        self._numbers = 0
        self._state: ServerState | None = None
        self._app: ASGIApp | None = None
        self._app_state: dict[str, Any] = {}
        self._expiry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to keep time."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.deadlines.start()
        self._expire()

    def close(self) -> None:
        """End whatever is still open."""
        for connection in list(self._connections):
            connection.cut()
        self.pool.close()
        self.deadlines.stop()
        if self._expiry is not None:
            self._expiry.cancel()

    def connect(self, config: Any, server_state: ServerState, app_state: dict[str, Any], **_: Any) -> ClientConnection:
        """A connection, for uvicorn's `Config(http=...)`."""
        self._state, self._app, self._app_state = server_state, config.loaded_app, app_state
        return ClientConnection(self)

    def gauges(self) -> dict[str, int]:
        """What is the case now: connections, requests and bytes."""
        return {
            "connections": len(self._connections),
            "waiting": self.admission.waiting,
            "in_flight": sum(self.admission.in_flight.values()),
            "buffered_bytes": self._buffered_bytes,
            "idle_upstream_connections": self.pool.idle,
        }

    # What connections ask.

    def welcome(self, connection: ClientConnection) -> bool:
        """Take in a connection; False when there are too many."""
        self._connections.add(connection)
        if self._state is not None:
            self._state.connections.add(connection)
        self.deadlines.watch(connection)
        if len(self._connections) > self.settings.max_connections:
            self.counters.refused_connections += 1
            return False
        self.counters.connections += 1
        return True

    def farewell(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        if self._state is not None:
            self._state.connections.discard(connection)
        self.deadlines.forget(connection)

    def admit_head(self, request: Request, peer: str) -> None:
        """Look at a request's head, before its body is read.

        Args:
            request: without its body.
            peer: the address that it comes from.

        Raises:
            HttpError: it will not be answered as asked.
        """
        request.head = head = read_request_head(request.headers, is_http_1_0=request.is_http_1_0)
        if self.is_proxied(request):
            self.counters.accepted += 1
            self.service.access.admit_client(request.method.decode(), head.authorization, request.headers, peer)
            if self._name in head.hops:
                self.counters.loops += 1
                raise HttpError(508, "loop", "this request has passed this router before: one of its workers is itself")
        elif self._is_direct(request):
            self.service.access.admit_admin(asked_of(self.service.access, request, peer))
        if head.length is not None and head.length > self.settings.max_body_bytes:
            raise self._too_large()

    def admit_body(self, request: Request, size: int) -> None:
        """Take note of a piece of a body.

        Raises:
            HttpError: it is too much.
        """
        request.size += size
        self._buffered_bytes += size
        if request.size > self.settings.max_body_bytes:
            raise self._too_large()
        if self._buffered_bytes > self.settings.max_buffered_bytes:
            raise HttpError(503, "out_of_memory", "the router holds too many large requests", retry_after_s=1)

    def release(self, request: Request) -> None:
        """A request's body is not needed any more."""
        self._buffered_bytes -= request.size
        request.size = 0

    def is_proxied(self, request: Request) -> bool:
        """Whether a worker answers it."""
        return request.method == b"POST" and request.path in self._paths

    def _is_direct(self, request: Request) -> bool:
        """Whether the router answers it itself, and without the framework."""
        return request.method == b"POST" and request.path in self.service.decisions.handlers

    def answer(self, client: ClientConnection, request: Request) -> Answer:
        """What answers a request."""
        if self.is_proxied(request):
            return Exchange(self, client, request)
        if self._is_direct(request):
            return DirectAnswer(self, client, request, self.service.decisions.handlers[request.path])
        assert self._app is not None, "uvicorn makes connections with its application"
        return ApplicationCall(self, client, request, self._app)

    def date(self) -> list[tuple[bytes, bytes]]:
        """Headers of every reply of our own."""
        return [] if self._state is None else self._state.default_headers

    # What exchanges ask.

    def new_request_id(self) -> bytes:
        """An id that no other request has."""
        self._numbers += 1
        return b"%b-%x" % (self._name, self._numbers)

    def hops(self, head: RequestHead) -> bytes:
        """The routers that a request has passed when it leaves this one."""
        return b"%b, %b" % (head.hops, self._name) if head.hops else self._name

    def admit_waiting(self) -> None:
        """Let those who wait try again: a worker may have come up, or take more than before."""
        self.admission.refresh([worker for worker, is_up in self.service.router.workers.items() if is_up])

    def read_prompt(self, request: Request) -> Prompt:
        """What routing needs of a request.

        Raises:
            HttpError: no engine could take it.
        """
        assert request.head is not None, "only a request whose head was admitted is answered"
        if request.head.content_type.startswith(b"multipart/"):
            return Prompt(tokens=b"", unread="a form, not JSON")
        return self.service.prompts.read(request.body, request.path)

    async def tokenize(self, prompt: Prompt) -> Prompt:
        """The prompt with its tokens."""
        return await self.service.prompts.tokenize(prompt)

    def unfit(self, model: str | None) -> Collection[str]:
        """Workers that do not serve a model.

        Raises:
            HttpError: 404, no worker serves it.
        """
        fleet = self.service.fleet
        unfit = fleet.unfit(model)
        if not unfit and model is not None and self._refuses_unknown and not self._may_be_served(model):
            served = sorted(set().union(*(worker.models for worker in fleet.workers)))
            raise HttpError(404, "model_not_found", f"model {model!r} is served by no worker: there are {served}")
        return unfit

    def choose(self, prompt: Prompt, exclude: Mapping[str, str]) -> Decision:
        """A worker for a prompt.

        Raises:
            NoWorkerError: none is left.
        """
        started = self.now()
        decision = self.service.router.select(
            prompt.tokens,
            lora_name=prompt.lora_name,
            cache_salt=prompt.cache_salt,
            extra_keys=prompt.extra_keys,
            exclude=exclude,
            session=prompt.session,
            output_tokens=prompt.max_tokens,
            approximate=prompt.approximate,
        )
        self.service.metrics.requests.select_seconds.observe(self.now() - started)
        return decision

    # What calls of the application ask.

    def application_state(self) -> dict[str, Any]:
        """A copy of the lifespan's state, as ASGI has it."""
        return self._app_state.copy()

    def hold(self, task: "asyncio.Task[None]") -> None:
        """Keep a task alive, and let the server wait for it."""
        tasks: set[asyncio.Task[None]] = set() if self._state is None else self._state.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _may_be_served(self, model: str) -> bool:
        """Whether a worker serves a model or does not say, or none is there. `base:adapter` is SGLang's form."""
        base = model.partition(":")[0]
        served = [worker.models for worker in self.service.fleet.workers]
        return (
            not served
            or model in self.service.settings.prompts.adapters
            or any(model in models or base in models or not models for models in served)
        )

    def _limit(self, worker: str) -> int | None:
        try:
            return self.service.fleet[worker].max_in_flight
        except KeyError:  # it has left
            return None

    def _too_large(self) -> HttpError:
        return HttpError(
            413, "body_too_large", f"expected a body of at most {self.settings.max_body_bytes} bytes, got more"
        )

    def _expire(self) -> None:
        self.pool.expire()
        self.admit_waiting()
        self._expiry = self._loop.call_later(_EXPIRY_S, self._expire)


def asked_of(access: Access, request: Request, peer: str) -> Asked:
    """A request as access sees it."""
    headers: dict[bytes, bytes] = {}
    for given, value in request.headers:
        name = given.lower()
        headers[name] = headers[name] + (b"; " if name == b"cookie" else b",") + value if name in headers else value
    return Asked(request.method.decode("ascii"), request.path, headers, access.peers.address(peer, headers))
