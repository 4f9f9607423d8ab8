"""The endpoints for whoever runs the router: workers, policy, figures."""

import asyncio
import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvevents.routing import make_policy
from kvevents.server.body import read_body
from kvevents.server.configuration import WorkerSettings
from kvevents.server.configuration.reader import Reader
from kvevents.server.errors import HttpError
from kvevents.server.fleet.http import ROUTER_HEADER, routers_before
from kvevents.server.metrics import CONTENT_TYPE
from kvevents.server.service import Service
from kvevents.server.stats import Statistics

_encode = msgspec.json.Encoder().encode


class SetPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /policy`."""

    policy: str


class Control:
    """One method per endpoint: read, one call, answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._statistics = Statistics(service)

    async def workers(self, _request: Request) -> Response:
        """`GET /workers`: every worker, its load and the state of its events."""
        return _json({"workers": self._statistics.workers()})

    async def add_worker(self, request: Request) -> Response:
        """`POST /workers` with the keys of a `[[worker]]`: take in a worker; it is asked before the answer is given."""
        worker = await self._service.fleet.add(self._described(await self._body(request)))
        return _json(self._statistics.worker(worker), status=201)

    async def remove_worker(self, request: Request) -> Response:
        """`DELETE /workers/{id}`: send it no more requests and forget it; those it works on go on.

        With `?drain` it is forgotten once those have ended, with `?drain=60` after 60 seconds at the latest.
        """
        worker_id = request.path_params["worker_id"]
        fleet = self._service.fleet
        asked = request.query_params.get("drain")
        if asked is None:
            if not await fleet.remove(worker_id):
                raise _no_such(worker_id)
            return Response(status_code=204)
        worker = fleet.drain(worker_id, patience_s=_seconds(asked))
        if worker is None:
            raise _no_such(worker_id)
        return _json(self._statistics.worker(worker), status=202)

    async def holdings(self, request: Request) -> Response:
        """`GET /holdings/{id}`: the blocks that the index believes a worker holds, in the form of the engine's own."""
        worker_id = request.path_params["worker_id"]
        index = self._service.fleet.index
        if worker_id not in self._service.fleet:
            raise _no_such(worker_id)
        last = {source.dp_rank: source.last_seq for source in index.stats().sources if source.worker == worker_id}
        ranks = [
            {"dp_rank": rank or 0, "seq": last.get(rank), "tiers": tiers}
            for rank, tiers in index.holdings(worker_id).items()
        ]
        return _json({"ranks": ranks})

    async def snapshot(self, _request: Request) -> Response:
        """`GET /snapshot`: the whole index as `PrefixIndex.restore` takes it; without tokens, salts or adapters."""
        data = await asyncio.to_thread(self._service.fleet.index.snapshot)
        return Response(data, media_type="application/octet-stream")

    async def set_policy(self, request: Request) -> Response:
        """`POST /policy` with `{policy}`: change how workers are chosen; open requests keep counting."""
        asked = _decode(await self._body(request), SetPolicy)
        self._service.router.policy = make_policy(asked.policy)
        return _json({"policy": asked.policy})

    async def metrics(self, _request: Request) -> Response:
        """`GET /metrics`: Prometheus' text format."""
        return Response(await self._service.metrics.render(), media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        """`GET /health`: the router runs; 508 to a probe of its own, which a router that is its own worker gets."""
        routers_before(request.headers.get(ROUTER_HEADER), self._service.fleet.name)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /ready`: some worker takes requests, and no picture of a worker is still being built.

        What it waits for is told to whoever runs the router; others are told how much there is of it.
        """
        readiness = self._service.fleet.readiness()
        is_ready = readiness.is_ready and not self._service.proxy.is_draining
        said: dict[str, Any] = {"status": "ready" if is_ready else "not ready"}
        for name, value in msgspec.structs.asdict(readiness).items():
            if name != "is_ready":
                said[name] = len(value) if isinstance(value, list) and not request.scope["is_admin"] else value
        return _json(said, status=200 if is_ready else 503)

    def _described(self, body: bytes) -> WorkerSettings:
        """The worker that a body describes."""
        reader = Reader(source="body", origins={})
        described = reader.read(WorkerSettings, _decode(body, dict[str, Any]))
        if described is None:
            raise HttpError(400, "bad_request", "; ".join(reader.problems))
        return described

    async def _body(self, request: Request) -> bytes:
        return await read_body(request.scope, request.receive, limit=self._service.settings.proxy.max_body_bytes)


def _seconds(text: str) -> float | None:
    """How long to wait; None: as long as it takes."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise HttpError(400, "bad_request", f"drain: expected a number of seconds, got {text!r}")
    return seconds


def _no_such(worker_id: str) -> HttpError:
    return HttpError(404, "no_such_worker", f"worker {worker_id!r} is not known; GET /workers lists them")


def _decode(body: bytes, form: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "bad_request", f"body: {error}") from None


def _json(value: object, *, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")
