import array
import threading
import time
from typing import Any

import msgspec
import pytest

from kvevents.errors import ConfigError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVCacheEvent,
    StorageMedium,
)
from kvevents.hashing import HashChain, block_hashes
from kvevents.recorder import EventRecorder, KVCacheEventMixin
from kvevents.wire import decode_batch
from merging import ONE_FIELD_APART


def shape(events: list[Any]) -> list[tuple[str, int]]:
    """Type and number of blocks of each event."""
    return [(type(event).__name__, len(getattr(event, "block_hashes", []))) for event in events]


def stored(hashes: list[Any], parent: int | None = None, **fields: Any) -> BlockStored:
    """A store of blocks of one token, its tokens the hashes."""
    values: dict[str, Any] = {"token_ids": list(hashes), "block_size": 1, "medium": "GPU"} | fields
    return BlockStored(list(hashes), parent, **values)


def ids_of(tokens: Any, **namespace: Any) -> list[int | bytes]:
    """Ids of the pages of two tokens, as announced."""
    return [*block_hashes(tokens, 2, **namespace)]


class TestMergeRule:
    """Every event that goes through `_enqueue_kv_event`."""

    def queue(self, *events: KVCacheEvent) -> list[KVCacheEvent]:
        engine = Engine()
        for event in events:
            engine._enqueue_kv_event(event)
        return engine.take_events()

    def test_chained_stores_become_one_event(self) -> None:
        (event,) = self.queue(stored([1, 2], parent=9), stored([3], parent=2), stored([4, 5], parent=3))
        assert event == stored([1, 2, 3, 4, 5], parent=9)

    def test_removals_from_one_tier_become_one_event(self) -> None:
        assert self.queue(BlockRemoved([1], "GPU"), BlockRemoved([7, 3], "GPU")) == [BlockRemoved([1, 7, 3], "GPU")]

    @pytest.mark.parametrize("fields", ONE_FIELD_APART, ids=lambda fields: next(iter(fields)))
    def test_stores_that_differ_in_one_field_stay_apart(self, fields: dict[str, Any]) -> None:
        assert len(self.queue(stored([1, 2]), stored([3], parent=2, **fields))) == 2

    @pytest.mark.parametrize("parent", [None, 1, 3, 0, b"2"])
    def test_a_broken_chain_stays_apart(self, parent: Any) -> None:
        assert len(self.queue(stored([1, 2]), stored([3], parent=parent))) == 2

    def test_block_zero_is_a_parent_like_others(self) -> None:
        assert len(self.queue(stored([1, 0]), stored([3], parent=0))) == 1

    @pytest.mark.parametrize(
        "other",
        [
            BlockRemoved([2], "CPU_PINNED"),
            BlockRemoved([2], None),
            BlockRemoved([2], "GPU", group_idx=0),
            BlockRemoved([2], "GPU", unknown_fields={"new": 1}),
        ],
    )
    def test_removals_that_differ_stay_apart(self, other: BlockRemoved) -> None:
        assert len(self.queue(BlockRemoved([1], "GPU"), other)) == 2

    def test_unaligned_stores_never_merge(self) -> None:
        masked = stored([1, 2], block_size=32, token_ids=list(range(96)))
        follower = stored([3], parent=2, block_size=32, token_ids=list(range(32)))
        assert len(self.queue(masked, follower)) == 2
        masked = stored([4], parent=3, block_size=32, token_ids=list(range(64)))
        assert len(self.queue(follower, masked)) == 2

    def test_a_store_without_hashes_takes_nothing(self) -> None:
        assert len(self.queue(stored([]), stored([1]))) == 2

    def test_extra_keys_are_joined_block_by_block(self) -> None:
        (event,) = self.queue(
            stored([1, 2], extra_keys=[["m"], None]), stored([3], parent=2, extra_keys=[["image", 0]])
        )
        assert isinstance(event, BlockStored)
        assert event.extra_keys == [["m"], None, ["image", 0]]

    def test_types_of_one_shape_stay_apart(self) -> None:
        earlier = BlockStoredWithMetadata([2], 1, [2], 1, medium="GPU", metadata=BlockStoredMetadata())
        assert len(self.queue(stored([1]), earlier)) == 2
        follower = BlockStoredWithMetadata([3], 2, [3], 1, medium="GPU", metadata=BlockStoredMetadata())
        assert len(self.queue(earlier, follower)) == 1

    def test_a_clear_is_a_barrier(self) -> None:
        events = self.queue(BlockRemoved([1], "GPU"), AllBlocksCleared(), AllBlocksCleared(), BlockRemoved([2], "GPU"))
        assert shape(events) == [
            ("BlockRemoved", 1),
            ("AllBlocksCleared", 0),
            ("AllBlocksCleared", 0),
            ("BlockRemoved", 1),
        ]

    def test_order_is_kept(self) -> None:
        events = self.queue(BlockRemoved([8], "GPU"), stored([5]), BlockRemoved([5], "GPU"))
        assert events == [BlockRemoved([8], "GPU"), stored([5]), BlockRemoved([5], "GPU")]

    def test_what_is_no_struct_merges_with_nothing(self) -> None:
        events: list[Any] = [object(), object(), BlockRemoved([1]), object()]
        assert self.queue(*events) == events

    def test_an_event_that_is_none_stands_in_nobodys_way(self) -> None:
        nonsense: Any = BlockStored(None, None, None, None)  # type: ignore[arg-type]
        events = [stored([1]), nonsense, stored([2], parent=1), stored([3], parent=2)]
        assert self.queue(*events) == [stored([1]), nonsense, stored([2, 3], parent=1)]

    @pytest.mark.parametrize("kind", [tuple, lambda values: array.array("q", values)], ids=["tuples", "arrays"])
    def test_an_engines_own_sequences_are_joined_like_lists(self, kind: Any) -> None:
        first, second = stored([1], token_ids=kind([1])), stored([2], parent=1, token_ids=kind([2]))
        first.block_hashes, second.block_hashes = kind([1]), kind([2])
        assert self.queue(first, second, BlockRemoved(kind([1]), "GPU"), BlockRemoved(kind([2]), "GPU")) == [
            stored([1, 2]),
            BlockRemoved([1, 2], "GPU"),
        ]


class Node:
    def __init__(self, parent: "Node | None", key: Any) -> None:
        self.parent = parent
        self.key = key
        self.hash_value: list[str] | None = None


class Key:
    def __init__(self, token_ids: Any, **fields: Any) -> None:
        self.token_ids = token_ids
        vars(self).update(fields)


class Engine(KVCacheEventMixin):
    def __init__(self, *, page_size: int = 2, enabled: bool = True) -> None:
        self.enable_kv_cache_events = enabled
        self.kv_event_queue: list[KVCacheEvent] = []
        self.page_size = page_size


ROOT = Node(None, [])


class TestMixin:
    def test_a_node_announces_its_pages_under_the_last_block_above(self) -> None:
        engine = Engine()
        first = Node(ROOT, [1, 2, 3, 4])
        second = Node(first, [5, 6])
        engine._record_store_event(first)
        engine.take_events()
        engine._record_store_event(second, session_id="s")
        ids = ids_of([1, 2, 3, 4, 5, 6])
        assert engine.take_events() == [BlockStored(ids[2:], ids[1], [5, 6], 2, medium="GPU", session_id="s")]
        assert engine.take_events() == []

    @pytest.mark.parametrize("tokens", [[1, 2], (1, 2), array.array("q", [1, 2]), memoryview(array.array("I", [1, 2]))])
    def test_keys_are_any_sequence_or_buffer(self, tokens: Any) -> None:
        for key in (tokens, Key(tokens)):
            engine = Engine()
            engine._record_store_event(Node(ROOT, key))
            assert engine.take_events() == [BlockStored(ids_of([1, 2]), None, [1, 2], 2, medium="GPU")]

    def test_a_last_page_that_is_not_whole_is_an_event_of_its_own(self) -> None:
        engine = Engine()
        engine._record_store_event(Node(ROOT, [1, 2, 3]))
        whole, partial = engine.take_events()
        assert isinstance(whole, BlockStored)
        assert isinstance(partial, BlockStored)
        assert (whole.token_ids, whole.block_size) == ([1, 2], 2)
        assert (partial.token_ids, partial.block_size, partial.parent_block_hash) == ([3], 1, whole.block_hashes[0])

    def test_hashes_above_are_computed_once_and_never_again(self) -> None:
        engine = Engine()
        first = Node(ROOT, [1, 2])
        second = Node(first, [3, 4])
        third = Node(second, [5, 6])
        engine._record_store_event(third)
        kept = first.hash_value, second.hash_value
        assert None not in kept
        first.key = second.key = None  # nothing reads them any more
        engine._record_store_event(Node(third, [7, 8]))
        assert (first.hash_value, second.hash_value) == kept
        (event,) = engine.take_events()
        assert isinstance(event, BlockStored)
        assert event.block_hashes == list(block_hashes(range(1, 9), 2))[2:]

    def test_a_split_slices_the_digests(self) -> None:
        engine = Engine()
        node = Node(ROOT, [1, 2, 3, 4])
        engine._record_store_event(node)
        assert node.hash_value is not None
        head = Node(ROOT, [1, 2])
        head.hash_value, node.hash_value = node.hash_value[:1], node.hash_value[1:]
        node.parent, node.key = head, [3, 4]
        engine.take_events()
        engine._record_remove_event(node)
        engine._record_remove_event(head)
        ids = ids_of([1, 2, 3, 4])
        assert engine.take_events() == [BlockRemoved([ids[1], ids[0]], "GPU")]

    @pytest.mark.parametrize("pages", [1, 3])
    def test_a_split_that_forgot_the_digests_is_found_out(self, pages: int) -> None:
        engine = Engine()
        node = Node(ROOT, [1, 2, 3, 4])
        engine._record_store_event(node)
        engine.take_events()
        node.key = list(range(2 * pages))
        for record in (engine._record_store_event, engine._record_remove_event):
            with pytest.raises(ValueError, match=f"hash_value: expected {pages} digests, .*, got 2"):
                record(node)
        assert engine.take_events() == []

    def test_tiers_are_named_by_the_caller(self) -> None:
        engine = Engine()
        node = Node(ROOT, [1, 2])
        engine._record_store_event(node, StorageMedium.CPU)
        engine._record_remove_event(node, "DISK")
        assert [event.medium for event in engine.take_events() if not isinstance(event, AllBlocksCleared)] == [
            "CPU_PINNED",
            "DISK",
        ]

    def test_bigrams_carry_pairs(self) -> None:
        engine = Engine()
        node = Node(ROOT, Key([1, 2, 3], is_bigram=True))
        engine._record_store_event(node)
        engine._record_store_event(Node(node, Key([3, 4, 5], is_bigram=True)))
        (event,) = engine.take_events()
        assert isinstance(event, BlockStored)
        assert event.token_ids == [(1, 2), (2, 3), (3, 4), (4, 5)]
        assert event.block_hashes == list(block_hashes([1, 2, 3, 4, 5], 2, bigram=True))

    def test_the_root_and_empty_nodes_say_nothing(self) -> None:
        engine = Engine()
        for node in (ROOT, Node(ROOT, [])):
            engine._record_store_event(node)
            engine._record_remove_event(node)
        assert engine.take_events() == []

    def test_a_late_name_waits_until_the_unnamed_pages_are_gone(self) -> None:
        engine = Engine()
        names: dict[str, str] = {}
        engine.kv_event_lora_names = names
        node = Node(ROOT, Key([1, 2], extra_key="k"))
        plain = ids_of([1, 2])
        engine._record_store_event(node)
        names["k"] = "late"
        engine._record_remove_event(node)
        engine._record_store_event(node)
        before, removal, after = engine.take_events()
        assert before == BlockStored(list(plain), None, [1, 2], 2, medium="GPU")
        assert removal == BlockRemoved(list(plain), "GPU")
        assert isinstance(after, BlockStored)
        assert after.lora_name == "late"
        assert after.block_hashes == list(block_hashes([1, 2], 2, extra_key="k", named=True))

    def test_disabled_does_nothing(self) -> None:
        engine = Engine(enabled=False)
        node = Node(ROOT, [1, 2])
        engine._record_store_event(node)
        engine._record_remove_event(node)
        engine._record_all_cleared_event()
        engine._enqueue_kv_event(AllBlocksCleared())
        assert (engine.take_events(), node.hash_value) == ([], None)

    def test_a_negative_token_changes_nothing(self) -> None:
        engine = Engine()
        node = Node(ROOT, [1, -2])
        with pytest.raises(ValueError, match="got -2"):
            engine._record_store_event(node)
        assert (engine.take_events(), node.hash_value) == ([], None)


def chain_of(tokens: Any, **namespace: Any) -> HashChain:
    return HashChain.root(2, **namespace).extend(tokens)


class TestEventRecorder:
    def test_a_chain_stored_in_steps_is_one_event_with_the_first_parent(self) -> None:
        recorder = EventRecorder(2)
        first = chain_of([1, 2])
        recorder.store(first, [1, 2])
        recorder.take()
        second = first.extend([3, 4])
        third = second.extend([5, 6, 7, 8])
        recorder.store(second, [3, 4])
        recorder.store(third, [5, 6, 7, 8])
        ids = ids_of(range(1, 9))
        assert recorder.take() == [BlockStored(ids[1:], ids[0], [3, 4, 5, 6, 7, 8], 2, medium="GPU")]
        assert recorder.take() == []
        assert recorder.take_batch() is None

    def test_removals_of_one_tier_become_one_event(self) -> None:
        recorder = EventRecorder(2)
        chain = chain_of([1, 2, 3, 4])
        recorder.remove(chain)
        recorder.remove(chain_of([5, 6]))
        recorder.remove(chain, medium=StorageMedium.CPU)
        ids: list[int | bytes] = [*chain.ids, *chain_of([5, 6]).ids]
        assert recorder.take() == [BlockRemoved(ids, "GPU"), BlockRemoved(ids[:2], "CPU_PINNED")]

    @pytest.mark.parametrize(
        ("namespace", "options"),
        [({}, {"medium": "CPU_PINNED"}), ({}, {"session_id": "s"}), ({"bigram": True}, {}), ({"extra_key": "n"}, {})],
    )
    def test_what_differs_stays_apart(self, namespace: dict[str, Any], options: dict[str, Any]) -> None:
        recorder = EventRecorder(2, lora_names={"n": "adapter"})
        first = chain_of([1, 2])
        recorder.store(first, [1, 2])
        if namespace:
            tokens = [1, 2, 3] if "bigram" in namespace else [1, 2]
            recorder.store(chain_of(tokens, **namespace), tokens, **options)
        else:
            recorder.store(first.extend([3, 4]), [3, 4], **options)
        assert len(recorder.take()) == 2

    def test_order_is_kept_and_a_clear_is_a_barrier(self) -> None:
        recorder = EventRecorder(2)
        held, fresh = chain_of([8, 8]), chain_of([5, 5])
        recorder.remove(held)
        recorder.store(fresh, [5, 5])
        recorder.remove(fresh)
        recorder.clear()
        recorder.remove(held)
        assert shape(recorder.take()) == [
            ("BlockRemoved", 1),
            ("BlockStored", 1),
            ("BlockRemoved", 1),
            ("AllBlocksCleared", 0),
            ("BlockRemoved", 1),
        ]

    def test_level_off_keeps_every_event(self) -> None:
        recorder = EventRecorder(2, coalesce="off")
        first = chain_of([1, 2])
        recorder.store(first, [1, 2])
        recorder.store(first.extend([3, 4]), [3, 4])
        assert shape(recorder.take()) == [("BlockStored", 1), ("BlockStored", 1)]

    def test_a_batch_has_what_the_caller_says_and_the_time(self) -> None:
        recorder = EventRecorder(2)
        recorder.clear()
        data = recorder.take_batch(ts=12.5, dp_rank=None)
        assert data is not None
        assert (decode_batch(data).ts, decode_batch(data).attn_dp_rank) == (12.5, None)
        before = time.time()
        recorder.clear()
        data = recorder.take_batch()
        assert data is not None
        assert before - 1 <= decode_batch(data).ts <= time.time() + 1
        assert decode_batch(data).attn_dp_rank == 0

    def test_an_unknown_dialect_takes_nothing(self) -> None:
        recorder = EventRecorder(2)
        recorder.clear()
        with pytest.raises(ConfigError, match=r'dialect: expected one of sglang, .*"trtllm"'):
            recorder.take_batch(dialect="trtllm")  # type: ignore[arg-type]  # what is tested
        assert recorder.pending == 1

    @pytest.mark.parametrize("tokens", [[1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], []])
    def test_tokens_must_be_those_of_the_chain(self, tokens: list[int]) -> None:
        recorder = EventRecorder(2)
        with pytest.raises(ValueError, match=f"expected 4, those of the chain's 2 pages, got {len(tokens)}"):
            recorder.store(chain_of([1, 2, 3, 4]), tokens)
        assert recorder.take() == []
        assert recorder.stats().stored_pages == 0

    def test_a_chain_of_another_page_size_is_refused(self) -> None:
        recorder = EventRecorder(4)
        with pytest.raises(ConfigError, match="expected pages of 4, as the recorder was made for, got pages of 2"):
            recorder.store(chain_of([1, 2]), [1, 2])
        with pytest.raises(ConfigError, match="expected pages of 4"):
            recorder.remove(chain_of([1, 2]))

    def test_an_empty_chain_says_nothing(self) -> None:
        recorder = EventRecorder(2)
        recorder.store(chain_of([]), [])
        recorder.remove(chain_of([]))
        assert recorder.take() == []

    def test_disabled_every_call_is_a_no_op(self) -> None:
        recorder = EventRecorder(2, enabled=False)
        recorder.store(chain_of([1, 2]), [-1])
        recorder.remove(chain_of([1, 2]))
        recorder.clear()
        assert (recorder.enabled, recorder.take(), recorder.take_batch()) == (False, [], None)
        assert recorder.stats().recorded_events == 0

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"coalesce": "all"}, 'coalesce: expected one of off, adjacent, chain, compact, got "all"'),
            ({"event_format": "x"}, 'event_format: expected one of default, dynamo, got "x"'),
            ({"lora_names": ["adapter"]}, "lora_names: expected a mapping, got <class 'list'>"),
            ({"page_size": 0}, "page_size: expected at least 1, got 0"),
        ],
    )
    def test_settings_are_checked(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            EventRecorder(**{"page_size": 2} | settings)

    def test_the_cap_bounds_merged_events_and_leaves_single_ones_whole(self) -> None:
        recorder = EventRecorder(2, max_event_blocks=2)
        chain = HashChain.root(2)
        for pages in (3, 1, 1, 1):
            tokens = range(2 * pages)
            chain = chain.extend(tokens)
            recorder.store(chain, tokens)
        assert shape(recorder.take()) == [("BlockStored", 3), ("BlockStored", 2), ("BlockStored", 1)]

    def test_many_pages_are_recorded_like_few(self) -> None:
        tokens = array.array("I", range(1000))
        chain = chain_of(tokens)
        recorder = EventRecorder(2)
        recorder.store(chain, tokens)
        recorder.remove(chain)
        store, removal = recorder.take()
        assert isinstance(store, BlockStored)
        assert isinstance(removal, BlockRemoved)
        assert store.token_ids == list(tokens)
        assert store.block_hashes == removal.block_hashes == list(chain.ids)

    def test_stats_count_before_and_after_merging(self) -> None:
        recorder = EventRecorder(2)
        first = chain_of([1, 2])
        recorder.store(first, [1, 2])
        recorder.store(first.extend([3, 4]), [3, 4])
        recorder.remove(first)
        stats = recorder.stats()
        assert (stats.stored_pages, stats.removed_pages) == (2, 1)
        assert (stats.recorded_events, stats.coalesced_events) == (3, 2)
        data = recorder.take_batch()
        assert data is not None
        assert abs(stats.coalesced_bytes - len(data)) < 20
        assert stats.recorded_bytes > stats.coalesced_bytes
        assert "recorded_events=3" in repr(stats)


class TestVllmDialects:
    """What `take_batch` writes for consumers of vLLM's events."""

    def maps(self, recorder: EventRecorder, dialect: Any = "vllm") -> list[Any]:
        data = recorder.take_batch(dialect=dialect)
        assert data is not None
        events: list[Any] = msgspec.msgpack.decode(data)[1]
        return events

    def test_ids_are_unsigned_and_fields_are_those_of_vllm(self) -> None:
        recorder = EventRecorder(2)
        chain = chain_of(range(40))
        assert min(chain.ids) < 0
        first, rest = chain.split(1)
        recorder.store(first, [0, 1])
        recorder.remove(rest)
        ids = [block % (1 << 64) for block in chain.ids]
        assert self.maps(recorder) == [
            {
                "type": "BlockStored",
                "block_hashes": ids[:1],
                "parent_block_hash": None,
                "token_ids": [0, 1],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [None],
            },
            {"type": "BlockRemoved", "block_hashes": ids[1:], "medium": "GPU"},
        ]

    def test_the_salt_is_an_extra_key_of_the_first_block_and_the_adapter_one_of_each(self) -> None:
        recorder = EventRecorder(2, lora_names={"k": "adapter"})
        chain = chain_of([1, 2, 3, 4], extra_key="k", cache_salt="salt")
        recorder.store(chain, [1, 2, 3, 4])
        recorder.store(chain.extend([5, 6]), [5, 6], session_id="s")
        first, second = self.maps(recorder)
        assert (first["lora_name"], first["extra_keys"]) == ("adapter", [["adapter", "salt"], ["adapter"]])
        assert (second["lora_name"], second["extra_keys"], second["session_id"]) == ("adapter", [["adapter"]], "s")
        assert "cache_salt" not in first

    def test_a_salt_alone_is_said_once(self) -> None:
        recorder = EventRecorder(2)
        chain = chain_of([1, 2, 3, 4], cache_salt="salt")
        recorder.store(chain, [1, 2, 3, 4])
        (event,) = self.maps(recorder)
        assert event["extra_keys"] == [["salt"], None]

    def test_arrays_have_the_slots_of_vllm(self) -> None:
        recorder = EventRecorder(2)
        recorder.store(chain_of([1, 2], cache_salt="salt"), [1, 2])
        recorder.clear()
        store, clear = self.maps(recorder, "vllm-array")
        assert store[0] == "BlockStored"
        assert store[2:] == [None, [1, 2], 2, None, "GPU", None, [["salt"]], None, None, None]
        assert clear == ["AllBlocksCleared"]


class TestNames:
    def test_default_format_wraps_where_the_exact_extra_key_is_named(self) -> None:
        names = {"k": "adapter"}
        recorder = EventRecorder(2, lora_names=names)
        named, other = chain_of([1, 2], extra_key="k"), chain_of([1, 2], extra_key="x" * 32 + "k")
        recorder.store(named, [1, 2])
        recorder.store(other, [1, 2])
        ids = ids_of([1, 2], extra_key="k", named=True)
        assert recorder.take() == [
            BlockStored(list(ids), None, [1, 2], 2, medium="GPU", lora_name="adapter"),
            BlockStored([*other.ids], None, [1, 2], 2, medium="GPU"),
        ]
        assert list(recorder.announced_ids(named)) == ids

    def test_dynamo_format_wraps_and_names_by_the_last_32_characters_too(self) -> None:
        adapter = "é" * 31 + "1"
        recorder = EventRecorder(2, event_format="dynamo", lora_names={adapter: "by-id", "pre" + "é" * 32: "exact"})
        keys = ["prefix" + adapter, adapter, "pre" + "é" * 32, "short", "prefix" + "x" * 32]
        chains = [chain_of([1, 2], extra_key=key) for key in keys]
        for chain in chains:
            recorder.store(chain, [1, 2])
        events = [event for event in recorder.take() if isinstance(event, BlockStored)]
        assert [event.lora_name for event in events] == ["by-id", "by-id", "exact", None, None]
        for event, key in zip(events, keys, strict=True):
            assert event.block_hashes == list(block_hashes([1, 2], 2, extra_key=key, event_format="dynamo"))

    def test_parents_are_wrapped_alike(self) -> None:
        recorder = EventRecorder(2, event_format="dynamo")
        first = chain_of([1, 2], cache_salt="s")
        recorder.store(first, [1, 2])
        recorder.take()
        recorder.store(first.extend([3, 4]), [3, 4])
        (event,) = recorder.take()
        assert isinstance(event, BlockStored)
        assert event.parent_block_hash == recorder.announced_ids(first)[0] != first.ids[0]
        assert event.cache_salt == "s"

    def test_a_late_name_changes_no_removal(self) -> None:
        names: dict[str, str] = {}
        recorder = EventRecorder(2, lora_names=names)
        chain = chain_of([1, 2], extra_key="k")
        recorder.store(chain, [1, 2])
        recorder.store(chain, [1, 2], medium="CPU_PINNED")
        names["k"] = "late"
        recorder.remove(chain)
        assert list(recorder.announced_ids(chain)) == list(chain.ids)
        recorder.remove(chain, medium="CPU_PINNED")
        recorder.store(chain, [1, 2])
        *before, after = recorder.take()
        for event in before:
            assert isinstance(event, BlockStored | BlockRemoved)
            assert event.block_hashes == list(chain.ids)
        assert isinstance(after, BlockStored)
        assert after.lora_name == "late"

    def test_a_clear_lets_a_late_name_in(self) -> None:
        names: dict[str, str] = {}
        recorder = EventRecorder(2, lora_names=names)
        chain = chain_of([1, 2], extra_key="k")
        recorder.store(chain, [1, 2])
        names["k"] = "late"
        recorder.clear()
        assert list(recorder.announced_ids(chain)) != list(chain.ids)


class TestThreads:
    def test_nothing_is_lost_between_threads(self) -> None:
        recorder = EventRecorder(2)
        tokens = array.array("I", range(400))
        chain = chain_of(tokens)
        batches: list[bytes] = []
        done = threading.Event()

        def record() -> None:
            for _ in range(50):
                recorder.store(chain, tokens)
                recorder.remove(chain)

        def take() -> None:
            while not done.is_set():
                if (data := recorder.take_batch()) is not None:
                    batches.append(data)

        taker = threading.Thread(target=take)
        recorders = [threading.Thread(target=record) for _ in range(3)]
        taker.start()
        for thread in recorders:
            thread.start()
        for thread in recorders:
            thread.join()
        done.set()
        taker.join()
        batches.extend(data for data in [recorder.take_batch()] if data is not None)
        events = [event for data in batches for event in decode_batch(data).events]
        pages = {kind: sum(count for name, count in shape(events) if name == kind) for kind, _ in shape(events)}
        assert pages == {"BlockStored": 30_000, "BlockRemoved": 30_000}
