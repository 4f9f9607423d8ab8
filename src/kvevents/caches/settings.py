"""Settings that all caches have."""

from typing import Required, TypedDict

from kvevents.caches.eviction import EvictionPolicy
from kvevents.caches.slots import SlotAllocator
from kvevents.hashing import EventFormat
from kvevents.recorder import EventRecorder


class CacheSettings(TypedDict, total=False):
    """What `UnifiedRadixCache` takes beside its components."""

    page_size: Required[int]
    capacity: Required[int]
    eviction_policy: str | EvictionPolicy
    bigram: bool
    event_format: EventFormat
    recorder: EventRecorder | None
    announce_groups: bool
    keep_sessions: bool
    allocator: SlotAllocator | None
