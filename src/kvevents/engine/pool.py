"""Slots of one component of a cache, as the engine counts them."""

from collections.abc import Mapping
from typing import Any, Protocol

from kvevents.caches import Sizes


class CacheEnd(Protocol):
    """Where a prompt ends in the tree, as an insert tells."""

    @property
    def node(self) -> Any: ...


class CacheMatch(CacheEnd, Protocol):
    """What of a prompt can be reused, as a match tells."""

    @property
    def length(self) -> int: ...
    @property
    def branch(self) -> int: ...


class SlotCount(Protocol):
    """How many slots a component has."""

    @property
    def capacity(self) -> int: ...


class PrefixCache(Protocol):
    """What the engine needs of a cache; every cache of `kvevents.caches` on a tree has it."""

    @property
    def allocators(self) -> Mapping[str, SlotCount]: ...
    def sizes(self, component: str, /) -> Sizes: ...
    def match_prefix(
        self, tokens: "memoryview[int]", /, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> CacheMatch: ...
    def insert(
        self,
        tokens: "memoryview[int]",
        /,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,
        inserted_length: int = 0,
        window_start: int = 0,
    ) -> CacheEnd: ...
    def evict(self, num_tokens: int = 0, /, *, window_tokens: int = 0, states: int = 0) -> object: ...
    def lock(self, node: Any, /) -> object: ...
    def unlock(self, node: Any, /) -> object: ...


class Pool:
    """Room for one component, shared by the tree and the requests that run.

        |  tree: locked  |  tree: evictable  |  private to requests  |  free  |

    The tree takes slots for what is inserted when it is inserted, so a request's own are only counted here. Not
    thread-safe.

    Args:
        cache: the prefix cache.
        component: `full`, `sliding_window` (both in tokens) or `mamba` (in states).

    Attributes:
        capacity: slots there are.
        private: slots that requests hold beside the tree.
    """

    def __init__(self, cache: PrefixCache, component: str) -> None:
        self.private = 0
        self._cache = cache
        self._component = component
        self.capacity = cache.allocators[component].capacity

    @property
    def free(self) -> int:
        """Slots that nobody holds; less than 0 between an insert and the `make_room` after it."""
        return self.capacity - self._cache.sizes(self._component).total - self.private

    @property
    def available(self) -> int:
        """Slots that can be had, by eviction if need be."""
        return self.free + self._cache.sizes(self._component).evictable

    def make_room(self, count: int) -> None:
        """Evict until `count` are free; as many have to be available."""
        short = count - self.free
        if short > 0:
            full, window, state = (short if self._component == name else 0 for name in _COMPONENTS)
            self._cache.evict(full, window_tokens=window, states=state)

    def take(self, count: int) -> None:
        """A request has `count` more; as many have to be available."""
        self.make_room(count)
        self.private += count


_COMPONENTS = ("full", "sliding_window", "mamba")
