"""Writing batches, case by case."""

from array import array
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    KVEventBatch,
    StorageMedium,
)
from kvevents.wire import Dialect, encode_batch
from payloads import encode_events


def store(**fields: Any) -> BlockStored:
    """A store of one block with fields of any type."""
    return BlockStored(**{"block_hashes": [1], "parent_block_hash": None, "token_ids": [], "block_size": 1} | fields)


class TestEncoding:
    def test_sglang_writes_a_field_with_its_default_only_where_it_is_always_there(self) -> None:
        store, removal = BlockStored([1], None, [2], 1), BlockRemoved([1])
        assert encode_events(store, removal, AllBlocksCleared()) == [
            {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [2], "block_size": 1}
            | {"lora_id": None},
            {"type": "BlockRemoved", "block_hashes": [1]},
            {"type": "AllBlocksCleared"},
        ]

    def test_sglang_arrays_have_7_elements_or_10(self) -> None:
        store = BlockStored([1], 0, [2], 1, medium=StorageMedium.CPU)
        assert encode_events(store, dialect="sglang-array") == [["BlockStored", [1], 0, [2], 1, None, "CPU_PINNED"]]
        store.session_id = "s"
        assert encode_events(store, dialect="sglang-array")[0][7:] == [None, "s", None]
        assert encode_events(BlockRemoved([1]), AllBlocksCleared(), dialect="sglang-array") == [
            ["BlockRemoved", [1], None],
            ["AllBlocksCleared"],
        ]

    def test_the_earlier_form_says_its_salt_where_the_dialect_has_a_place(self) -> None:
        store = BlockStoredWithMetadata([1], None, [2], 1, medium="GPU", metadata=BlockStoredMetadata("x"))
        [written] = encode_events(store, dialect="sglang-array")
        assert written == ["BlockStored", [1], None, [2], 1, None, "GPU", {"cache_salt": "x"}]
        [written] = encode_events(store, dialect="sglang")
        assert written["cache_salt"] == "x"
        assert "metadata" not in written

    def test_vllm_writes_its_own_defaults(self) -> None:
        [written] = encode_events(BlockStored([1], None, [2], 1), dialect="vllm")
        assert list(written) == [
            *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
        ]
        [written] = encode_events(BlockStored([1], None, [2], 1), dialect="vllm-array")
        assert len(written) == 12

    def test_hashes_and_tokens_may_be_buffers(self) -> None:
        event = store(block_hashes=memoryview(array("q", [-1, 2])), token_ids=array("q", [5, 6]))
        [written] = encode_events(event)
        assert (written["block_hashes"], written["token_ids"]) == ([-1, 2], [5, 6])

    def test_the_choices_are_named_when_a_dialect_is_unknown(self) -> None:
        with pytest.raises(ConfigError, match='one of sglang, sglang-array, vllm, vllm-array; got "vllm2"'):
            encode_batch(KVEventBatch(0, []), dialect="vllm2")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("event", "error", "message"),
        [
            (store(block_hashes=[2**64]), ValueError, r"block_hashes\[0\]: expected an integer from -2\^63 to 2\^64-1"),
            (store(block_hashes=[0, -(2**63) - 1]), ValueError, r"block_hashes\[1\]"),
            (store(block_hashes=[b""]), ValueError, r"block_hashes\[0\].* got b''"),
            (store(block_hashes=["a"]), TypeError, r"block_hashes\[0\]: .* got <class 'str'>"),
            (store(block_hashes=5), ValueError, "block_hashes: expected a list of hashes, got 5"),
            (store(block_hashes="ab"), TypeError, "block_hashes: expected a list of hashes, got <class 'str'>"),
            (store(parent_block_hash=2**64), ValueError, "parent_block_hash"),
            (store(token_ids=[3, -4]), ValueError, r"token_ids\[1\]: expected a token id from 0 to .* got -4"),
            (store(token_ids=[(1, -2)]), ValueError, r"token_ids\[0\]: expected a pair of token ids"),
            (store(token_ids=[(1, 2), (1, 2, 3)]), ValueError, r"token_ids\[1\]"),
            (store(token_ids=[1, (1, 2)]), ValueError, r"token_ids\[1\]: expected a token id from"),
            (store(token_ids=[(1, 2), 1]), ValueError, r"token_ids\[1\]: expected a pair of token ids"),
            (store(token_ids=["a"]), TypeError, r"token_ids\[0\]: expected a token id .* got <class 'str'>"),
            (store(block_size=-1), ValueError, "block_size: expected an integer from 0 to"),
            (store(lora_id="a"), TypeError, "lora_id: expected an integer of 64 bits"),
            (store(medium=5), ValueError, "medium: expected a string, got 5"),
            (store(extra_keys=["a"]), TypeError, r"extra_keys\[0\]: expected None or a list"),
            (store(extra_keys="a"), TypeError, "extra_keys: expected a list of one entry a block"),
            (store(unknown_fields={"medium": 1}), TypeError, "unknown_fields: expected names"),
            (store(unknown_fields={"a": object()}), TypeError, "object"),
            (store(unknown_fields=[1]), ValueError, "unknown_fields: expected a dict"),
            ({"type": "AllBlocksCleared"}, TypeError, "expected a KV cache event, got <class 'dict'>"),
        ],
    )
    def test_a_value_that_does_not_fit_is_named(self, event: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=rf"^events\[1\]: .*{message}"):
            encode_batch(KVEventBatch(0, [AllBlocksCleared(), event]))

    def test_metadata_is_a_struct(self) -> None:
        store = BlockStoredWithMetadata([1], None, [], 1)
        store.metadata = {"cache_salt": "x"}  # type: ignore[assignment]
        with pytest.raises(TypeError, match="metadata: expected a BlockStoredMetadata, got <class 'dict'>"):
            encode_events(store, dialect="sglang-array")

    @pytest.mark.parametrize(
        ("dialect", "event", "field"),
        [
            ("sglang-array", BlockStored([1], None, [], 1, group_idx=0), "group_idx"),
            ("sglang-array", AllBlocksCleared({"later": 1}), "unknown_fields"),
            ("vllm-array", BlockStored([1], None, [], 1, cache_salt="x"), "cache_salt"),
        ],
    )
    def test_an_array_refuses_what_it_has_no_place_for(self, dialect: Dialect, event: KVCacheEvent, field: str) -> None:
        with pytest.raises(ValueError, match=f"{field}: the dialect {dialect} has no place for it"):
            encode_batch(KVEventBatch(0, [event]), dialect=dialect)

    def test_only_batches_are_batches(self) -> None:
        with pytest.raises(TypeError, match="batch: expected a KVEventBatch, got <class 'dict'>"):
            encode_batch({})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="attn_dp_rank: expected an integer of 64 bits or None, got 92233720"):
            encode_batch(KVEventBatch(0, [], 2**63))
