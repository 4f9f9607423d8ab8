"""Prefix caches: what stays in the KV memory of an engine, announced as events."""

from kvevents.caches.eviction import EvictionPolicy, SegmentedLRU
from kvevents.caches.node import Node
from kvevents.caches.radix import RadixCache
from kvevents.caches.results import EvictResult, InsertResult, MatchResult
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator

__all__ = [
    "EvictResult",
    "EvictionPolicy",
    "InsertResult",
    "MatchResult",
    "Node",
    "PagedSlotAllocator",
    "RadixCache",
    "SegmentedLRU",
    "SlotAllocator",
]
