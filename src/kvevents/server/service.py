"""What the endpoints share, and its life."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from kvevents.routing import Router
from kvevents.server.configuration import Settings
from kvevents.server.fleet import Discover, Fleet, Subscribe
from kvevents.server.ledger import Ledger
from kvevents.server.metrics import Metrics
from kvevents.server.prompts import PromptReader
from kvevents.server.telemetry.telemetry import Telemetry
from kvevents.transport import Subscriber, discover

KEEP_ALIVE_S = 2.0
"""Less than the 5 s after which engines close an idle connection, so that none is closed as it is used again."""


class Service:
    """The router as a running thing: fleet, books, metrics, and the connections to the workers.

    Args:
        settings: of the service.
        discover: finds a worker's event sources.
        subscribe: makes what receives from sources into the index.
    """

    http: aiohttp.ClientSession

    def __init__(
        self,
        settings: Settings,
        *,
        discover: Discover = discover,
        subscribe: Subscribe = Subscriber,
    ) -> None:
        self.settings = settings
        self.fleet = Fleet(settings, discover=discover, subscribe=subscribe)
        self.ledger = Ledger()
        self.telemetry = Telemetry(settings.telemetry)
        self.metrics = Metrics(self.fleet, self.ledger)
        self.prompts = PromptReader(settings.prompts)

    @property
    def router(self) -> Router:
        """The router over the fleet."""
        return self.fleet.router

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the first look at the workers to the end of the last connection."""
        settings = self.settings
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=settings.proxy.connect_timeout_s, sock_read=settings.proxy.idle_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        ) as self.http:
            await self.fleet.start(self.http)
            watch = asyncio.create_task(self.fleet.watch())
            try:
                yield
            finally:
                watch.cancel()
                await asyncio.wait({watch})
                await self.fleet.close()
                await asyncio.to_thread(self.telemetry.close)
