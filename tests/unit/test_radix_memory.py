from array import array
from collections.abc import Callable

import pytest

from kvevents.caches import MatchResult, Node, PagedSlotAllocator, RadixCache, SegmentedLRU
from kvevents.errors import CapacityError, ConfigError
from radix_prompts import A, B, C, D, X, radix, removals, stores


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
        cache.lock(cache.insert(A + C).node)
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
