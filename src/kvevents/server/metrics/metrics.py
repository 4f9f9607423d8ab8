"""`GET /metrics`: all of it, a part at a time."""

import asyncio
from typing import TYPE_CHECKING

from kvevents.server.live import StreamCounters
from kvevents.server.metrics import access, index, prompts, proxy, sources, stream, truth, workers
from kvevents.server.metrics.cached import CachedTokens
from kvevents.server.metrics.process import Process
from kvevents.server.metrics.requests import Requests

if TYPE_CHECKING:
    from kvevents.server.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Reads what other parts count where they keep it, and keeps what nobody else does. One per service.

    Attributes:
        requests: times and outcomes of requests; told by the proxy.
        stream: what became of the readers of /stream; whoever serves it puts its own counters here.
        process: how late the event loop is.
    """

    def __init__(self, service: "Service") -> None:
        self._service = service
        self.requests = Requests(service.fleet)
        self.process = Process()
        self.stream = StreamCounters()
        self._cached = CachedTokens()
        service.ledger.observers.append(self._cached)

    async def render(self) -> bytes:
        """Everything in Prometheus' text format. Requests go on between two families."""
        lines: list[str] = []
        for render in (
            self.requests.render,
            proxy.render,
            prompts.render,
            self._cached.render,
            truth.render,
            workers.render,
            sources.render,
            index.render,
            access.render,
            lambda _: stream.render(self.stream),
            self.process.render,
        ):
            for family in render(self._service):
                lines.append(family)
                await asyncio.sleep(0)
        return "".join(lines).encode()
