"""What keeps two stores apart that otherwise go on from one another."""

from typing import Any

ONE_FIELD_APART: tuple[dict[str, Any], ...] = (
    {"medium": "CPU_PINNED"},
    {"medium": None},
    {"lora_name": "adapter"},
    {"lora_id": 1},
    {"block_size": 2, "token_ids": [3, 4]},
    {"cache_salt": "salt"},
    {"session_id": "session"},
    {"group_idx": 0},
    {"kv_cache_spec_kind": "full_attention"},
    {"kv_cache_spec_sliding_window": 4},
    {"locality": "REMOTE"},
    {"ownership": "shared"},
    {"extra_keys": [None]},
    {"unknown_fields": {"new": 1}},
    {"token_ids": [(3, 4)]},
)
"""Fields of a store of one block, each unlike those of a plain store of one token on the GPU."""
