"""Prefix caches: what stays in the KV memory of an engine, announced as events."""

from kvevents.caches.block_pool import BlockPoolCache, CachedRun
from kvevents.caches.cache import PrefixCache
from kvevents.caches.eviction import EvictionPolicy, SegmentedLRU, TailLRU
from kvevents.caches.hierarchical import HiRadixCache, WritePolicy
from kvevents.caches.layers import FullAttention, Layers, Mamba, SlidingWindow
from kvevents.caches.mamba import MambaRadixCache
from kvevents.caches.node import Node
from kvevents.caches.radix import RadixCache
from kvevents.caches.results import EvictResult, InsertResult, MatchResult, PrefetchResult, Sizes
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator
from kvevents.caches.swa import SWARadixCache
from kvevents.caches.unified import UnifiedRadixCache

__all__ = [
    "BlockPoolCache",
    "CachedRun",
    "EvictResult",
    "EvictionPolicy",
    "FullAttention",
    "HiRadixCache",
    "InsertResult",
    "Layers",
    "Mamba",
    "MambaRadixCache",
    "MatchResult",
    "Node",
    "PagedSlotAllocator",
    "PrefetchResult",
    "PrefixCache",
    "RadixCache",
    "SWARadixCache",
    "SegmentedLRU",
    "Sizes",
    "SlidingWindow",
    "SlotAllocator",
    "TailLRU",
    "UnifiedRadixCache",
    "WritePolicy",
]
