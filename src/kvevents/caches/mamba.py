"""The prefix cache of models with full attention and state-space layers."""

from typing import Unpack

from kvevents.caches.layers import Mamba
from kvevents.caches.settings import CacheSettings
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.unified import UnifiedRadixCache


class MambaRadixCache(UnifiedRadixCache):
    """A `UnifiedRadixCache` of full attention and states.

    Args:
        mamba_slots: states that there is room for.
        state_allocator: who hands them out; by default a `PagedSlotAllocator` with pages of one.
        settings: as for `UnifiedRadixCache`; bigrams are off.
    """

    def __init__(
        self, *, mamba_slots: int, state_allocator: SlotAllocator | None = None, **settings: Unpack[CacheSettings]
    ) -> None:
        super().__init__(components=[Mamba(mamba_slots, state_allocator)], **settings)
