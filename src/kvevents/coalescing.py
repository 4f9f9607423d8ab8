"""Coalescing batches that are passed on: fewer events, every consumer with the same blocks.

    >>> from kvevents.events import BlockStored, KVEventBatch
    >>> from kvevents.wire import decode_batch, encode_batch
    >>> coalescer = Coalescer("chain")
    >>> for event in (BlockStored([1], None, [10], 1), BlockStored([7], None, [20], 1), BlockStored([2], 1, [11], 1)):
    ...     unread = coalescer.add(encode_batch(KVEventBatch(ts=0.0, events=[event])))
    >>> [event.block_hashes for event in decode_batch(coalescer.take_batch()).events]
    [[1, 2], [7]]

Events that are recorded here are coalesced by `kvevents.recorder.EventRecorder`.
"""

from typing import Literal, TypeAlias

from kvevents._core.coalescing import Coalescer, CoalescerStats

Level: TypeAlias = Literal["off", "adjacent", "chain", "compact"]
"""How far events are merged; see ARCHITECTURE.md."""

__all__ = ["Coalescer", "CoalescerStats", "Level"]
