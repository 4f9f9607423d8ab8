"""Hypothesis strategies for events and batches, shared by the property tests."""

from typing import Any

from hypothesis import strategies as st

from kvevents.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    KVEventBatch,
    StorageMedium,
)
from kvevents.wire import Dialect

UINT64 = st.integers(0, 2**64 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(max_size=40)
NUMBERS = st.none() | UINT64
MEDIA = st.none() | st.sampled_from([*map(str, StorageMedium), "CPU", "cpu", "STORAGE", "FS", "OBJ"]) | st.text()
KNOWN_FIELDS = {"type", "metadata", *BlockStored.__struct_fields__}

DIALECTS: tuple[Dialect, ...] = ("sglang", "sglang-array", "vllm", "vllm-array")


def block_hashes() -> st.SearchStrategy[BlockHash]:
    """A hash in any of its forms."""
    return UINT64 | INT64 | st.sampled_from([16, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def token_ids() -> st.SearchStrategy[Any]:
    """Tokens, or pairs of them, not always those of whole blocks."""
    tokens = st.integers(0, 200_000) | UINT64
    return st.lists(tokens, max_size=40) | st.lists(st.tuples(tokens, tokens), max_size=20)


def extra_keys() -> st.SearchStrategy[Any]:
    """One entry a block, as vLLM writes them."""
    image = st.tuples(st.text(max_size=8), INT64).map(list)
    keys = st.lists(st.text(max_size=8) | image | st.binary(max_size=8), max_size=3)
    return st.none() | st.lists(st.none() | keys, max_size=4)


def unknown_fields() -> st.SearchStrategy[dict[str, Any] | None]:
    """Fields of a later version."""
    scalars = st.none() | st.booleans() | INT64 | UINT64 | st.floats(allow_nan=False) | st.text() | st.binary()
    values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
    names = st.text().filter(lambda name: name not in KNOWN_FIELDS)
    return st.none() | st.dictionaries(names, values, min_size=1, max_size=3)


def stored_events(dialect: Dialect = "sglang") -> st.SearchStrategy[BlockStored]:
    """Stores with every field that the dialect can say."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "block_hashes": st.lists(block_hashes(), max_size=20),
        "parent_block_hash": st.none() | block_hashes(),
        "token_ids": token_ids(),
        "block_size": UINT64,
        "lora_id": st.none() | INT64,
        "medium": MEDIA,
    }
    metadata = st.builds(BlockStoredMetadata, TEXTS, unknown_fields())
    if dialect == "sglang-array":
        plain = dict.fromkeys(("cache_salt", "session_id", "lora_name"), TEXTS)
        earlier: dict[str, st.SearchStrategy[Any]] = {}
    else:
        texts = ("session_id", "lora_name", "kv_cache_spec_kind", "locality", "ownership")
        fields |= dict.fromkeys(texts, TEXTS)
        fields |= {"extra_keys": extra_keys(), "group_idx": NUMBERS, "kv_cache_spec_sliding_window": NUMBERS}
        plain = {}
        earlier = {}
    if dialect in {"sglang", "vllm"}:
        fields["unknown_fields"] = unknown_fields()
        plain = earlier = {"cache_salt": TEXTS}
    stores = st.builds(BlockStored, **fields, **plain)
    if dialect == "vllm-array":
        return stores
    return stores | st.builds(BlockStoredWithMetadata, **fields, **earlier, metadata=metadata)


def removed_events(dialect: Dialect = "sglang") -> st.SearchStrategy[BlockRemoved]:
    """Removals with every field that the dialect can say."""
    fields: dict[str, st.SearchStrategy[Any]] = {"block_hashes": st.lists(block_hashes(), max_size=20), "medium": MEDIA}
    if dialect != "sglang-array":
        fields |= {"group_idx": NUMBERS, "locality": TEXTS, "ownership": TEXTS}
    if dialect in {"sglang", "vllm"}:
        fields["unknown_fields"] = unknown_fields()
    return st.builds(BlockRemoved, **fields)


def events(dialect: Dialect = "sglang") -> st.SearchStrategy[KVCacheEvent]:
    """Any event that the dialect can say."""
    unknown = unknown_fields() if dialect in {"sglang", "vllm"} else st.none()
    return stored_events(dialect) | removed_events(dialect) | st.builds(AllBlocksCleared, unknown)


def batches(dialect: Dialect = "sglang") -> st.SearchStrategy[KVEventBatch]:
    """Any batch that the dialect can say."""
    return st.builds(
        KVEventBatch,
        ts=st.floats(allow_nan=False),
        events=st.lists(events(dialect), max_size=6),
        attn_dp_rank=st.none() | INT64,
    )
