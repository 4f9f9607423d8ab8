"""Prefix caches: what stays in the KV memory of an engine, announced as events."""

from kvevents.caches.block_pool import BlockPoolCache, CachedRun
from kvevents.caches.cache import PrefixCache
from kvevents.caches.eviction import EvictionPolicy, SegmentedLRU, TailLRU
from kvevents.caches.file_store import FileStore
from kvevents.caches.hierarchical import HiRadixCache, WritePolicy
from kvevents.caches.layers import FullAttention, Layers, Mamba, SlidingWindow
from kvevents.caches.mamba import MambaRadixCache
from kvevents.caches.memory_store import MemoryStore
from kvevents.caches.node import Node
from kvevents.caches.radix import RadixCache
from kvevents.caches.results import CachedLength, EvictResult, InsertResult, MatchResult, PrefetchResult, Sizes
from kvevents.caches.slot_memory import SlotMemory
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator
from kvevents.caches.storage import StoredBlock, TierStore
from kvevents.caches.swa import SWARadixCache
from kvevents.caches.unified import UnifiedRadixCache

__all__ = [
    "BlockPoolCache",
    "CachedLength",
    "CachedRun",
    "EvictResult",
    "EvictionPolicy",
    "FileStore",
    "FullAttention",
    "HiRadixCache",
    "InsertResult",
    "Layers",
    "Mamba",
    "MambaRadixCache",
    "MatchResult",
    "MemoryStore",
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
    "SlotMemory",
    "StoredBlock",
    "TailLRU",
    "TierStore",
    "UnifiedRadixCache",
    "WritePolicy",
]
