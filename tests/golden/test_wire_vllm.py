"""vLLM's own bytes, from 0.10.1 to 0.32.0: nothing is lost by reading, and what can be is written back."""

import re
from typing import Any

import msgspec
import pytest

from goldens import capture, capture_names
from kvevents.events import KVCacheEvent
from kvevents.wire import Dialect, decode_batch, encode_batch

# The fields of arrays in their order, written down here once more, from vLLM's releases.
STORED = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
]
ORDER = {"BlockStored": STORED, "BlockRemoved": ["block_hashes", "medium", "group_idx"], "AllBlocksCleared": []}


def payloads(name: str) -> list[bytes]:
    """Every payload of a capture, live and replayed."""
    frames = [line["frames"] for line in capture(name) if "dir" in line]
    return [bytes.fromhex(parts[-1]) for parts in frames if parts[-1]]


def named(event: Any) -> dict[str, Any]:
    """An event that msgspec decoded without a schema, its fields by name, without those that are nil."""
    if isinstance(event, list):
        tag, *values = event
        assert len(values) <= len(ORDER[tag])
        event = {"type": tag} | dict(zip(ORDER[tag], values, strict=False))
    return {name: value for name, value in event.items() if value is not None}


def read(event: KVCacheEvent) -> dict[str, Any]:
    values = {name: getattr(event, name) for name in event.__struct_fields__}
    return {"type": type(event).__name__} | {name: value for name, value in values.items() if value is not None}


def version(name: str) -> tuple[int, ...]:
    """The engine's version; the captures without one in their name are of 0.32.0."""
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", name)
    return tuple(map(int, match.groups())) if match else (0, 32, 0)


def dialect(name: str) -> Dialect:
    return "vllm" if version(name) >= (0, 24) else "vllm-array"


@pytest.mark.parametrize("name", capture_names())
def test_nothing_is_lost(name: str) -> None:
    for payload in payloads(name):
        ts, events, rank = msgspec.msgpack.decode(payload)
        batch = decode_batch(payload)
        assert (batch.ts, batch.attn_dp_rank) == (ts, rank)
        assert [read(event) for event in batch.events] == [named(event) for event in events]
        assert (batch.skipped, batch.unread_fields) == ([], 0)


@pytest.mark.parametrize("name", [name for name in capture_names() if version(name) >= (0, 22)])
def test_versions_with_a_dialect_are_written_back_byte_for_byte(name: str) -> None:
    for payload in payloads(name):
        assert encode_batch(decode_batch(payload), dialect=dialect(name)) == payload


@pytest.mark.parametrize("name", capture_names())
@pytest.mark.parametrize("other", ["vllm", "vllm-array", "sglang"])
def test_what_is_written_in_another_dialect_reads_the_same(name: str, other: Dialect) -> None:
    for payload in payloads(name):
        batch = decode_batch(payload)
        assert decode_batch(encode_batch(batch, dialect=other)) == batch


def test_the_captures_cover_both_shapes_and_both_directions() -> None:
    with_payloads = {name for name in capture_names() if payloads(name)}
    assert {dialect(name) for name in with_payloads} == {"vllm", "vllm-array"}
    assert {line["dir"] for name in with_payloads for line in capture(name) if "dir" in line} == {"pub", "replay"}
