"""Reading batches, case by case."""

import doctest
import struct
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import kvevents.wire
from kvevents._core import wire as core
from kvevents.errors import WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    KVEventBatch,
)
from kvevents.wire import Dialect, decode_batch, encode_batch
from payloads import COMMON, encode_events, pack, stored_map


def decode_events(*events: Any, strict: bool = True) -> list[KVCacheEvent]:
    return decode_batch(pack([1.5, events, 0]), strict=strict).events


def decode_store(event: Any) -> BlockStored:
    [store] = decode_events(event)
    assert isinstance(store, BlockStored)
    return store


class TestBatchFrame:
    @pytest.mark.parametrize("frame", [[2, []], [2.0, [], None], {"ts": 2, "events": []}, {"events": [], "ts": 2.0}])
    def test_without_a_rank_there_is_none(self, frame: Any) -> None:
        assert decode_batch(pack(frame)) == KVEventBatch(2.0, [])

    @pytest.mark.parametrize("name", ["attn_dp_rank", "data_parallel_rank", "dp_rank"])
    def test_the_rank_of_a_map_has_three_names(self, name: str) -> None:
        assert decode_batch(pack({"ts": 0, "events": [], name: 3})).attn_dp_rank == 3

    def test_rank_0_is_not_no_rank(self) -> None:
        assert decode_batch(pack([0, [], 0])).attn_dp_rank == 0

    def test_what_the_frame_holds_besides_is_counted(self) -> None:
        assert decode_batch(pack([0, [], None, "more", {"and": "more"}])).unread_fields == 2
        assert decode_batch(pack({"ts": 0, "events": [], "more": 1, 5: 6})).unread_fields == 2

    @pytest.mark.parametrize(
        ("frame", "reason", "offset"),
        [
            (5, "batch: expected an array or a map, found an unsigned integer", 0),
            ([], "expected the field ts, found none", 0),
            ([1.0], "expected the field events, found none", 0),
            (["now", []], "ts: expected a number, found a string", 1),
            ([1, {}], "events: expected an array of events, found a map", 2),
            ([1, [], "0"], "attn_dp_rank: expected an integer or nil, found a string", 3),
            ([1, [], 2**63], "attn_dp_rank: expected an integer below 2^63, found 9223372036854775808", 3),
            ({"ts": 0}, "expected the field events, found none", 0),
            ({"ts": 0, "events": [], "dp_rank": 1, "attn_dp_rank": 1}, "expected the field attn_dp_rank once", 22),
        ],
    )
    def test_a_broken_frame_is_refused_even_if_not_strict(self, frame: Any, reason: str, offset: int) -> None:
        with pytest.raises(WireError) as refused:
            decode_batch(pack(frame), strict=False)
        assert refused.value.reason.startswith(reason)
        assert refused.value.offset == offset

    def test_payloads_come_in_any_buffer(self) -> None:
        payload = pack([0, []])
        assert decode_batch(bytearray(payload)) == decode_batch(memoryview(payload)) == decode_batch(payload)
        with pytest.raises(TypeError, match="payload: expected bytes, got <class 'str'>"):
            decode_batch("payload")  # type: ignore[arg-type]


class TestShapes:
    def test_both_shapes_and_an_unknown_tag_in_one_batch(self) -> None:
        """An event of an unknown type is skipped and listed, the known ones around it are read."""
        unheard = ["Unheard", 1]
        cleared = {"type": "AllBlocksCleared"}
        payload = pack([1.5, [["BlockStored", *COMMON], stored_map(cache_salt="x"), unheard, cleared]])
        batch = decode_batch(payload)
        assert [type(event) for event in batch.events] == [BlockStored, BlockStored, AllBlocksCleared]
        [skipped] = batch.skipped
        assert (skipped.code, skipped.offset) == ("unknown-tag", payload.index(pack(unheard)))
        assert "Unheard" in skipped.reason

    @pytest.mark.parametrize("length", range(5, 14))
    def test_arrays_of_5_to_13_elements(self, length: int) -> None:
        slots: list[Any] = [*COMMON, "adapter", [None, ["adapter"]], 1, "sliding_window", 64, "REMOTE"]
        names = [
            *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
            *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality"),
        ]
        fields: dict[str, Any] = dict(zip(names, slots[: length - 1], strict=False))
        assert decode_store(["BlockStored", *slots[: length - 1]]) == BlockStored(**fields)

    def test_ten_slots_of_strings_are_those_of_sglang(self) -> None:
        expected = BlockStored([7, 8], None, [1, 2, 3, 4], 2, medium="GPU")
        assert decode_store(["BlockStored", *COMMON, None, None, None]) == expected
        for name, tail in {
            "cache_salt": ["x", None, None],
            "session_id": [None, "x", None],
            "lora_name": [None, None, "x"],
        }.items():
            assert decode_store(["BlockStored", *COMMON, *tail]) == msgspec.structs.replace(expected, **{name: "x"})

    def test_other_tails_are_those_of_vllm(self) -> None:
        for tail in (["x"], ["x", None], ["x", None, 0], ["x", [["x"], None], None], ["x", None, None, None]):
            store = decode_store(["BlockStored", *COMMON, *tail])
            assert (store.lora_name, store.cache_salt) == ("x", None)

    @pytest.mark.parametrize("tag", ["BlockStored", "BlockStoredWithMetadata"])
    def test_a_map_after_medium_is_metadata(self, tag: str) -> None:
        store = decode_store([tag, *COMMON, {"cache_salt": "x", "later": [1]}])
        assert isinstance(store, BlockStoredWithMetadata)
        assert store.metadata == BlockStoredMetadata("x", {"later": [1]})
        assert store.cache_salt == "x"
        assert decode_store(stored_map(type=tag, metadata={"cache_salt": "x"})).cache_salt == "x"

    def test_elements_after_the_last_known_are_counted(self) -> None:
        store = ["BlockStored", *COMMON, None, None, None, None, None, None, None, "session", "more", ["more"]]
        batch = decode_batch(
            pack([0, [store, ["BlockRemoved", [1], "GPU", 0, None, None, 9], ["AllBlocksCleared", 1]]])
        )
        assert batch.unread_fields == 4
        assert batch.events[0].session_id == "session"  # type: ignore[union-attr]

    def test_unknown_keys_of_maps_are_kept_and_written_back(self) -> None:
        later = {"epoch": 3, "nested": {"a": [None, 1.5, b"x"]}}
        maps = [
            stored_map(**later),
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"} | later,
            {"type": "AllBlocksCleared"} | later,
        ]
        events = decode_events(*maps)
        assert [event.unknown_fields for event in events] == [later] * 3
        assert encode_events(*events) == maps

    def test_the_type_may_come_last(self) -> None:
        fields = stored_map()
        fields["type"] = fields.pop("type")
        assert list(fields)[-1] == "type"
        assert decode_store(fields) == decode_store(stored_map())


class TestValues:
    @pytest.mark.parametrize("value", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63), bytes(31) + b"\x01"])
    def test_a_hash_stays_as_it_came(self, value: int | bytes) -> None:
        """Values above 2^63 survive, and 0 is a hash: only nil means that there is no parent."""
        store = decode_store(["BlockStored", [value], value, [], 1])
        assert (store.block_hashes, store.parent_block_hash) == ([value], value)
        assert type(store.block_hashes[0]) is type(value)
        for dialect in get_args(Dialect):
            assert decode_batch(encode_batch(KVEventBatch(0, [store]), dialect=dialect)).events == [store]

    def test_integers_need_not_be_in_their_smallest_form(self) -> None:
        wide = {5: struct.pack(">BQ", 0xCF, 5), 6: struct.pack(">Bq", 0xD3, 6), 7: struct.pack(">BI", 0xCE, 7)}
        payload = pack([0, [["BlockStored", [5, 7], 6, [6, 5, 7], 7]]])
        for value, form in wide.items():
            payload = payload[:15] + payload[15:].replace(bytes([value]), form)
        assert decode_batch(payload).events == [BlockStored([5, 7], 6, [6, 5, 7], 7)]

    def test_pairs_are_tokens_too(self) -> None:
        """Bigram stores are read and written, not dropped."""
        store = decode_store(["BlockStored", [1], None, [[1, 2], [2, 3], [3, 4]], 3, None])
        assert store.token_ids == [(1, 2), (2, 3), (3, 4)]
        [written] = encode_events(store)
        assert written["token_ids"] == [[1, 2], [2, 3], [3, 4]]

    def test_a_masked_store_keeps_more_tokens_than_its_blocks_have(self) -> None:
        store = decode_store(stored_map(block_hashes=[1, 2], token_ids=list(range(96)), block_size=16))
        assert (len(store.block_hashes), len(store.token_ids)) == (2, 96)

    def test_a_placeholder_store_has_no_tokens(self) -> None:
        store = decode_store(stored_map(block_hashes=[1], token_ids=[], block_size=0, medium="CPU"))
        assert (store.token_ids, store.block_size) == ([], 0)


def test_the_named_dialects_are_those_of_the_core() -> None:
    stub = Path(kvevents.__file__).parent.joinpath("_core/wire.pyi").read_text()
    assert str(list(get_args(Dialect)))[1:-1].replace("'", '"') in stub
    for dialect in get_args(Dialect):
        assert core.encode_batch(KVEventBatch(0, []), dialect=dialect) == b"\x93\xcb" + bytes(8) + b"\x90\xc0"


def test_the_examples_in_the_docstring_hold() -> None:
    results = doctest.testmod(kvevents.wire)
    assert (results.failed, results.attempted) == (0, 3)
