import itertools
from array import array

import pytest

from kvevents.caches import RadixCache
from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockRemoved
from kvevents.recorder import EventRecorder
from kvevents.wire import decode_batch
from radix_prompts import A, B, C, D, X, radix, removals, stores


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
