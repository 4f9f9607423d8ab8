"""KV cache events for LLM serving: record, coalesce, carry, index, route and see."""

from kvevents import _interrupts as _interrupts  # first: it is about the imports that follow

# isort: split
from kvevents._core import __version__
from kvevents.caches import HiRadixCache, RadixCache, UnifiedRadixCache
from kvevents.coalescing import Coalescer
from kvevents.errors import CapacityError, ConfigError, KVEventsError, TransportError, WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVEventBatch,
    StorageMedium,
)
from kvevents.hashing import HashChain, block_digests, block_hashes, identify_scheme
from kvevents.index import ApplyReport, Matches, PrefixIndex, WorkerMatch
from kvevents.recorder import EventRecorder, KVCacheEventMixin
from kvevents.routing import Decision, Router
from kvevents.transport import CaptureReader, CaptureWriter, Source, SourceState, Subscriber, ZmqPublisher, discover
from kvevents.wire import decode_batch, encode_batch

__all__ = [
    "AllBlocksCleared",
    "ApplyReport",
    "BlockRemoved",
    "BlockStored",
    "BlockStoredMetadata",
    "BlockStoredWithMetadata",
    "CapacityError",
    "CaptureReader",
    "CaptureWriter",
    "Coalescer",
    "ConfigError",
    "Decision",
    "EventRecorder",
    "HashChain",
    "HiRadixCache",
    "KVCacheEventMixin",
    "KVEventBatch",
    "KVEventsError",
    "Matches",
    "PrefixIndex",
    "RadixCache",
    "Router",
    "Source",
    "SourceState",
    "StorageMedium",
    "Subscriber",
    "TransportError",
    "UnifiedRadixCache",
    "WireError",
    "WorkerMatch",
    "ZmqPublisher",
    "__version__",
    "block_digests",
    "block_hashes",
    "decode_batch",
    "discover",
    "encode_batch",
    "identify_scheme",
]
