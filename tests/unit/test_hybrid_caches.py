"""What windows and states change: where matches end, what is lost first, what locks keep."""

import pytest

from kvevents.caches import (
    FullAttention,
    Layers,
    Mamba,
    MambaRadixCache,
    PagedSlotAllocator,
    SlidingWindow,
    SWARadixCache,
    UnifiedRadixCache,
)
from kvevents.caches.window import WindowComponent
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import BlockStored
from radix_prompts import A, B, C, D, X, removals, stores


def hybrid(*components: FullAttention | Layers, capacity: int = 64) -> UnifiedRadixCache:
    """A cache with pages of four, its first event taken."""
    cache = UnifiedRadixCache(components=components, page_size=4, capacity=capacity)
    cache.take_events()
    return cache


def in_window(cache: UnifiedRadixCache) -> int:
    return cache.sizes("sliding_window").total


class TestWindow:
    def test_a_match_ends_where_the_window_before_it_is_whole(self) -> None:
        cache = hybrid(SlidingWindow(4))
        cache.insert(A + B)
        cache.insert(A + B + C + D, window_start=12)
        assert cache.match_prefix(A + B + C).length == 8
        assert cache.match_prefix(A + B + C + D).length == 16

    def test_a_window_that_begins_inside_a_page_needs_the_page(self) -> None:
        cache = hybrid(SlidingWindow(5))
        cache.insert(A + B + C, window_start=8)
        assert cache.match_prefix(A + B + C).length == 0
        cache.insert(A + B + C, window_start=4)
        assert cache.match_prefix(A + B + C).length == 12

    def test_a_prompt_shorter_than_its_window_is_whole_from_the_start_on(self) -> None:
        cache = hybrid(SlidingWindow(100))
        cache.insert(A)
        assert cache.match_prefix(A).length == 4

    def test_a_gap_is_filled_by_the_next_insert_and_announces_nothing(self) -> None:
        cache = hybrid(SlidingWindow(4))
        assert cache.insert(A + B, window_start=8).window_kept == ()
        cache.take_events()
        result = cache.insert(A + B, window_start=4)
        assert (result.prefix_length, result.window_kept) == (8, (range(4, 8),))
        assert (cache.match_prefix(A + B).length, cache.take_events()) == (8, [])

    def test_pressure_inside_the_tree_loses_the_window_alone(self) -> None:
        cache = hybrid(SlidingWindow(4))
        cache.insert(A)
        cache.insert(A + B)
        cache.take_events()
        assert cache.evict(window_tokens=1) == (0, 4, 0)
        assert (cache.total, cache.take_events()) == (8, [])
        assert (cache.match_prefix(A).length, cache.match_prefix(A + B).length) == (0, 8)

    def test_pressure_that_reaches_a_leaf_loses_the_leaf(self) -> None:
        cache = hybrid(SlidingWindow(4))
        cache.insert(A)
        cache.insert(A + B)
        (stored,) = stores(cache.take_events())
        assert cache.evict(window_tokens=8) == (4, 8, 0)
        (removed,) = removals(cache.take_events())
        assert removed.block_hashes == stored.block_hashes[1:]

    def test_full_attention_that_goes_takes_the_window_along(self) -> None:
        cache = hybrid(SlidingWindow(4))
        cache.insert(A)
        assert cache.evict(1) == (4, 4, 0)
        assert in_window(cache) == 0

    def test_a_long_leaf_is_split_so_that_a_lock_keeps_one_window(self) -> None:
        cache = hybrid(SlidingWindow(5))
        cache.lock(cache.insert(A + B + C + D).node)
        assert cache.protected == 16
        assert cache.sizes("sliding_window") == (16, 8, 8)
        assert cache.evict(100, window_tokens=100) == (0, 8, 0)
        assert cache.match_prefix(A + B + C + D).length == 16

    def test_a_lock_stays_whole_when_its_nodes_are_split(self) -> None:
        cache = hybrid(SlidingWindow(8))
        node = cache.insert(A + B).node
        cache.lock(node)
        cache.insert(A + X)
        cache.lock(node)
        cache.unlock(node)
        assert cache.sizes("sliding_window").protected == 8
        cache.unlock(node)
        assert cache.sizes("sliding_window").protected == 0
        cache.check_integrity()

    def test_what_was_used_last_is_lost_last(self) -> None:
        cache = hybrid(SlidingWindow(4))
        for prompt in (A, B, C):
            cache.insert(prompt)
        cache.match_prefix(A)
        cache.evict(window_tokens=8)
        assert [cache.match_prefix(prompt).length for prompt in (A, B, C)] == [4, 0, 0]

    def test_nothing_is_remembered_of_what_is_gone(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        for first in range(100):
            cache.insert([first, 0, 0, 0])
            cache.evict(4)
        window, state = cache._beside
        assert not window._victims._entries
        assert not state._victims._entries
        cache.lock(cache.insert(A).node)
        cache.reset()
        assert isinstance(window, WindowComponent)
        assert not window._locked

    def test_window_start_takes_whole_pages(self) -> None:
        cache = hybrid(SlidingWindow(4))
        for start in (-4, 3):
            with pytest.raises(ValueError, match=f"window_start: expected whole pages of 4, got {start} units"):
                cache.insert(A, window_start=start)
        assert cache.insert(A, window_start=400).window_kept == ()


class TestState:
    def test_a_match_ends_at_a_state(self) -> None:
        cache = hybrid(Mamba(4))
        cache.insert(A + B)
        cache.insert(A + X)
        assert cache.match_prefix(A).length == 0
        assert cache.match_prefix(A + B).length == 8
        assert cache.insert(A).state_kept
        assert cache.match_prefix(A + C).length == 4

    def test_a_prompt_that_is_cached_whole_brings_no_second_state(self) -> None:
        cache = hybrid(Mamba(4))
        assert cache.insert(A).state_kept
        assert not cache.insert(A).state_kept
        assert cache.sizes("mamba") == (1, 1, 0)

    def test_a_state_stays_at_its_end_when_the_node_is_split(self) -> None:
        cache = hybrid(Mamba(4))
        cache.insert(A + B)
        cache.match_prefix(A + X)
        assert cache.match_prefix(A + B).length == 8

    def test_pressure_inside_the_tree_loses_the_state_alone(self) -> None:
        cache = hybrid(Mamba(4))
        cache.insert(A)
        cache.insert(A + B)
        cache.take_events()
        assert cache.evict(states=1) == (0, 0, 1)
        assert (cache.match_prefix(A).length, cache.take_events()) == (0, [])
        assert cache.evict(states=1) == (4, 0, 1)
        assert len(removals(cache.take_events())) == 1

    def test_a_lock_keeps_the_state_it_was_made_at(self) -> None:
        cache = hybrid(Mamba(4))
        cache.insert(A)
        cache.lock(cache.insert(A + B).node)
        assert cache.evict(100, states=100) == (0, 0, 1)
        assert (cache.match_prefix(A).length, cache.match_prefix(A + B).length) == (0, 8)

    def test_bigram_keys_are_off(self) -> None:
        cache = MambaRadixCache(mamba_slots=2, page_size=4, capacity=16, bigram=True)
        assert not cache.bigram
        assert cache.insert(A).length == 4


class TestMix:
    def test_a_lost_window_takes_the_state_along_that_is_no_use_without_it(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        cache.insert(A)
        cache.insert(A + B)
        assert cache.evict(window_tokens=1) == (0, 4, 1)

    def test_a_lost_state_leaves_the_window(self) -> None:
        cache = hybrid(Mamba(4), SlidingWindow(4))
        cache.insert(A)
        cache.insert(A + B)
        assert cache.evict(states=1) == (0, 0, 1)
        assert in_window(cache) == 8

    def test_a_match_needs_both_at_one_place(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        cache.insert(A)
        cache.insert(A + B, window_start=8)
        cache.insert(A + B + C, window_start=8)
        assert cache.match_prefix(A + B).length == 4
        assert cache.match_prefix(A + B + C).length == 12

    def test_both_parts_of_a_split_keep_the_time_of_their_use(self) -> None:
        cache = hybrid(SlidingWindow(8), Mamba(4))
        cache.insert(X)
        cache.insert(A + B)
        assert cache.match_prefix(A + C).length == 0  # there is no state at A: it was not used
        cache.evict(window_tokens=1)
        assert (cache.match_prefix(X).length, cache.match_prefix(A + B).length) == (0, 8)


class TestCallersSlots:
    def test_the_cache_keeps_what_it_lacked_of_each(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        cache.insert(A, window_start=4)
        full = cache.allocate(8)
        window = cache.allocate(8, "sliding_window")
        (state,) = cache.allocate(1, "mamba")
        result = cache.insert(A + B, full, window_slots=window, state_slot=state)
        assert (result.prefix_length, result.window_kept, result.state_kept) == (4, (range(8),), True)
        cache.allocators["full"].free(full[:4])
        for component in ("sliding_window", "mamba"):
            cache.check_integrity()
            cache.evict(100, window_tokens=100, states=100)
            assert cache.allocators[component].available == cache.allocators[component].capacity

    def test_what_is_not_brought_is_not_cached(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        result = cache.insert(A, cache.allocate(4))
        assert (result.window_kept, result.state_kept) == ((), False)
        assert cache.match_prefix(A).length == 0
        assert cache.total == 4

    def test_slots_that_are_taken_change_nothing_in_any_component(self) -> None:
        cache = hybrid(SlidingWindow(4), Mamba(4))
        cache.insert(A, range(4), window_slots=range(4), state_slot=0)
        cache.take_events()
        available = {name: allocator.available for name, allocator in cache.allocators.items()}
        for window_slots, state_slot in [(range(4), 1), (range(4, 8), 0)]:
            with pytest.raises(ValueError, match="slot 0 at position 0 is in the cache"):
                cache.insert(B, range(4, 8), window_slots=window_slots, state_slot=state_slot)
        assert (cache.total, cache.take_events()) == (4, [])
        assert available == {name: allocator.available for name, allocator in cache.allocators.items()}

    def test_slots_of_the_wrong_number_or_kind_are_refused(self) -> None:
        cache = hybrid(SlidingWindow(4))
        with pytest.raises(ValueError, match="window_slots: expected 4, one a token, got 8"):
            cache.insert(A + B, range(8), window_slots=range(8), window_start=4)
        with pytest.raises(ValueError, match="got some for mamba, which this cache does not have"):
            cache.insert(A, range(4), state_slot=0)
        with pytest.raises(ValueError, match="slots: expected one a token, as for the other components, got none"):
            cache.insert(A, window_slots=range(4))

    def test_an_engine_finds_the_slots_of_a_match(self) -> None:
        cache = hybrid(SlidingWindow(5), Mamba(4))
        cache.insert(A, range(4), window_slots=range(4))
        cache.insert(A + B + C, range(12), window_slots=range(4, 16), state_slot=3)
        node = cache.match_prefix(A + B + C).node
        assert cache.slots(node).tolist() == list(range(12))
        assert cache.slots(node, "sliding_window").tolist() == list(range(8, 16))
        assert cache.slots(node, "mamba").tolist() == [3]
        root = cache.match_prefix(X).node
        assert [len(cache.slots(root, component)) for component in cache.allocators] == [0, 0, 0]
        with pytest.raises(ValueError, match="component: expected one of full, sliding_window, mamba, got 'kv'"):
            cache.slots(node, "kv")


class TestCapacity:
    def test_an_insert_makes_room_in_each_pool_and_keeps_its_own_path(self) -> None:
        cache = hybrid(SlidingWindow(4, 8), Mamba(2), capacity=16)
        cache.insert(A)
        cache.insert(B)
        cache.insert(A + C)
        assert cache.match_prefix(A + C).length == 8
        assert cache.match_prefix(B).length == 0
        cache.check_integrity()

    @pytest.mark.parametrize(
        ("component", "message"),
        [
            (SlidingWindow(4, 8), "12 window slots were asked for, 8 are free or evictable, 0 are locked"),
            (Mamba(1), "1 states were asked for, 0 are free or evictable, 1 are locked"),
        ],
    )
    def test_too_much_is_refused_and_nothing_evicted(self, component: Layers, message: str) -> None:
        cache = hybrid(component)
        cache.lock(cache.insert(A, window_start=4).node)
        cache.take_events()
        with pytest.raises(CapacityError, match=message):
            cache.insert(B + C + D)
        assert (cache.total, cache.take_events()) == (4, [])
        cache.check_integrity()

    def test_each_pool_is_lent_from(self) -> None:
        cache = hybrid(Mamba(2))
        cache.insert(A)
        assert len(cache.allocate(2, "mamba")) == 2
        assert cache.total == 0
        with pytest.raises(CapacityError, match="1 states were asked for, 0 are free"):
            cache.allocate(1, "mamba")


class TestSettings:
    def test_each_kind_of_layers_once(self) -> None:
        with pytest.raises(ConfigError, match="each kind once, got Mamba, Mamba"):
            hybrid(Mamba(1), Mamba(2))
        assert list(hybrid(Mamba(1), FullAttention()).allocators) == ["full", "mamba"]

    @pytest.mark.parametrize("layers", [SlidingWindow(0), SlidingWindow(4, 3), Mamba(0)])
    def test_what_cannot_be(self, layers: Layers) -> None:
        with pytest.raises(ConfigError, match="expected"):
            hybrid(layers)

    def test_allocators_of_the_callers(self) -> None:
        window, states = PagedSlotAllocator(8, 4), PagedSlotAllocator(2)
        cache = hybrid(SlidingWindow(4, 8, window), Mamba(2, states))
        cache.insert(A)
        assert (window.available, states.available) == (4, 1)
        cache = SWARadixCache(sliding_window=4, window_capacity=8, window_allocator=window, page_size=4, capacity=16)
        assert cache.allocators["sliding_window"] is window


class TestGroups:
    def test_each_event_says_its_group(self) -> None:
        cache = UnifiedRadixCache(
            components=[SlidingWindow(4), Mamba(2)], page_size=4, capacity=64, announce_groups=True
        )
        cache.take_events()
        cache.insert(A + B, window_start=4, session_id="s")
        full, window, state = stores(cache.take_events())
        kinds = [(event.group_idx, event.kv_cache_spec_kind) for event in (full, window, state)]
        assert kinds == [(0, "full"), (1, "sliding_window"), (2, "mamba")]
        assert [event.kv_cache_spec_sliding_window for event in (full, window, state)] == [None, 5, None]
        first, second = full.block_hashes
        for event in (window, state):
            assert event == BlockStored(
                [second],
                first,
                B,
                4,
                medium="GPU",
                session_id="s",
                group_idx=event.group_idx,
                kv_cache_spec_kind=event.kv_cache_spec_kind,
                kv_cache_spec_sliding_window=event.kv_cache_spec_sliding_window,
            )

    def test_what_is_lost_inside_the_tree_is_said(self) -> None:
        cache = SWARadixCache(sliding_window=4, page_size=4, capacity=64, announce_groups=True)
        cache.insert(A)
        cache.insert(A + B)
        cache.take_events()
        cache.evict(window_tokens=1)
        (removed,) = removals(cache.take_events())
        assert (removed.group_idx, len(removed.block_hashes)) == (1, 1)
        cache.evict(1)
        assert [event.group_idx for event in removals(cache.take_events())] == [1, 0]

    def test_arrays_have_no_place_for_groups(self) -> None:
        cache = MambaRadixCache(mamba_slots=2, page_size=4, capacity=64, announce_groups=True)
        cache.insert(A)
        with pytest.raises(ConfigError, match="sglang-array"):
            cache.take_batch(dialect="sglang-array")
        assert len(cache.take_events()) == 3
