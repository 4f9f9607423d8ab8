"""Keeps an eye on the router: once a second it takes down how the figures went and tells whoever reads the stream."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvevents.server.chronicle import Chronicle
from kvevents.server.dashboard.page import ROUTES
from kvevents.server.history import SUMS
from kvevents.server.journal import Journal
from kvevents.server.live import Live
from kvevents.server.service import Service
from kvevents.server.stats import Statistics, hit_rates

_log = logging.getLogger("kvevents.server")

RECENT_S = 60
"""Seconds that the figures called recent are about."""


MOST_OF_THE_LOOP = 0.05
"""Share of its loop's time that it may take: in a fleet of thousands it looks less often."""


class Watch:
    """The endpoints `/stats` and `/stream`, and what they are made from.

    Args:
        service: what is watched.
    """

    def __init__(self, service: Service) -> None:
        settings = service.settings.dashboard
        self._service = service
        self._settings = settings
        self._statistics = Statistics(service)
        self._history = service.history
        self._journal = Journal(settings, self._history)
        self._chronicle = Chronicle(settings)
        self._live = Live(settings, self._snapshot)
        self._received: dict[tuple[str, int | None], tuple[int, int, int]] = {}
        self._applied: dict[tuple[str, int | None], int] = {}
        self._told_at = time.time()
        service.ledger.observers.append(self._journal)
        service.metrics.stream = self._live.counters

    @property
    def routes(self) -> list[Route]:
        """What it serves."""
        return [
            Route("/stats", self.stats),
            Route("/stream", _Asgi(self.stream)),
            Route("/prefixes", self._service.prefixes.prefixes),
            *ROUTES,
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look once a tick, until the end."""
        ticking = asyncio.create_task(self._tick_on())
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.wait({ticking})
            self._live.close()

    def close(self) -> None:
        """Let the readers of the stream go: the router is going down."""
        self._live.close()

    async def stats(self, request: Request) -> Response:
        """`GET /stats`: every figure in one document; with `?history=1` also how they went, and the log."""
        document = self._document()
        if request.query_params.get("history") == "1":
            document["history"] = self._history.document()
            document["log"] = self._chronicle.entries
        return Response(msgspec.json.encode(document), media_type="application/json")

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`GET /stream`: see `kvevents.server.live`."""
        await self._live.serve(scope, receive, send, self._tell)

    def _document(self) -> dict[str, Any]:
        recent = self._history.recent(RECENT_S)
        latencies = self._history.recent_latencies(RECENT_S)
        return {
            **self._statistics.document(),
            "recent": {
                "seconds": RECENT_S,
                **{name: recent[name] for name in SUMS},
                **hit_rates(recent),
                **{f"latency_p{percent}_s": latencies.percentile(percent / 100) for percent in (50, 95, 99)},
            },
            "decisions_taken": self._journal.taken,
            "prefixes": self._service.prefixes.figures(),
            "stream": self._live.counters,
        }

    def _snapshot(self, document: dict[str, Any]) -> dict[str, Any]:
        return {
            "stats": document,
            "history": self._history.document(),
            "decisions": self._journal.recent,
            "log": self._chronicle.entries,
        }

    async def _tick_on(self) -> None:
        loop = asyncio.get_running_loop()
        took = 0.0
        while True:
            await asyncio.sleep(max(self._settings.tick_s, took / MOST_OF_THE_LOOP))
            started = loop.time()
            try:
                self._tick(started)
            except Exception:
                _log.exception("a look at the figures failed; the next one follows")
            took = loop.time() - started

    def _tick(self, now: float) -> None:
        fleet = self._service.fleet
        workers = fleet.workers
        states = {(one.id, rank): state for one in workers for rank, state in fleet.source_states(one).items()}
        self._chronicle.look({one.id: (one.up, one.reason) for one in workers}, states)
        self._count_events({key: state.counters.applied for key, state in states.items()})
        self._live.let_go_of_stalled(now)
        if self._live.has_readers:
            self._tell()

    def _tell(self) -> None:
        """Send what is new since somebody was told last."""
        live = self._live
        document: dict[str, Any] = msgspec.to_builtins(self._document())
        live.tell_document(document)
        rows = self._history.rows_since(self._told_at)
        if rows:
            live.tell("history", {"rows": rows})
            self._told_at = rows[-1][0] or 0.0
        decisions = self._journal.take_changed()
        if decisions:
            live.tell("decisions", {"taken": self._journal.taken, "shown": decisions})
        entries = self._chronicle.take_new()
        if entries:
            live.tell("log", {"entries": entries})

    def _count_events(self, applied: dict[tuple[str, int | None], int]) -> None:
        """Add to the history what the index and the sources counted since the last look."""
        sources = self._service.fleet.index.stats().sources
        received = {(one.worker, one.dp_rank): (one.events, one.stored, one.removed) for one in sources}
        for key, counts in received.items():
            before = self._received.get(key, (0, 0, 0))
            if any(new < old for new, old in zip(counts, before, strict=True)):
                before = (0, 0, 0)  # it was added anew
            for name, new, old in zip(("events", "blocks_stored", "blocks_removed"), counts, before, strict=True):
                self._history.add(name, new - old)
        for key, count in applied.items():
            before_count = self._applied.get(key, 0)
            self._history.add("batches", count - before_count if count >= before_count else count)
        self._received, self._applied = received, applied


class _Asgi:
    """An ASGI application made of a method: Starlette takes a bare method for a request handler."""

    def __init__(self, serve: Any) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)
