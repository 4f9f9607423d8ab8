"""Which engine wrote a batch: a relay writes as its source does."""

from typing import Any, Literal, NamedTuple

import msgspec

from kvevents.wire import Dialect

_VLLM_FIELDS = {"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "ownership"}
_SGLANG_FIELDS = {"cache_salt", "metadata"}
_STORED = "BlockStored"
_UNSIGNED = 1 << 63
_MOST_SLOTS_OF_SGLANG = 7
"""An array `[tag, hashes, parent, tokens, block_size, lora_id, medium]`; what vLLM writes after it is more."""


class Guess(NamedTuple):
    """What a batch tells.

    Attributes:
        dialect: one that says all that was said.
        is_sure: whether it is the source's.
    """

    dialect: Dialect
    is_sure: bool


def recognise(payload: bytes) -> Guess:
    """The dialect of a batch, by its first store that tells, else by whether its events are arrays.

    Args:
        payload: a batch that can be read.
    """
    batch: Any = msgspec.msgpack.decode(payload)
    events = batch.get("events", ()) if isinstance(batch, dict) else batch[1]
    dialect = next((dialect for event in events if (dialect := _of(event)) is not None), None)
    if dialect is not None:
        return Guess(dialect, is_sure=True)
    are_arrays = bool(events) and all(isinstance(event, list) for event in events)
    return Guess("sglang-array" if are_arrays else "sglang", is_sure=False)


def _of(event: Any) -> Dialect | None:
    if isinstance(event, dict):
        return _of_map(event) if event.get("type") == _STORED else None
    return _of_array(event) if event and event[0] == _STORED else None


def _of_map(event: dict[str, Any]) -> Dialect | None:
    by_hash = _by_hash(event.get("block_hashes"))
    if _VLLM_FIELDS & event.keys() or by_hash == "vllm":
        return "vllm"
    # vLLM always writes the adapter's name, SGLang only where there is one.
    if _SGLANG_FIELDS & event.keys() or by_hash == "sglang" or "lora_name" not in event:
        return "sglang"
    return "vllm" if event["lora_name"] is None else None


def _of_array(event: list[Any]) -> Dialect | None:
    if len(event) > _MOST_SLOTS_OF_SGLANG:
        has_sglangs = len(event) == _MOST_SLOTS_OF_SGLANG + 3 and all(
            slot is None or isinstance(slot, str) for slot in event[_MOST_SLOTS_OF_SGLANG:]
        )
        has_metadata = isinstance(event[_MOST_SLOTS_OF_SGLANG], dict)
        return "sglang-array" if has_sglangs or has_metadata else "vllm-array"
    by_hash = _by_hash(event[1] if len(event) > 1 else None)
    if by_hash is None:
        return None
    return "vllm-array" if by_hash == "vllm" else "sglang-array"


def _by_hash(hashes: Any) -> Literal["sglang", "vllm"] | None:
    """SGLang writes signed integers, vLLM unsigned ones or bytes; half of all integers tell."""
    for block in hashes if isinstance(hashes, list) else ():
        if isinstance(block, bytes) or (isinstance(block, int) and block >= _UNSIGNED):
            return "vllm"
        if isinstance(block, int) and block < 0:
            return "sglang"
    return None
