"""Simulated engines and a router in front of them, as real processes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from kvevents.engine.config import HYBRID_CACHES, CacheName
from kvevents.errors import TransportError
from kvevents.simulation.children import Child

STREAM_INTERVAL = 64
"""Outputs between two chunks of a stream: the first token counts, the others need no message each."""


_KIND_OPTIONS: Mapping[CacheName, Sequence[str]] = MappingProxyType(
    dict.fromkeys(HYBRID_CACHES, ("--announce-groups",)) | {"hierarchical": ("--storage", "memory")}
)
"""What shows more of engines of a kind."""


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet of equal engines.

    Attributes:
        workers: engines.
        dp_size: ranks of each engine.
        cache: the engines' cache, and with it their kind.
        page_size: tokens in a page.
        cache_tokens: KV cache of each rank, in tokens.
        prefill_tokens_per_s: prompt tokens that each rank computes per engine second.
        speed: engine seconds per real second.
        policy: by which the router chooses.
        port: of the router; 0 takes a free one.
    """

    workers: int
    dp_size: int = 1
    cache: CacheName = "radix"
    page_size: int = 64
    cache_tokens: int
    prefill_tokens_per_s: float
    speed: float
    policy: str
    port: int = 0


class Fleet:
    """The running processes. Ends with the `async with` of `running_fleet`.

    Attributes:
        engines: by their base URL.
        router: the process of `kvevents serve`.
    """

    def __init__(self, engines: dict[str, Child], router: Child) -> None:
        self.engines = engines
        self.router = router

    @property
    def lost(self) -> list[Child]:
        """Engines that have ended by themselves."""
        return [engine for engine in self.engines.values() if not engine.is_running]

    def check_router(self) -> None:
        """Make sure that the router is there.

        Raises:
            TransportError: it has ended; with its last words.
        """
        if not self.router.is_running:
            raise TransportError(self.router.obituary())


@contextlib.asynccontextmanager
async def running_fleet(settings: FleetSettings) -> AsyncIterator[Fleet]:
    """Start a fleet, and end every process of it on the way out, whatever the reason.

    Raises:
        TransportError: a process could not be started or did not become ready.
    """
    children: list[Child] = []
    try:
        engines = await _start_all(
            children, [(f"engine {n}", _engine_arguments(settings)) for n in range(settings.workers)]
        )
        urls = [engine.url for engine in engines]
        (router,) = await _start_all(children, [("router", _router_arguments(settings, urls))])
        yield Fleet(dict(zip(urls, engines, strict=True)), router)
    finally:
        await asyncio.gather(*(child.stop() for child in children))


async def _start_all(children: list[Child], commands: list[tuple[str, list[str]]]) -> list[Child]:
    """Start processes side by side; each is in `children` as soon as it runs, whatever becomes of the others."""

    async def start(name: str, words: list[str]) -> Child:
        child = await Child.start(name, words)
        children.append(child)
        return child

    started = await asyncio.gather(*(start(name, words) for name, words in commands), return_exceptions=True)
    for failure in started:
        if isinstance(failure, BaseException):
            raise failure
    return [child for child in started if isinstance(child, Child)]


def _engine_arguments(settings: FleetSettings) -> list[str]:
    events = {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0"}
    options: dict[str, object] = {
        "port": 0,
        "dp-size": settings.dp_size,
        "cache": settings.cache,
        "page-size": settings.page_size,
        "max-total-tokens": settings.cache_tokens,
        "prefill-tokens-per-second": settings.prefill_tokens_per_s,
        "stream-interval": STREAM_INTERVAL,
        "speed": settings.speed,
        "kv-events-config": msgspec.json.encode(events).decode(),
    }
    return ["engine", *_words(options), *_KIND_OPTIONS.get(settings.cache, ())]


def _router_arguments(settings: FleetSettings, engines: list[str]) -> list[str]:
    options = {"port": settings.port, "policy": settings.policy}
    return ["serve", *_words(options), *(word for url in engines for word in ("--worker", url))]


def _words(options: dict[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]
