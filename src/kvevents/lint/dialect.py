"""How a stream's events are written, and which engines write so.

Facts: the fields of each version stand in the wire formats' table (docs); vLLM writes `lora_name` when it is nil,
SGLang leaves nil out; SGLang's hashes are signed, vLLM's unsigned or digests.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from kvevents.wire import Dialect

_VLLM_MAPS = (("session_id", "0.30"), ("ownership", "0.29"), ("locality", "0.26"))
"""Fields of vLLM's maps, by the version that brought them; maps came with 0.24."""

_VLLM_ARRAYS = (
    (11, "0.22 or 0.23"),
    (9, "0.20 or 0.21"),
    (8, "0.17 to 0.19"),
    (7, "0.14 to 0.16"),
    (6, "0.10.2 to 0.13"),
)
"""vLLM's arrays, by the fields that a store has."""

_VLLM_ONLY = {"extra_keys", "group_idx", "kv_cache_spec_kind", "locality", "ownership"}
_SIGNED_END = 2**63


class Recognised(NamedTuple):
    """How a stream is written.

    Attributes:
        dialect: the one that has every field that was seen.
        engine: which engines write so.
    """

    dialect: Dialect
    engine: str


def recognise(payloads: Iterable[bytes]) -> Recognised | None:
    """The dialect of a stream by its first batches, which can be read; None where none of them stores a block."""
    stores = [event for payload in payloads for event in _events(payload) if _tag(event).startswith("BlockStored")]
    maps = [store for store in stores if isinstance(store, dict)]
    if maps:
        return _of_maps(maps)
    return _of_arrays(stores) if stores else None


def _of_maps(stores: list[dict[str, Any]]) -> Recognised:
    names = {name for store in stores for name in store}
    writes_nil = any("lora_name" in store and store["lora_name"] is None for store in stores)
    if not writes_nil and names & _VLLM_ONLY and _has_signed_hashes(store.get("block_hashes") for store in stores):
        return Recognised("vllm", "SGLang's events, with fields of vLLM's: an engine that announces groups")
    if writes_nil or names & _VLLM_ONLY or _has_vllm_hashes(store.get("block_hashes") for store in stores):
        since = next((version for name, version in _VLLM_MAPS if name in names), "0.24")
        return Recognised("vllm", f"vLLM {since} or later")
    return Recognised("sglang", "SGLang since September 2026")


def _of_arrays(stores: list[list[Any]]) -> Recognised:
    if any(_tag(store) == "BlockStoredWithMetadata" for store in stores):
        return Recognised("sglang-array", "SGLang before September 2026, with salts")
    fields = max(len(store) - 1 for store in stores)
    if fields > 9 or _has_vllm_hashes(store[1] for store in stores if len(store) > 1):
        versions = next((versions for least, versions in _VLLM_ARRAYS if fields >= least), "before 0.10.2")
        return Recognised("vllm-array", f"vLLM {versions}")
    return Recognised("sglang-array", "SGLang before September 2026, or vLLM before 0.10.2")


def _has_vllm_hashes(lists: Iterable[Any]) -> bool:
    blocks = (block for blocks in lists if isinstance(blocks, list) for block in blocks)
    return any(isinstance(block, bytes) or (isinstance(block, int) and block >= _SIGNED_END) for block in blocks)


def _has_signed_hashes(lists: Iterable[Any]) -> bool:
    blocks = (block for blocks in lists if isinstance(blocks, list) for block in blocks)
    return any(isinstance(block, int) and block < 0 for block in blocks)


def _events(payload: bytes) -> list[Any]:
    batch = msgspec.msgpack.decode(payload)
    events = batch.get("events") if isinstance(batch, dict) else batch[1]
    return events if isinstance(events, list) else []


def _tag(event: Any) -> str:
    tag = event.get("type") if isinstance(event, dict) else event[0] if isinstance(event, list) and event else None
    return tag if isinstance(tag, str) else ""
