import itertools
from array import array
from collections.abc import Callable

import pytest

from kvevents.caches import (
    EvictionPolicy,
    MatchResult,
    Node,
    PagedSlotAllocator,
    RadixCache,
    SegmentedLRU,
)
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from kvevents.recorder import EventRecorder
from kvevents.wire import decode_batch

A, B, C, D, X = ([10 * page + unit for unit in range(4)] for page in range(1, 6))
"""Pages of four tokens."""


def radix(capacity: int = 64, *, eviction_policy: str | EvictionPolicy = "lru", bigram: bool = False) -> RadixCache:
    """A cache with pages of four, its first event taken."""
    cache = RadixCache(page_size=4, capacity=capacity, eviction_policy=eviction_policy, bigram=bigram)
    cache.take_events()
    return cache


def stores(events: list[KVCacheEvent]) -> list[BlockStored]:
    assert all(isinstance(event, BlockStored) for event in events), events
    return [event for event in events if isinstance(event, BlockStored)]


def removals(events: list[KVCacheEvent]) -> list[BlockRemoved]:
    assert all(isinstance(event, BlockRemoved) for event in events), events
    return [event for event in events if isinstance(event, BlockRemoved)]


class TestMatch:
    def test_a_tail_shorter_than_a_page_is_not_cached(self) -> None:
        cache = radix()
        assert cache.insert(A + B[:3]).length == 4
        assert cache.match_prefix(A + B).length == 4
        assert cache.total == 4

    def test_divergence_inside_a_page_rounds_down_to_the_page(self) -> None:
        cache = radix()
        cache.insert(A + B)
        assert cache.match_prefix(A + B[:3] + [0]).length == 4

    def test_slots_are_those_of_the_prompt_in_order_across_nodes(self) -> None:
        cache = radix()
        slots = cache.allocate(12)
        cache.insert(A + B + C, slots)
        cache.insert(A + X)
        match = cache.match_prefix(A + B + C)
        assert match.slots.tolist() == slots.tolist()
        assert match.slots.format == "q"
        assert match.slots.readonly

    def test_nothing_is_found_in_another_namespace(self) -> None:
        cache = radix()
        cache.insert(A, extra_key="adapter")
        cache.insert(B, cache_salt="tenant")
        assert cache.match_prefix(A).length == 0
        assert cache.match_prefix(A, extra_key="adapter", cache_salt="tenant").length == 0
        assert cache.match_prefix(A, extra_key="adapter").length == 4
        assert cache.match_prefix(B, cache_salt="tenant").length == 4

    def test_an_empty_salt_is_none(self) -> None:
        cache = radix()
        cache.insert(A, cache_salt="")
        assert cache.match_prefix(A).length == 4

    def test_a_prompt_shorter_than_a_page_matches_nothing(self) -> None:
        cache = radix()
        cache.insert(A)
        match = cache.match_prefix(A[:3])
        assert (match.length, match.host_length, len(match.slots), match.node.is_root) == (0, 0, 0, True)

    @pytest.mark.parametrize("typecode", ["i", "I", "q", "Q"])
    def test_the_kind_of_buffer_does_not_matter(self, typecode: str) -> None:
        cache = radix()
        cache.insert(A + B)
        assert cache.match_prefix(array(typecode, A + B)).length == 8
        cache.insert(array(typecode, X + C))
        assert cache.match_prefix(X + C).length == 8

    def test_an_id_over_32_bits_is_told_from_its_low_half(self) -> None:
        cache = radix()
        wide = [*A[:3], A[3] + (1 << 32)]
        cache.insert(A)
        assert cache.insert(wide).prefix_length == 0
        assert cache.match_prefix(wide).length == 4

    def test_asking_leaves_nothing_behind(self) -> None:
        cache = radix()
        cache.match_prefix(A, extra_key="never inserted")
        cache.insert(A, extra_key="evicted")
        cache.evict(4)
        assert len(cache._tree._roots) == 0


class TestEvents:
    def test_construction_and_reset_announce_a_clear_each(self) -> None:
        cache = RadixCache(page_size=4, capacity=64)
        assert cache.take_events() == [AllBlocksCleared()]
        cache.insert(A)
        cache.take_events()
        cache.reset()
        assert cache.take_events() == [AllBlocksCleared()]
        assert cache.holdings() == set()
        assert cache.allocator.available == 64

    def test_a_chain_of_pages_is_one_event_with_the_first_pages_parent(self) -> None:
        cache = radix()
        cache.insert(A + B + C + D)
        (event,) = stores(cache.take_events())
        assert len(event.block_hashes) == 4
        assert event.parent_block_hash is None
        assert event.token_ids == A + B + C + D
        assert (event.block_size, event.medium) == (4, "GPU")

    def test_only_what_is_new_is_stored_under_the_last_known_page(self) -> None:
        cache = radix()
        cache.insert(A + B + C + D)
        (whole,) = stores(cache.take_events())
        cache.insert(A + B + X)
        (event,) = stores(cache.take_events())
        assert event.token_ids == X
        assert event.parent_block_hash == whole.block_hashes[1]

    def test_a_page_below_a_split_keeps_its_parent(self) -> None:
        cache = radix()
        cache.insert(A + B + C + D)
        (whole,) = stores(cache.take_events())
        cache.insert(A + B + X)
        cache.take_events()
        cache.match_prefix(A + B + C)
        assert cache.evict(8).tokens == 8
        (removed,) = removals(cache.take_events())
        assert removed.block_hashes[1:] == [whole.block_hashes[3]]
        cache.insert(A + B + C + D)
        (again,) = stores(cache.take_events())
        assert again.block_hashes == [whole.block_hashes[3]]
        assert again.parent_block_hash == whole.block_hashes[2]

    def test_eviction_and_recomputation_are_one_removal_and_one_store(self) -> None:
        cache = radix()
        cache.insert(A + B)
        (first,) = stores(cache.take_events())
        cache.evict(1)
        cache.insert(A + B)
        removed, stored = cache.take_events()
        assert removed == BlockRemoved(first.block_hashes, medium="GPU")
        assert stored == first

    def test_matches_splits_and_duplicates_announce_nothing(self) -> None:
        cache = radix()
        cache.insert(A + B)
        cache.take_events()
        cache.match_prefix(A + X)
        cache.insert(A + B)
        cache.insert(A)
        assert cache.take_events() == []
        assert cache.take_batch() is None

    def test_pairs_are_the_units_of_bigram_keys(self) -> None:
        cache = radix(bigram=True)
        prompt = [*A, *B, 99]
        assert cache.insert(prompt).length == 8
        (event,) = stores(cache.take_events())
        assert event.token_ids == list(itertools.pairwise(prompt))
        assert event.block_size == 4
        assert cache.match_prefix(prompt[:8]).length == 4
        assert cache.match_prefix([*A, B[0], 7, 7, 7, 7]).length == 4

    def test_a_session_is_passed_on(self) -> None:
        cache = radix()
        cache.insert(A, session_id="chat-1")
        (event,) = stores(cache.take_events())
        assert event.session_id == "chat-1"

    def test_a_batch_holds_what_take_events_would_return(self) -> None:
        cache, twin = radix(), radix()
        for each in (cache, twin):
            each.insert(A + B)
            each.insert(A + X)
            each.evict(1)
        data = cache.take_batch(ts=3.5, dp_rank=2)
        assert data is not None
        batch = decode_batch(data)
        assert (batch.ts, batch.attn_dp_rank) == (3.5, 2)
        assert batch.events == twin.take_events()

    def test_a_recorder_brings_the_adapters_names(self) -> None:
        recorder = EventRecorder(4, lora_names={"key": "poet"})
        cache = RadixCache(page_size=4, capacity=64, recorder=recorder)
        cache.take_events()
        cache.insert(A, extra_key="key")
        (event,) = stores(cache.take_events())
        assert event.lora_name == "poet"
        assert cache.holdings() == {(event.block_hashes[0], "GPU")}

    def test_the_dynamo_format_tells_namespaces_apart_and_the_default_does_not(self) -> None:
        for event_format, different in (("default", 1), ("dynamo", 2)):
            cache = RadixCache(page_size=4, capacity=64, event_format=event_format)  # type: ignore[arg-type]
            cache.insert(A, extra_key="one")
            cache.insert(A, extra_key="two")
            assert len(cache.holdings()) == different
            assert cache.total == 8


class TestSlots:
    def test_the_cache_keeps_the_new_part_and_leaves_the_rest_to_the_caller(self) -> None:
        cache = radix()
        cache.insert(A)
        slots = cache.allocate(11)
        assert len(slots) == 12
        result = cache.insert(A + B + C[:3], slots[:11])
        assert (result.prefix_length, result.length) == (4, 8)
        cache.allocator.free(slots[:4] + slots[8:])
        assert cache.allocator.available == 64 - 8
        with pytest.raises(ValueError, match="in the cache"):
            cache.allocator.free(slots[4:8])
        cache.check_integrity()

    def test_a_caller_may_choose_slots_that_were_never_lent(self) -> None:
        cache = radix()
        cache.insert(A + B, range(8, 16))
        assert cache.match_prefix(A + B).slots.tolist() == list(range(8, 16))
        assert cache.allocator.available == 64 - 8
        cache.evict(8)
        assert cache.allocator.available == 64

    @pytest.mark.parametrize("slots", [range(7), range(9), array("q", range(4))])
    def test_the_wrong_number_changes_nothing(self, slots: "range | array[int]") -> None:
        cache = radix()
        with pytest.raises(ValueError, match="slots: expected 8, one a token, got"):
            cache.insert(A + B, slots)
        assert (cache.total, cache.take_events(), cache.allocator.available) == (0, [], 64)

    @pytest.mark.parametrize(
        ("slots", "reason"),
        [
            ([0, 1, 2, 3, 4, 5, 6, 7], "slot 0 at position 0 is in the cache"),
            ([8, 9, 10, 11, 8, 9, 10, 11], "slot 8 at position 4 is in the cache"),
            ([8, 9, 11, 10, 4, 5, 6, 7], "expected slot 10 at position 2, got 11"),
            ([60, 61, 62, 63, 64, 65, 66, 67], "expected 0 to 63, got 64"),
        ],
    )
    def test_slots_that_are_taken_or_torn_change_nothing(self, slots: list[int], reason: str) -> None:
        cache = radix()
        cache.insert(D, range(4))
        cache.take_events()
        with pytest.raises(ValueError, match=reason):
            cache.insert(A + B, slots)
        assert (cache.total, cache.take_events(), cache.allocator.available) == (4, [], 60)
        cache.check_integrity()

    def test_bigrams_take_a_slot_a_token(self) -> None:
        cache = radix(bigram=True)
        cache.insert([*A, *B, 99], range(9))
        assert cache.match_prefix([*A, *B, 99]).slots.tolist() == list(range(8))

    def test_an_allocator_of_the_callers_gets_the_slots_back(self) -> None:
        allocator = PagedSlotAllocator(16, 4)
        cache = RadixCache(page_size=4, capacity=16, allocator=allocator)
        cache.insert(A)
        assert allocator.available == 12
        cache.evict(1)
        assert allocator.available == 16
        with pytest.raises(ConfigError, match="capacity: expected the allocator's, 16, got 32"):
            RadixCache(page_size=4, capacity=32, allocator=allocator)


class TestCapacity:
    def test_an_insert_evicts_what_it_needs(self) -> None:
        cache = radix(capacity=16)
        cache.insert(A + B)
        cache.insert(C)
        cache.insert(D + X)
        assert cache.match_prefix(A).length == 0
        assert cache.match_prefix(C).length == 4
        assert cache.total == 12

    def test_an_insert_does_not_evict_its_own_prefix(self) -> None:
        cache = radix(capacity=12)
        cache.insert(A)
        cache.insert(B)
        cache.insert(A + C + D)
        assert cache.match_prefix(A + C + D).length == 12
        assert cache.match_prefix(B).length == 0

    def test_too_much_is_refused_with_what_was_asked_and_what_there_was(self) -> None:
        cache = radix(capacity=16)
        cache.insert(A)
        cache.lock(cache.match_prefix(A).node)
        cache.insert(B)
        held = cache.holdings()
        cache.take_events()
        with pytest.raises(CapacityError, match="16 slots were asked for, 12 are free or evictable, 4 are locked") as e:
            cache.insert(C + D + X + [1, 2, 3, 4])
        assert (e.value.requested, e.value.available) == (16, 12)
        assert (cache.holdings(), cache.take_events()) == (held, [])
        cache.check_integrity()

    def test_the_matched_prefix_does_not_count_as_room(self) -> None:
        cache = radix(capacity=12)
        cache.insert(A)
        with pytest.raises(CapacityError):
            cache.insert(A + B + C + D)
        assert cache.match_prefix(A).length == 4
        cache.check_integrity()

    def test_lent_slots_are_not_there_for_the_tree(self) -> None:
        cache = radix(capacity=16)
        cache.insert(A + B)
        slots = cache.allocate(12)
        assert cache.total == 0
        with pytest.raises(CapacityError):
            cache.insert(A + B)
        cache.allocator.free(slots)
        assert cache.insert(A + B).length == 8


class TestLocks:
    def test_a_locked_path_stays(self) -> None:
        cache = radix()
        cache.insert(A + B)
        cache.insert(A + X)
        cache.lock(cache.match_prefix(A + B).node)
        assert (cache.total, cache.protected, cache.evictable) == (12, 8, 4)
        assert cache.evict(100).tokens == 4
        assert cache.match_prefix(A + B).length == 8

    def test_a_node_that_is_split_stays_locked_as_a_whole(self) -> None:
        cache = radix()
        node = cache.insert(A + B + C).node
        cache.lock(node)
        cache.insert(A + X)
        cache.check_integrity()
        assert cache.evict(100).tokens == 4
        cache.unlock(node)
        assert cache.evict(100).tokens == 12
        assert (cache.total, cache.protected, cache.evictable) == (0, 0, 0)

    def test_locks_are_counted(self) -> None:
        cache = radix()
        node = cache.insert(A).node
        cache.lock(node)
        cache.lock(node)
        cache.unlock(node)
        assert cache.evict(1).tokens == 0
        cache.unlock(node)
        assert cache.evict(1).tokens == 4

    def test_unlock_without_lock_is_an_error(self) -> None:
        cache = radix()
        node = cache.insert(A).node
        for unlocked in (node, cache.match_prefix(B).node):
            with pytest.raises(ValueError, match="not locked"):
                cache.unlock(unlocked)
        cache.check_integrity()

    def test_a_node_that_left_cannot_be_locked(self) -> None:
        cache = radix()
        evicted = cache.insert(A).node
        cache.evict(4)
        dropped = cache.insert(B).node
        cache.reset()
        cache.insert(B)
        for node in (evicted, dropped):
            with pytest.raises(ValueError, match="has left the cache"):
                cache.lock(node)
        cache.check_integrity()

    def test_what_was_locked_before_a_reset_may_be_unlocked_after_it(self) -> None:
        cache = radix()
        node = cache.insert(A).node
        cache.lock(node)
        cache.reset()
        cache.insert(A)
        cache.unlock(node)
        assert (cache.total, cache.protected, cache.evictable) == (4, 0, 4)
        with pytest.raises(ValueError, match="not locked"):
            cache.unlock(node)

    def test_the_root_can_be_locked_so_that_callers_need_no_case_for_it(self) -> None:
        cache = radix()
        match: MatchResult = cache.match_prefix(A)
        cache.lock(match.node)
        cache.insert(A)
        assert cache.evict(4).tokens == 4
        cache.unlock(match.node)
        cache.check_integrity()


class TestEviction:
    def test_whole_leaves_go_and_their_parents_after_them(self) -> None:
        cache = radix()
        cache.insert(A + B)
        cache.insert(A + X)
        (ab, x) = stores(cache.take_events())
        assert cache.evict(9).tokens == 12
        blocks = [block for event in removals(cache.take_events()) for block in event.block_hashes]
        assert blocks == [ab.block_hashes[1], x.block_hashes[0], ab.block_hashes[0]]

    def test_more_than_asked_may_go(self) -> None:
        cache = radix()
        cache.insert(A + B + C)
        assert cache.evict(1).tokens == 12

    @pytest.mark.parametrize("count", [0, -5])
    def test_nothing_asked_nothing_evicted(self, count: int) -> None:
        cache = radix()
        cache.insert(A)
        assert cache.evict(count).tokens == 0

    @pytest.mark.parametrize(
        ("policy", "victim"),
        [
            ("lru", B),
            ("mru", D),
            ("fifo", A),
            ("filo", D),
            ("lfu", B),
            ("priority", C),
            ("slru", B),
            (SegmentedLRU(protected_threshold=3), B),
            (lambda node: (len(node.pages), -node.created), D),
        ],
    )
    def test_policies_choose(self, policy: str | Callable[[Node], tuple[float, ...]], victim: list[int]) -> None:
        cache = radix(eviction_policy=policy)
        cache.insert(A, priority=1)
        cache.insert(B, priority=3)
        cache.insert(C, priority=0)
        cache.insert(D, priority=2)
        cache.insert(A)
        cache.insert(C, inserted_length=0)
        cache.match_prefix(D)
        cache.evict(1)
        assert [page for page in (A, B, C, D) if not cache.match_prefix(page).length] == [victim]

    def test_what_the_same_request_inserted_before_counts_no_hit(self) -> None:
        cache = radix(eviction_policy="lfu")
        cache.insert(A)
        cache.insert(A + X, inserted_length=4)
        cache.insert(B)
        cache.evict(8)
        assert cache.match_prefix(A).length == 0
        assert cache.match_prefix(B).length == 4


class TestBadInput:
    @pytest.mark.parametrize("token", [-1, 1 << 64])
    def test_an_id_out_of_range_changes_nothing(self, token: int) -> None:
        cache = radix()
        cache.insert(A)
        held = cache.holdings()
        cache.take_events()
        for call in (cache.insert, cache.match_prefix):
            with pytest.raises(ValueError, match="token ids: expected 0 to"):
                call([*A, *B[:3], token])
        assert (cache.holdings(), cache.take_events()) == (held, [])
        cache.check_integrity()

    def test_tokens_that_are_no_numbers_are_refused(self) -> None:
        cache = radix()
        with pytest.raises(TypeError, match="token ids: expected integers"):
            cache.insert(["a", "b", "c", "d"])  # type: ignore[list-item]

    def test_settings_that_cannot_work(self) -> None:
        with pytest.raises(ConfigError, match=r"eviction_policy: expected one of lru, .*, got 'best'"):
            RadixCache(page_size=4, capacity=64, eviction_policy="best")
        with pytest.raises(ConfigError, match="page_size"):
            RadixCache(page_size=0, capacity=64)
        with pytest.raises(ConfigError, match="capacity"):
            RadixCache(page_size=4, capacity=3)

    def test_room_for_less_than_a_page_is_not_used(self) -> None:
        assert radix(capacity=19).allocator.capacity == 16
