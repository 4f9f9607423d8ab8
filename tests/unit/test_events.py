"""Events as Python values."""

import msgspec
import pytest

from kvevents.errors import KVEventsError, WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVEventBatch,
    StorageMedium,
)


def test_media_are_the_strings_of_the_wire() -> None:
    assert [*map(str, StorageMedium)] == ["GPU", "CPU_PINNED", "DISK", "EXTERNAL"]
    assert BlockRemoved([1], StorageMedium.CPU) == BlockRemoved([1], "CPU_PINNED")


def test_fields_are_given_by_position_in_the_order_of_sglang() -> None:
    store = BlockStored([1], None, [2], 1, None, "GPU", "salt", "session", "adapter")
    assert (store.cache_salt, store.session_id, store.lora_name) == ("salt", "session", "adapter")


def test_events_can_be_changed_in_place() -> None:
    store = BlockStored([1], None, [2], 1)
    store.block_hashes += [3]
    store.medium = "GPU"
    assert store == BlockStored([1, 3], None, [2], 1, medium="GPU")


def test_only_what_is_set_is_shown() -> None:
    assert repr(BlockRemoved([1], "GPU")) == "BlockRemoved(block_hashes=[1], medium='GPU')"
    assert repr(AllBlocksCleared()) == "AllBlocksCleared()"


def test_the_earlier_form_is_a_store_and_its_salt_counts() -> None:
    store = BlockStoredWithMetadata([1], None, [2], 1, metadata=BlockStoredMetadata("x"))
    assert isinstance(store, BlockStored)
    assert store.cache_salt == "x"
    given = BlockStoredWithMetadata([1], None, [2], 1, cache_salt="y", metadata=BlockStoredMetadata("x"))
    assert given.cache_salt == "y"
    assert BlockStoredWithMetadata([1], None, [2], 1).cache_salt is None


def test_events_of_different_types_differ() -> None:
    assert BlockStoredWithMetadata([1], None, [2], 1) != BlockStored([1], None, [2], 1)


def test_batches_do_not_share_what_they_skip() -> None:
    first, second = KVEventBatch(0.0, []), KVEventBatch(0.0, [])
    assert first.skipped is not second.skipped
    assert first.attn_dp_rank is None


def test_msgspec_writes_events_as_tagged_maps() -> None:
    assert msgspec.to_builtins(BlockRemoved([1])) == {"type": "BlockRemoved", "block_hashes": [1]}
    assert msgspec.json.encode(AllBlocksCleared()) == b'{"type":"AllBlocksCleared"}'


def test_a_wire_error_says_what_and_where() -> None:
    error = WireError("expected a map, found nil", 7)
    assert str(error) == "expected a map, found nil (at byte 7)"
    assert (error.reason, error.offset) == ("expected a map, found nil", 7)
    with pytest.raises(KVEventsError):
        raise error
