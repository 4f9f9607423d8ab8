"""Payloads as engines of other makes would write them: by msgspec, from plain lists and dicts."""

from typing import Any

import msgspec

from kvevents.events import KVCacheEvent, KVEventBatch
from kvevents.wire import Dialect, encode_batch

pack = msgspec.msgpack.encode

COMMON = [[7, 8], None, [1, 2, 3, 4], 2, None, "GPU"]
"""The slots of a store up to the medium."""


def stored_map(**fields: Any) -> dict[str, Any]:
    names = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
    return {"type": "BlockStored"} | dict(zip(names, COMMON, strict=True)) | fields


def encode_events(*events: KVCacheEvent, dialect: Dialect = "sglang") -> list[Any]:
    """What a schema-less reader sees of the events."""
    payload = encode_batch(KVEventBatch(1.5, list(events), 0), dialect=dialect)
    ts, written, rank = msgspec.msgpack.decode(payload)
    assert (ts, rank) == (1.5, 0)
    assert isinstance(written, list)
    return written
