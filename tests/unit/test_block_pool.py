"""BlockPoolCache: what it keeps, in which order it lets go of it, and what it says of it."""

import pytest

from kvevents.caches import BlockPoolCache
from kvevents.caches.block_pool import VllmHashScheme
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, StorageMedium
from kvevents.hashing import HashChain, block_hashes
from kvevents.recorder import EventRecorder
from kvevents.wire import decode_batch

PAGE = 4


def pool(num_blocks: int = 9, **settings: object) -> BlockPoolCache:
    return BlockPoolCache(num_blocks=num_blocks, page_size=PAGE, **settings)  # type: ignore[arg-type]  # any of them


def tokens(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def unsigned(chain: HashChain) -> list[int]:
    """The ids of a chain as they are on the wire."""
    return [block % 2**64 for block in chain.ids]


def compute(cache: BlockPoolCache, prompt: list[int]) -> list[int]:
    """A request that is computed in one step and ends: its blocks."""
    chain = cache.chain(prompt)
    hits = cache.lookup(chain)
    cache.hold(hits)
    blocks = [*hits, *cache.take(-(-len(prompt) // PAGE) - len(hits))]
    if len(chain) > len(hits):
        _, new = chain.split(len(hits))
        whole = len(chain) * PAGE
        cache.publish(blocks[len(hits) : len(chain)], new, prompt[len(hits) * PAGE : whole])
    cache.release(blocks)
    cache.check_integrity()
    return blocks


class TestPolicy:
    def test_blocks_are_taken_from_the_front_and_the_placeholder_never(self) -> None:
        cache = pool()
        assert list(cache.take(3)) == [1, 2, 3]
        assert list(cache.reuse_order()) == [4, 5, 6, 7, 8]
        assert (cache.capacity, cache.free_blocks) == (8 * PAGE, 5)

    def test_the_partial_block_is_next_and_the_tail_goes_before_the_head(self) -> None:
        cache = pool()
        assert compute(cache, tokens(0, 14)) == [1, 2, 3, 4]
        assert list(cache.reuse_order()) == [4, 5, 6, 7, 8, 3, 2, 1]

    def test_a_hit_is_held_out_of_reach(self) -> None:
        cache = pool(6)
        compute(cache, tokens(0, 12))
        hits = cache.lookup(cache.chain(tokens(0, 8)))
        assert (list(hits), cache.parked(hits)) == ([1, 2], 2)
        cache.hold(hits)
        assert cache.parked(hits) == 0
        cache.take_events()
        assert list(cache.take(3)) == [4, 5, 3]
        assert [event.block_hashes for event in cache.take_events() if isinstance(event, BlockRemoved)] == [
            unsigned(cache.chain(tokens(0, 12)))[2:]
        ]
        with pytest.raises(CapacityError) as short:
            cache.take(1)
        assert (short.value.requested, short.value.available) == (PAGE, 0)
        assert list(cache.lookup(cache.chain(tokens(0, 12)))) == [1, 2]

    def test_a_page_that_is_computed_again_is_a_second_copy_announced_again(self) -> None:
        cache = pool(8)
        prompt = tokens(0, 8)
        first = compute(cache, prompt)
        chain = cache.chain(prompt)
        # As a scheduler does it: the last token is computed in any case, and its block with it.
        hits = cache.lookup(chain.split(1)[0])
        cache.hold(hits)
        blocks = [*hits, *cache.take(1)]
        cache.publish(blocks[1:], chain.split(1)[1], prompt[4:])
        cache.release(blocks)
        stores = [event for event in cache.take_events() if isinstance(event, BlockStored)]
        assert [event.block_hashes for event in stores] == [unsigned(chain), unsigned(chain)[1:]]
        assert stores[1].parent_block_hash == unsigned(chain)[0]
        assert list(cache.lookup(chain)) == first
        assert cache.total == 3 * PAGE
        assert len(cache.holdings()) == 2
        # The older copy is evicted first; the page is found in the newer one.
        cache.take(5)
        assert list(cache.lookup(chain)) == [first[0], blocks[1]]
        cache.check_integrity()

    def test_reset_waits_until_nothing_is_held(self) -> None:
        cache = pool()
        compute(cache, tokens(0, 8))
        held = cache.take(1)
        with pytest.raises(ValueError, match="reset: 1 blocks are held"):
            cache.reset()
        assert cache.total == 2 * PAGE
        cache.release(held)
        order = list(cache.reuse_order())
        cache.take_events()
        cache.reset()
        assert cache.take_events() == [AllBlocksCleared()]
        assert (cache.total, cache.holdings(), list(cache.reuse_order())) == (0, set(), order)
        cache.take(8)
        assert cache.take_events() == []

    def test_namespaces_share_nothing(self) -> None:
        cache = pool()
        chains = [
            cache.chain(tokens(0, 8), **keys)
            for keys in (
                {},
                {"extra_key": "adapter"},
                {"extra_key": "adapter", "adapter_path": "/a"},
                {"cache_salt": "salt"},
                {"extra_key": "adapter", "cache_salt": "salt"},
            )
        ]
        assert len({block for chain in chains for block in chain.ids}) == 10
        assert list(cache.chain(tokens(0, 8), cache_salt="").ids) == list(chains[0].ids)
        assert list(pool(hash_seed="0").chain(tokens(0, 8)).ids) != list(chains[0].ids)


class TestCommonMethods:
    def test_an_insert_is_a_request_that_ends(self) -> None:
        one, other = pool(), pool()
        compute(one, tokens(0, 8))
        compute(one, tokens(0, 20))
        other.insert(tokens(0, 8))
        result = other.insert(tokens(0, 20), session_id="who")
        assert (result.prefix_length, result.length) == (8, 20)
        assert list(one.reuse_order()) == list(other.reuse_order())
        stores = one.take_events(), other.take_events()
        assert isinstance(stores[1][1], BlockStored)
        assert stores[1][1].session_id == "who"
        stores[1][1].session_id = None
        assert stores[0] == stores[1]

    def test_a_match_has_slots_and_changes_nothing(self) -> None:
        cache = pool()
        cache.insert(tokens(0, 10))
        order = list(cache.reuse_order())
        match = cache.match_prefix(tokens(0, 15))
        assert (match.length, match.host_length) == (8, 0)
        assert list(match.slots) == [4, 5, 6, 7, 8, 9, 10, 11]
        assert list(cache.reuse_order()) == order
        nothing = cache.match_prefix(tokens(1, 15))
        assert (nothing.length, list(nothing.slots)) == (0, [])
        cache.lock(nothing.node)
        cache.unlock(nothing.node)

    def test_a_lock_keeps_a_run_and_an_unlock_makes_it_the_last_to_go(self) -> None:
        cache = pool(6)
        run = cache.insert(tokens(0, 8)).node
        cache.lock(run)
        cache.lock(cache.match_prefix(tokens(0, 4)).node)
        assert (cache.total, cache.evictable, cache.protected) == (8, 0, 8)
        with pytest.raises(CapacityError, match="room for 16 tokens was asked for, blocks for 12 of 20"):
            cache.insert(tokens(100, 16))
        assert cache.holdings() == {(block, StorageMedium.GPU) for block in run.chain.ids}
        cache.unlock(run)
        assert (cache.evictable, cache.protected) == (4, 4)
        cache.insert(tokens(200, 12))
        assert cache.match_prefix(tokens(0, 8)).length == 8
        cache.insert(tokens(300, 16))
        assert cache.match_prefix(tokens(0, 8)).length == 4
        with pytest.raises(ValueError, match="block 2 at position 1 has lost the expected content"):
            cache.lock(run)
        with pytest.raises(ValueError, match="the run is not locked"):
            cache.unlock(run)
        cache.check_integrity()

    def test_eviction_ahead_of_time_does_what_takes_would_do(self) -> None:
        early, late = pool(), pool()
        for cache in (early, late):
            cache.insert(tokens(0, 12))
            cache.insert(tokens(100, 8))
            cache.take_events()
        assert early.evict(5).tokens == 8
        assert early.evict(0).tokens == 0
        assert early.evict(-1).tokens == 0
        assert early.total == 3 * PAGE
        for cache in (early, late):
            cache.take(5)
        assert early.take_events() == late.take_events()
        assert early.evict(100).tokens == 12

    def test_a_prompt_without_a_whole_page_is_not_cached(self) -> None:
        cache = pool()
        result = cache.insert(tokens(0, 3))
        assert (result.length, cache.total, cache.take_events()) == (0, 0, [])

    def test_slots_of_the_caller_are_refused(self) -> None:
        cache = pool()
        with pytest.raises(ValueError, match="take them by `take`"):
            cache.insert(tokens(0, 4), slots=tokens(4, 4))
        assert cache.total == 0


class TestEvents:
    def test_salt_and_adapter_are_extra_keys(self) -> None:
        cache = pool()
        cache.insert(tokens(0, 8), extra_key="adapter", cache_salt="salt")
        [stored] = cache.take_events()
        assert isinstance(stored, BlockStored)
        assert stored.extra_keys == [["adapter", "salt"], ["adapter"]]
        assert (stored.lora_name, stored.cache_salt) == ("adapter", None)
        assert (stored.group_idx, stored.kv_cache_spec_kind) == (0, "full_attention")

    @pytest.mark.parametrize(
        "scheme", ["vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin"]
    )
    def test_ids_are_those_of_the_scheme(self, scheme: VllmHashScheme) -> None:
        cache = pool(4, scheme=scheme, hash_seed="7")
        cache.insert(tokens(0, 12))
        cache.insert(tokens(100, 12))
        ids = block_hashes(tokens(0, 12), PAGE, scheme=scheme, hash_seed="7").tolist()
        if scheme != "vllm-builtin":
            ids = [block % 2**64 for block in ids]
        first, *removed = cache.take_events()[:4]
        assert isinstance(first, BlockStored)
        assert first.block_hashes == ids
        assert [event.block_hashes[0] for event in removed if isinstance(event, BlockRemoved)] == ids[::-1]

    @pytest.mark.parametrize("dialect", ["vllm", "vllm-array", "sglang"])
    def test_batches_say_in_every_dialect_what_the_events_say(self, dialect: str) -> None:
        one, other = pool(5), pool(5)
        for cache in (one, other):
            cache.insert(tokens(0, 12), cache_salt="salt")
            cache.insert(tokens(100, 12))
        events = one.take_events()
        assert [type(event) for event in events] == [BlockStored, BlockRemoved, BlockRemoved, BlockStored]
        data = other.take_batch(ts=1.5, dp_rank=3, dialect=dialect)  # type: ignore[arg-type]  # one of the three
        assert data is not None
        batch = decode_batch(data)
        assert (batch.ts, batch.attn_dp_rank, batch.events) == (1.5, 3, events)
        assert other.take_batch() is None

    def test_a_dialect_without_room_loses_nothing(self) -> None:
        cache = pool()
        cache.insert(tokens(0, 4))
        with pytest.raises(ConfigError, match="sglang-array has no place for it"):
            cache.take_batch(dialect="sglang-array")
        assert len(cache.take_events()) == 1

    def test_a_recorder_that_coalesces_says_the_same_in_fewer_events(self) -> None:
        cache = pool(5, recorder=EventRecorder(PAGE))
        cache.insert(tokens(0, 12))
        cache.take_events()
        cache.insert(tokens(100, 16))
        removed, stored = cache.take_events()
        assert isinstance(removed, BlockRemoved)
        assert removed.block_hashes == unsigned(cache.chain(tokens(0, 12)))[::-1]
        assert isinstance(stored, BlockStored)

    def test_a_recorder_that_is_off_says_nothing(self) -> None:
        cache = pool(3, recorder=EventRecorder(PAGE, enabled=False))
        cache.insert(tokens(0, 8))
        cache.insert(tokens(100, 8))
        cache.reset()
        assert cache.take_events() == []


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"num_blocks": 1}, "num_blocks: expected at least 2"),
            ({"page_size": 0}, "page_size: expected at least 1, got 0"),
            ({"scheme": "sglang"}, "scheme: expected one of vllm-"),
            ({"scheme": "vllm-xxhash"}, "hash_seed"),
            ({"recorder": EventRecorder(PAGE + 1)}, "recorder: expected one for pages of 4, got 5"),
        ],
    )
    def test_a_setting_that_is_wrong(self, settings: dict[str, object], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            BlockPoolCache(**({"num_blocks": 8, "page_size": PAGE} | settings))  # type: ignore[arg-type]  # what is tested

    def test_what_is_refused_changes_nothing(self) -> None:
        cache = pool()
        cache.insert(tokens(0, 8))
        blocks = list(cache.take(2))
        chain = cache.chain(tokens(50, 8))
        cache.take_events()
        for refused, says in [
            (lambda: cache.hold([1, 0]), "expected 1 to 8, got 0 at position 1"),
            (lambda: cache.hold([9]), "expected 1 to 8, got 9"),
            (lambda: cache.release([*blocks, blocks[0]]), "nobody holds block"),
            (lambda: cache.publish(blocks[:1], chain, tokens(50, 8)), "expected 2, one a page of the chain, got 1"),
            (lambda: cache.publish([blocks[0]] * 2, chain, tokens(50, 8)), "is published already"),
            (lambda: cache.publish([1, blocks[0]], chain, tokens(50, 8)), "nobody holds block 1"),
            (lambda: cache.publish(blocks, chain, tokens(50, 7)), "tokens: expected 8, .* got 7"),
            (lambda: cache.publish(blocks, HashChain.root(PAGE).extend(tokens(0, 8)), tokens(0, 8)), "scheme sglang"),
            (lambda: cache.lookup(HashChain.root(2, scheme="vllm-sha256-cbor")), "expected pages of 4"),
            (lambda: cache.insert([0, 1, 2, -3]), "got -3 at position 3"),
            (lambda: cache.match_prefix([2**64]), "got 18446744073709551616"),
        ]:
            with pytest.raises(ValueError, match=says):
                refused()  # type: ignore[no-untyped-call]  # lambdas have no types
        assert cache.take_events() == []
        assert (cache.total, cache.free_blocks) == (8, 6)
        cache.check_integrity()
        cache.publish(blocks, chain, tokens(50, 8))
