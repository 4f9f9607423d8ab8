"""KV cache events as Python values: what an engine announces about its cache.

The fields and their order are those of SGLang and vLLM on the wire; a value stays as it came
(a hash as signed integer, unsigned integer or bytes, a medium as spelled by the engine).
The index normalises, these types do not.
"""

import enum
from typing import Any, TypeAlias

import msgspec

BlockHash: TypeAlias = int | bytes
"""What an engine calls a block: a 64-bit integer (signed or unsigned), or a digest of 16 or 32 bytes."""

BlockHashes: TypeAlias = list[int] | list[bytes] | list[BlockHash]
"""The blocks of an event, in order; engines use one form throughout."""

TokenIds: TypeAlias = list[int] | list[tuple[int, int]]
"""Token ids of the blocks, in order; pairs where the engine caches bigrams (EAGLE)."""


class StorageMedium(enum.StrEnum):
    """Where a block is held, as SGLang names it on the wire."""

    GPU = "GPU"
    CPU = "CPU_PINNED"
    DISK = "DISK"
    EXTERNAL = "EXTERNAL"


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """Blocks that are now held: one contiguous run of a prefix chain.

    Attributes:
        block_hashes: the run's blocks, first to last.
        parent_block_hash: the block above the first one; None only at the start of a prompt.
        token_ids: the run's tokens, `len(block_hashes) * block_size` of them in an aligned store.
        block_size: tokens (pairs, for bigrams) in a block.
        lora_id: adapter number of early vLLM versions.
        medium: the tier; None means the engine's GPU in formats older than tiers.
        cache_salt: the tenant's salt (SGLang).
        session_id: attribution only, never identity.
        lora_name: the adapter's name.
        extra_keys: vLLM: for each block None or a list of what else enters its hash (adapter,
            `[image id, offset]`, salt in the first block, embeddings digest).
        group_idx: vLLM: the KV cache group that announces, in hybrid models.
        kv_cache_spec_kind: vLLM: the group's kind, such as `full_attention` or `sliding_window`.
        kv_cache_spec_sliding_window: vLLM: the group's window in tokens.
        locality: vLLM: `REMOTE` where the block is not on this host.
        ownership: vLLM: who owns the copy.
        unknown_fields: fields this version does not know, by name, as they came.
    """

    block_hashes: BlockHashes
    parent_block_hash: BlockHash | None
    token_ids: TokenIds
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    unknown_fields: dict[str, Any] | None = None


class BlockStoredMetadata(msgspec.Struct, omit_defaults=True, repr_omit_defaults=True):
    """The map that `BlockStoredWithMetadata` carries.

    Attributes:
        cache_salt: the tenant's salt.
        unknown_fields: what else the map holds, as it came.
    """

    cache_salt: str | None = None
    unknown_fields: dict[str, Any] | None = None


class BlockStoredWithMetadata(BlockStored, tag=True, omit_defaults=True, repr_omit_defaults=True, kw_only=True):
    """A `BlockStored` in SGLang's earlier form, with the salt in a map of its own.

    Its `cache_salt` is the salt that counts: taken from `metadata` unless given, so that nobody who
    reads stores has to know the earlier form. On the wire it is said once.
    """

    metadata: BlockStoredMetadata | None = None

    def __post_init__(self) -> None:
        if self.cache_salt is None and self.metadata is not None:
            self.cache_salt = self.metadata.cache_salt


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """Blocks that are no longer held in a tier; None as medium means in none."""

    block_hashes: BlockHashes
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    unknown_fields: dict[str, Any] | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True, repr_omit_defaults=True):
    """Nothing is held any more, in any tier."""

    unknown_fields: dict[str, Any] | None = None


KVCacheEvent: TypeAlias = BlockStored | BlockStoredWithMetadata | BlockRemoved | AllBlocksCleared


class SkippedEvent(msgspec.Struct, frozen=True):
    """An event of a batch that could not be read and was left out.

    Attributes:
        code: stable name of the reason: `unknown-tag`, `wrong-type`, `out-of-range`, `missing-field`,
            `duplicate-field` or `over-limit`.
        offset: where the event begins, in bytes from the start of the payload.
        reason: what was expected and what came, for people.
    """

    code: str
    offset: int
    reason: str


class KVEventBatch(msgspec.Struct, omit_defaults=True, repr_omit_defaults=True):
    """Events that an engine published together.

    Attributes:
        ts: the publisher's clock, unix seconds.
        events: in the order they happened.
        attn_dp_rank: data-parallel rank; None where the engine does not say (which is not rank 0).
        skipped: what decoding left out, with reasons; never encoded.
        unread_fields: values that decoding passed over because an array has no names for them
            (elements after the last known field) or the batch is a map with unknown keys; never encoded.
    """

    ts: float
    events: list[KVCacheEvent]
    attn_dp_rank: int | None = None
    skipped: list[SkippedEvent] = msgspec.field(default_factory=list)
    unread_fields: int = 0
