"""What the endpoints share, and its life."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from kvevents.routing import Router
from kvevents.server.access.access import Access
from kvevents.server.configuration import Settings
from kvevents.server.decisions import Decisions
from kvevents.server.fleet import Discover, Fleet, Subscribe
from kvevents.server.history import History
from kvevents.server.ledger import Ledger
from kvevents.server.metrics import Metrics
from kvevents.server.prefixes import Prefixes
from kvevents.server.prompts import PromptReader
from kvevents.server.proxy.proxy import Proxy
from kvevents.server.telemetry.telemetry import Telemetry
from kvevents.server.truth import Truth
from kvevents.transport import Subscriber, discover


class Service:
    """The router as a running thing: access, fleet, books, metrics, proxy.

    Args:
        settings: of the service.
        discover: finds a worker's event sources.
        subscribe: makes what receives from sources into the index.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        discover: Discover = discover,
        subscribe: Subscribe = Subscriber,
    ) -> None:
        self.settings = settings
        self.access = Access(settings)
        self.fleet = Fleet(settings, discover=discover, subscribe=subscribe)
        self.ledger = Ledger()
        self.truth = Truth(self.fleet, self.fleet.router)
        self.ledger.observers.append(self.truth)
        self.fleet.on_left.append(self.truth.forget)  # what comes back under its name is judged anew
        self.history = History(settings.dashboard, time.time)
        self.prefixes = Prefixes(settings.dashboard, self.fleet, self.history)
        self.telemetry = Telemetry(settings.telemetry)
        self.metrics = Metrics(self)
        self.prompts = PromptReader(
            settings.prompts,
            block_size=lambda: self.fleet.index.block_size,
            served=lambda: [worker.models for worker in self.fleet.workers],
            base_of=self.fleet.base_of,
        )
        self.decisions = Decisions(self)
        self.proxy = Proxy(self)

    @property
    def router(self) -> Router:
        """The router over the fleet."""
        return self.fleet.router

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first look at the workers to the end of the last connection."""
        try:
            await self.prompts.start()
            await self.fleet.start()
            self.proxy.start()
            self.metrics.process.start()
            yield
        finally:
            self.metrics.process.stop()
            self.proxy.close()
            await self.prompts.close()
            await self.fleet.close()
            await asyncio.to_thread(self.telemetry.close)
