"""Small prompts and caches for the tests of `RadixCache`."""

from kvevents.caches import EvictionPolicy, RadixCache
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent

A, B, C, D, X = ([10 * page + unit for unit in range(4)] for page in range(1, 6))
"""Pages of four tokens."""


def radix(capacity: int = 64, *, eviction_policy: str | EvictionPolicy = "lru", bigram: bool = False) -> RadixCache:
    """A cache with pages of four, its first event taken."""
    cache = RadixCache(page_size=4, capacity=capacity, eviction_policy=eviction_policy, bigram=bigram)
    cache.take_events()
    return cache


def stores(events: list[KVCacheEvent]) -> list[BlockStored]:
    assert all(isinstance(event, BlockStored) for event in events), events
    return [event for event in events if isinstance(event, BlockStored)]


def removals(events: list[KVCacheEvent]) -> list[BlockRemoved]:
    assert all(isinstance(event, BlockRemoved) for event in events), events
    return [event for event in events if isinstance(event, BlockRemoved)]
