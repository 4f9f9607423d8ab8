"""What the caches themselves hold: the knowledge that events can at best give, and sooner."""

from collections.abc import Mapping
from typing import Any, Protocol

from kvevents.caches import CachedLength
from kvevents.index import WorkerMatch


class Cache(Protocol):
    """A cache that says what it has of a prompt."""

    def cached_length(self, tokens: Any, /) -> CachedLength: ...


class CacheView:
    """Matches prompts against the caches themselves, at the moment of asking; a router takes it for an index.

    It changes nothing in the caches. Salts and adapters are none of it.

    Args:
        caches: by worker.
        block_size: tokens in a page.
    """

    def __init__(self, caches: Mapping[str, Cache], block_size: int) -> None:
        self._caches = caches
        self._block_size = block_size

    @property
    def block_size(self) -> int:
        """Tokens in a page."""
        return self._block_size

    def match(self, tokens: Any, **_: Any) -> list[WorkerMatch]:
        """How much of a prompt each worker holds, best first; of lower tiers what is not on the device."""
        found = []
        for worker, cache in self._caches.items():
            device, total = (tokens_held // self._block_size for tokens_held in cache.cached_length(tokens))
            if total:
                tiers = {"GPU": device, "CPU_PINNED": total - device, "DISK": 0, "EXTERNAL": 0}
                found.append(WorkerMatch(worker, 0, total, tiers, tiers, total, "live"))
        return sorted(found, key=lambda match: (-match.usable, match.worker))

    def most_cached(self, tokens: Any) -> int:
        """Prompt tokens that the best worker would find cached now; the last token is always computed."""
        whole = (len(tokens) - 1) // self._block_size * self._block_size
        return min(whole, max(cache.cached_length(tokens).total for cache in self._caches.values()))
