"""`Coalescer`: batches in, one batch out."""

import threading
from typing import Any

import msgspec
import pytest

from kvevents.coalescing import Coalescer
from kvevents.errors import ConfigError, WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    KVEventBatch,
)
from kvevents.wire import decode_batch, encode_batch
from merging import ONE_FIELD_APART
from payloads import pack, stored_map


def batch(*events: KVCacheEvent, ts: float = 1.0, rank: int | None = 0, dialect: Any = "sglang") -> bytes:
    return encode_batch(KVEventBatch(ts, list(events), rank), dialect=dialect)


def stored(hashes: list[Any], parent: Any = None, **fields: Any) -> BlockStored:
    values: dict[str, Any] = {"token_ids": [7] * len(hashes), "block_size": 1, "medium": "GPU"} | fields
    return BlockStored(list(hashes), parent, **values)


def events_of(coalescer: Coalescer) -> list[KVCacheEvent]:
    data = coalescer.take_batch()
    return [] if data is None else decode_batch(data).events


def coalesced(*events: KVCacheEvent, level: Any = "chain", **settings: Any) -> list[KVCacheEvent]:
    """The events, each from a batch of its own, as one batch."""
    coalescer = Coalescer(level, **settings)
    for event in events:
        assert coalescer.add(batch(event)) == []
    return events_of(coalescer)


class TestWindow:
    def test_batches_become_one_with_the_last_time_and_their_rank(self) -> None:
        coalescer = Coalescer()
        coalescer.add(batch(stored([1]), ts=1.0, rank=3))
        coalescer.add(batch(stored([9]), stored([2], 1), ts=2.0, rank=3))
        assert coalescer.pending == 2
        data = coalescer.take_batch()
        assert data is not None
        assert decode_batch(data) == KVEventBatch(2.0, [stored([1, 2]), stored([9])], 3)
        assert (coalescer.pending, coalescer.pending_bytes, coalescer.take_batch()) == (0, 0, None)

    def test_the_time_can_be_given(self) -> None:
        coalescer = Coalescer()
        assert coalescer.take_batch(ts=5.0) is None
        coalescer.add(batch(AllBlocksCleared()))
        data = coalescer.take_batch(ts=5.0)
        assert data is not None
        assert decode_batch(data).ts == 5.0

    def test_batches_without_events_are_nothing(self) -> None:
        coalescer = Coalescer()
        coalescer.add(batch())
        assert coalescer.take_batch() is None
        assert coalescer.stats().batches == 1

    def test_ranks_never_share_a_batch(self) -> None:
        coalescer = Coalescer()
        coalescer.add(batch(stored([1]), rank=0))
        for rank, name in ((1, "rank 1"), (None, "no rank")):
            with pytest.raises(ValueError, match=f"dp_rank: expected rank 0, as in the batches before, got {name}"):
                coalescer.add(batch(stored([2], 1), rank=rank))
        assert events_of(coalescer) == [stored([1])]
        with pytest.raises(ValueError, match="expected rank 0"):
            coalescer.add(batch(rank=1))

    def test_pending_bytes_are_those_of_the_batch(self) -> None:
        coalescer = Coalescer()
        parent = None
        for block in range(1000, 3000):
            coalescer.add(batch(stored([block], parent), BlockRemoved([block + 5000], "GPU", 1)))
            parent = block
        pending = coalescer.pending_bytes
        data = coalescer.take_batch()
        assert data is not None
        assert abs(pending - len(data)) < 100

    def test_the_cap_bounds_blocks_and_bytes(self) -> None:
        chain = [stored([block], block - 1) for block in range(1, 30)]
        blocks = [len(event.block_hashes) for event in coalesced(*chain, max_event_blocks=10)]  # type: ignore[union-attr]  # stores
        assert blocks == [10, 10, 9]
        for event in coalesced(*chain, max_event_bytes=130):
            assert len(batch(event)) < 150

    def test_nothing_of_what_is_no_batch_is_added(self) -> None:
        coalescer = Coalescer()
        data = batch(stored([1]), stored([9]))
        for broken in (b"", data[:-3], data + b"\0", b"\xc1"):
            with pytest.raises(WireError):
                coalescer.add(broken)
        assert coalescer.stats().batches == coalescer.pending == 0

    def test_stats_count_what_came_and_what_goes(self) -> None:
        coalescer = Coalescer("compact", from_start=True)
        coalescer.add(batch(stored([1]), stored([2], 1), BlockRemoved([2], "GPU")))
        assert coalescer.stats().coalesced_events == 2
        coalescer.take_batch()
        stats = coalescer.stats()
        assert (stats.batches, stats.events, stats.coalesced_events, stats.cancelled_blocks) == (1, 3, 1, 2)
        assert "cancelled_blocks=2" in repr(stats)

    @pytest.mark.parametrize(
        ("settings", "message"), [({"coalesce": "x"}, "coalesce: "), ({"dialect": "x"}, "dialect: ")]
    )
    def test_settings_are_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Coalescer(**settings)

    def test_threads_may_share_it(self) -> None:
        coalescer = Coalescer("chain")

        def add(start: int) -> None:
            for block in range(start + 1, start + 100):
                coalescer.add(batch(stored([block], block - 1)))

        threads = [threading.Thread(target=add, args=(start,)) for start in (1000, 2000, 3000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(len(event.block_hashes) for event in events_of(coalescer)) == [99, 99, 99]  # type: ignore[union-attr]  # stores


class TestEvents:
    @pytest.mark.parametrize("fields", ONE_FIELD_APART, ids=lambda fields: next(iter(fields)))
    def test_every_field_goes_on_and_keeps_stores_apart_that_differ_in_it(self, fields: dict[str, Any]) -> None:
        events: list[KVCacheEvent] = [stored([1, 2]), stored([3], 2, **fields)]
        assert coalesced(*events) == events
        one, two = stored([1], **fields | {"token_ids": [7] * fields.get("block_size", 1)}), stored([2], 1, **fields)
        if "token_ids" not in fields:
            (both,) = coalesced(one, two)
            assert isinstance(both, BlockStored)
            assert both.block_hashes == [1, 2]
            name, value = next(iter(fields.items()))
            assert getattr(both, name) == (value * 2 if name == "extra_keys" else value)

    @pytest.mark.parametrize("parent", [b"\0" * 31 + b"\2", 3, None])
    def test_a_store_continues_the_same_hash_in_the_same_form_only(self, parent: Any) -> None:
        assert len(coalesced(stored([1, 2]), stored([3], parent))) == 2

    def test_hashes_of_any_form_keep_it(self) -> None:
        digest = bytes(range(32))
        for first, second in ((digest, digest[::-1]), (-5, -6), ((1 << 64) - 1, (1 << 64) - 2)):
            assert coalesced(stored([first]), stored([second], first)) == [stored([first, second])]

    def test_a_hash_in_another_form_is_not_passed(self) -> None:
        events: list[KVCacheEvent] = [BlockRemoved([8], "GPU"), stored([-1]), BlockRemoved([(1 << 64) - 1], "GPU")]
        assert coalesced(*events) == events

    def test_a_masked_store_takes_no_successor(self) -> None:
        masked = stored([1, 3], block_size=32, token_ids=[7] * 96)
        follower = stored([4], 3, block_size=32, token_ids=[7] * 32)
        assert coalesced(masked, follower) == [masked, follower]
        later = stored([5, 7], 4, block_size=32, token_ids=[7] * 96)
        assert coalesced(follower, later) == [follower, later]

    def test_extra_keys_that_are_not_one_a_block_are_not_joined(self) -> None:
        events: list[KVCacheEvent] = [stored([1], extra_keys=[None, None]), stored([2], 1, extra_keys=[None])]
        assert coalesced(*events) == events

    def test_pairs_stay_pairs(self) -> None:
        one, two = stored([1], token_ids=[(1, 2)]), stored([2], 1, token_ids=[(2, 3)])
        assert coalesced(one, two) == [stored([1, 2], token_ids=[(1, 2), (2, 3)])]

    def test_the_earlier_form_goes_on(self) -> None:
        fields: dict[str, Any] = {"medium": "GPU", "metadata": BlockStoredMetadata("salt", {"new": 1})}
        one = BlockStoredWithMetadata([1], None, [7], 1, **fields)
        two = BlockStoredWithMetadata([2], 1, [8], 1, **fields)
        assert coalesced(one, two) == [BlockStoredWithMetadata([1, 2], None, [7, 8], 1, **fields)]

    @pytest.mark.parametrize("dialect", ["sglang", "sglang-array", "vllm", "vllm-array"])
    def test_events_are_written_as_the_dialect_says(self, dialect: Any) -> None:
        event = stored([1], session_id="s", lora_name="adapter")
        coalescer = Coalescer("off", dialect=dialect)
        coalescer.add(batch(event, AllBlocksCleared(), BlockRemoved([1], "GPU")))
        expected = encode_batch(
            KVEventBatch(1.0, [event, AllBlocksCleared(), BlockRemoved([1], "GPU")], 0), dialect=dialect
        )
        assert coalescer.take_batch() == expected

    def test_what_a_dialect_has_no_place_for_is_refused_whole(self) -> None:
        coalescer = Coalescer(dialect="sglang-array")
        with pytest.raises(ValueError, match="group_idx: the dialect sglang-array has no place for it"):
            coalescer.add(batch(stored([1]), stored([5], group_idx=1)))
        assert (coalescer.pending, coalescer.stats().batches) == (0, 0)

    def test_dialects_may_be_mixed(self) -> None:
        coalescer = Coalescer()
        coalescer.add(batch(stored([1]), dialect="sglang-array"))
        coalescer.add(batch(stored([2], 1), dialect="vllm"))
        assert events_of(coalescer) == [stored([1, 2])]


UNKNOWN: dict[str, Any] = {"type": "BlockMoved", "to": "moon"}
UNUSABLE = stored_map(block_size="2")


class TestUnreadEvents:
    def payload(self, *events: Any) -> bytes:
        maps = [event if isinstance(event, dict) else pack_event(event) for event in events]
        return pack([1.0, maps, 0])

    @pytest.mark.parametrize(("event", "code"), [(UNKNOWN, "unknown-tag"), (UNUSABLE, "wrong-type")])
    def test_they_go_on_in_their_place_and_nothing_moves_past_them(self, event: dict[str, Any], code: str) -> None:
        coalescer = Coalescer()
        skipped = coalescer.add(self.payload(stored([1]), event, stored([2], 1), stored([3], 2), event))
        assert [(item.code) for item in skipped] == [code, code]
        data = coalescer.take_batch()
        assert data is not None
        read = decode_batch(data, strict=False)
        assert read.events == [stored([1]), stored([2, 3], 1)]
        assert [item.code for item in read.skipped] == [code, code]
        assert data.count(pack(event)) == 2
        assert coalescer.stats().unread_events == 2

    def test_batches_that_are_maps_too(self) -> None:
        coalescer = Coalescer()
        coalescer.add(pack({"ts": 1.0, "dp_rank": 0, "events": [UNKNOWN, pack_event(stored([1]))]}))
        data = coalescer.take_batch()
        assert data is not None
        assert data.index(b"moon") < data.index(b"BlockStored")

    @pytest.mark.parametrize(("event", "left"), [(UNKNOWN, 0), (UNUSABLE, 2)])
    def test_after_an_event_that_who_knows_who_reads_nothing_is_cancelled(
        self, event: dict[str, Any], left: int
    ) -> None:
        coalescer = Coalescer("compact", from_start=True)
        coalescer.add(self.payload(event))
        coalescer.take_batch()
        coalescer.add(self.payload(stored([1]), BlockRemoved([1], "GPU")))
        assert len(events_of(coalescer)) == left
        coalescer.add(self.payload(AllBlocksCleared(), stored([1]), BlockRemoved([1], "GPU")))
        assert events_of(coalescer) == [AllBlocksCleared()]

    def test_values_that_cannot_go_on_are_counted(self) -> None:
        coalescer = Coalescer()
        coalescer.add(pack([1.0, [["BlockRemoved", [1], "GPU", 0, None, None, "later"]], 0, "more"]))
        assert coalescer.stats().unread_fields == 2


class TestCompact:
    def test_pairs_extra_keys_and_digests_are_cut_with_their_blocks(self) -> None:
        digests = [bytes([block]) * 32 for block in range(4)]
        event = stored(
            digests,
            block_size=2,
            token_ids=[(token, token + 1) for token in range(8)],
            extra_keys=[["image", 1], None, [["deep", [2]]], None],
        )
        (left,) = coalesced(event, BlockRemoved([*digests[2:]], "GPU"), level="compact", from_start=True)
        assert left == stored(
            digests[:2], block_size=2, token_ids=[(0, 1), (1, 2), (2, 3), (3, 4)], extra_keys=[["image", 1], None]
        )

    def test_the_rest_continues_what_is_left(self) -> None:
        events: list[KVCacheEvent] = [stored([1, 2, 3]), BlockRemoved([9, 3], "GPU"), stored([4], 2)]
        assert coalesced(*events, level="compact", from_start=True) == [stored([1, 2, 4]), BlockRemoved([9], "GPU")]

    def test_a_stream_joined_late_is_only_merged_up_to_its_first_clear(self) -> None:
        events: list[KVCacheEvent] = [stored([1]), BlockRemoved([1], "GPU")]
        assert coalesced(*events, level="compact") == events
        assert coalesced(AllBlocksCleared(), *events, level="compact") == [AllBlocksCleared()]

    def test_masked_stores_and_removals_without_a_tier_cancel_nothing(self) -> None:
        pairs: list[list[KVCacheEvent]] = [
            [stored([1], token_ids=[7, 7]), BlockRemoved([1], "GPU")],
            [stored([1]), BlockRemoved([1], None)],
        ]
        for events in pairs:
            assert coalesced(*events, level="compact", from_start=True) == events

    def test_tokens_that_were_not_said_before_are_said(self) -> None:
        coalescer = Coalescer("compact", from_start=True)
        coalescer.add(batch(stored([1], medium="CPU", token_ids=[], block_size=0)))
        coalescer.take_batch()
        events: list[KVCacheEvent] = [BlockRemoved([1], "CPU"), stored([1], medium="CPU")]
        coalescer.add(batch(*events))
        assert events_of(coalescer) == events

    def test_names_of_one_tier_are_one_tier(self) -> None:
        events: list[KVCacheEvent] = [stored([1], medium="cpu"), BlockRemoved([1], "CPU_PINNED")]
        assert coalesced(*events, level="compact", from_start=True) == []


def pack_event(event: KVCacheEvent) -> Any:
    """The event as a schema-less map."""
    return msgspec.to_builtins(event)
