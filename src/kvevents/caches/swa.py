"""The prefix cache of models with full and sliding-window attention."""

from typing import Unpack

from kvevents.caches.layers import SlidingWindow
from kvevents.caches.settings import CacheSettings
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.unified import UnifiedRadixCache


class SWARadixCache(UnifiedRadixCache):
    """A `UnifiedRadixCache` of full attention and a sliding window.

    A model whose layers all slide keeps one KV for all of them, which `RadixCache` takes care of.

    Args:
        sliding_window: tokens before the next one that the sliding layers attend to; see `SlidingWindow`.
        window_capacity: slots for their KV; by default as many as for full attention.
        window_allocator: who hands them out; by default a `PagedSlotAllocator`.
        settings: as for `UnifiedRadixCache`.
    """

    def __init__(
        self,
        *,
        sliding_window: int,
        window_capacity: int | None = None,
        window_allocator: SlotAllocator | None = None,
        **settings: Unpack[CacheSettings],
    ) -> None:
        super().__init__(components=[SlidingWindow(sliding_window, window_capacity, window_allocator)], **settings)
