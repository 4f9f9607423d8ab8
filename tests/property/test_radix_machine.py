"""`RadixCache` under any sequence of calls, against plain models of what it holds and announces."""

import itertools
from array import array
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from kvevents.caches import Node, RadixCache
from kvevents.caches.eviction import POLICIES, find_policy
from kvevents.errors import CapacityError
from kvevents.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored
from kvevents.wire import decode_batch
from residency import Residency

NAMESPACES: list[tuple[str | None, str | None]] = [(None, None), ("adapter", None), (None, "salt"), ("adapter", "salt")]
IDS = [1, 2, 1 << 33]
TOKENS = st.lists(st.sampled_from(IDS), max_size=14)
PAGES = 12


class Prefix(NamedTuple):
    """A block by what it means: a namespace and all units up to its end."""

    namespace: tuple[str | None, str | None]
    units: tuple[object, ...]


class RadixCacheMachine(RuleBasedStateMachine):
    """Holds a model of which prefixes are cached, built from the decoded batches alone, and of all slots."""

    locked = Bundle("locked")
    lent = Bundle("lent")

    @initialize(
        page_size=st.integers(1, 3),
        policy=st.sampled_from(sorted(POLICIES)),
        bigram=st.booleans(),
    )
    def build(self, page_size: int, policy: str, bigram: bool) -> None:
        self.page_size = page_size
        self.bigram = bigram
        self.order = find_policy(policy)
        # In this format ids are unique to their namespace, so that an id is one prefix.
        self.cache = RadixCache(
            page_size=page_size,
            capacity=PAGES * page_size,
            eviction_policy=policy,
            bigram=bigram,
            event_format="dynamo",
        )
        self.consumer = Residency()
        self.prefixes: dict[BlockHash, Prefix] = {}
        self.live: dict[Prefix, BlockHash] = {}
        self.slots: dict[Prefix, list[int]] = {}
        self.lent_slots: set[int] = set()
        self.locked_blocks: list[tuple[Node, set[Prefix]]] = []
        self.take(NAMESPACES[0])

    def units(self, tokens: list[int]) -> list[object]:
        return list(itertools.pairwise(tokens)) if self.bigram else list(tokens)

    def prefixes_of(self, tokens: list[int], namespace: tuple[str | None, str | None]) -> list[Prefix]:
        units = self.units(tokens)
        size = self.page_size
        return [Prefix(namespace, tuple(units[: end * size])) for end in range(1, len(units) // size + 1)]

    def cached(self, tokens: list[int], namespace: tuple[str | None, str | None]) -> list[Prefix]:
        """The prefixes of a prompt that the model has, from the first on without a gap."""
        found = []
        for prefix in self.prefixes_of(tokens, namespace):
            if prefix not in self.live:
                break
            found.append(prefix)
        return found

    def take(self, namespace: tuple[str | None, str | None]) -> None:
        """Bring the model up to date with what the cache announced in one call on a namespace."""
        data = self.cache.take_batch(ts=0.0)
        if data is None:
            return
        events = decode_batch(data).events
        self.consumer.apply(events)
        for event in events:
            match event:
                case BlockStored():
                    above = Prefix(namespace, ())
                    if event.parent_block_hash is not None:
                        above = self.prefixes[event.parent_block_hash]
                        assert above in self.live, "a store under a block that is not held"
                        assert above.namespace == namespace
                    units: list[object] = list(event.token_ids)
                    assert len(units) == len(event.block_hashes) * self.page_size
                    for index, block in enumerate(event.block_hashes):
                        page = units[index * self.page_size : (index + 1) * self.page_size]
                        above = Prefix(namespace, above.units + tuple(page))
                        assert above not in self.live, "a store of a block that is held"
                        self.prefixes[block] = above
                        self.live[above] = block
                case BlockRemoved():
                    for block in event.block_hashes:
                        prefix = self.prefixes[block]
                        del self.live[prefix]
                        self.slots.pop(prefix, None)
                        for _, blocks in self.locked_blocks:
                            assert prefix not in blocks, "a locked block was evicted"
                case AllBlocksCleared():
                    self.live.clear()
                    self.slots.clear()

    @rule(tokens=TOKENS, namespace=st.sampled_from(NAMESPACES), typecode=st.sampled_from(["list", "q", "Q"]))
    def match(self, tokens: list[int], namespace: tuple[str | None, str | None], typecode: str) -> None:
        expected = self.cached(tokens, namespace)
        extra_key, cache_salt = namespace
        prompt = tokens if typecode == "list" else array(typecode, tokens)
        match = self.cache.match_prefix(prompt, extra_key=extra_key, cache_salt=cache_salt)
        assert match.length == len(expected) * self.page_size
        assert len(match.slots) == match.length
        for index, prefix in enumerate(expected):
            slots = match.slots[index * self.page_size : (index + 1) * self.page_size].tolist()
            assert self.slots.setdefault(prefix, slots) == slots, "a block changed its slots"
        assert self.cache.take_batch() is None

    @rule(
        tokens=TOKENS,
        namespace=st.sampled_from(NAMESPACES),
        priority=st.integers(0, 3),
        inserted_length=st.integers(0, 6),
    )
    def insert(
        self, tokens: list[int], namespace: tuple[str | None, str | None], priority: int, inserted_length: int
    ) -> None:
        wanted = self.prefixes_of(tokens, namespace)
        found = self.cached(tokens, namespace)
        need = (len(wanted) - len(found)) * self.page_size
        kept = {prefix for _, blocks in self.locked_blocks for prefix in blocks} | set(found)
        room = self.cache.allocator.available + (len(self.live) - len(kept & set(self.live))) * self.page_size
        extra_key, cache_salt = namespace
        if need > room:
            with pytest.raises(CapacityError) as error:
                self.cache.insert(tokens, extra_key=extra_key, cache_salt=cache_salt)
            assert (error.value.requested, error.value.available) == (need, room)
            assert self.cache.take_batch() is None
            return
        result = self.cache.insert(
            tokens,
            extra_key=extra_key,
            cache_salt=cache_salt,
            priority=priority,
            inserted_length=inserted_length,
        )
        assert result.prefix_length == len(found) * self.page_size
        assert result.length == len(wanted) * self.page_size
        self.take(namespace)
        assert self.cached(tokens, namespace) == wanted

    @rule(target=lent, pages=st.integers(1, 4))
    def allocate(self, pages: int) -> object:
        room = self.cache.allocator.available + self.cache.evictable
        if pages * self.page_size > room:
            with pytest.raises(CapacityError):
                self.cache.allocate(pages * self.page_size)
            return multiple()
        slots = self.cache.allocate(pages * self.page_size)
        self.take(NAMESPACES[0])
        assert not self.lent_slots & set(slots)
        self.lent_slots |= set(slots)
        return slots

    @rule(
        slots=consumes(lent),
        tokens=st.lists(st.sampled_from(IDS), min_size=12, max_size=12),
        namespace=st.sampled_from(NAMESPACES),
    )
    def insert_lent(self, slots: "array[int]", tokens: list[int], namespace: tuple[str | None, str | None]) -> None:
        tokens = tokens[: len(slots)]
        found = self.cached(tokens, namespace)
        extra_key, cache_salt = namespace
        result = self.cache.insert(tokens, slots, extra_key=extra_key, cache_salt=cache_salt)
        self.take(namespace)
        assert result.prefix_length == len(found) * self.page_size
        prefixes = self.prefixes_of(tokens, namespace)
        for index, prefix in list(enumerate(prefixes))[len(found) :]:
            self.slots[prefix] = slots[index * self.page_size : (index + 1) * self.page_size].tolist()
        self.cache.allocator.free(slots[: result.prefix_length] + slots[max(result.length, result.prefix_length) :])
        self.lent_slots -= set(slots)

    @rule(slots=consumes(lent))
    def free(self, slots: "array[int]") -> None:
        self.cache.allocator.free(slots)
        self.lent_slots -= set(slots)

    @rule(pages=st.integers(0, 4))
    def evict(self, pages: int) -> None:
        before = self.cache.total
        could = self.cache.evictable
        result = self.cache.evict(pages * self.page_size)
        self.take(NAMESPACES[0])
        assert result.tokens == before - self.cache.total
        assert result.tokens >= min(pages * self.page_size, could)

    @rule()
    def evict_one_node(self) -> None:
        """The queue's choice is the smallest of all leaves."""
        leaves = [node for node in self.cache._tree if not node.children and not node.locks]
        if leaves:
            victim = min(leaves, key=self.order)
            self.cache.evict(1)
            assert victim.parent is None
            self.take(NAMESPACES[0])

    @rule(target=locked, tokens=TOKENS, namespace=st.sampled_from(NAMESPACES))
    def lock(self, tokens: list[int], namespace: tuple[str | None, str | None]) -> Node:
        extra_key, cache_salt = namespace
        node = self.cache.match_prefix(tokens, extra_key=extra_key, cache_salt=cache_salt).node
        self.cache.lock(node)
        self.locked_blocks.append((node, set(self.cached(tokens, namespace))))
        return node

    @rule(node=consumes(locked))
    def unlock(self, node: Node) -> None:
        self.cache.unlock(node)
        at = next((at for at, (held, _) in enumerate(self.locked_blocks) if held is node), None)
        if at is not None:
            del self.locked_blocks[at]

    @precondition(lambda self: self.live)
    @rule()
    def reset(self) -> None:
        self.locked_blocks.clear()
        self.cache.reset()
        self.take(NAMESPACES[0])
        assert not self.live

    @rule(at=st.integers(0, 3), token=st.sampled_from([-1, 1 << 64]))
    def refuse_a_token(self, at: int, token: int) -> None:
        tokens = [1, 2, 1, 2]
        tokens[at] = token
        with pytest.raises(ValueError, match="token ids"):
            self.cache.insert(tokens)
        assert self.cache.take_batch() is None

    @rule(tokens=TOKENS, off=st.sampled_from([-1, 1]))
    def refuse_slots(self, tokens: list[int], off: int) -> None:
        with pytest.raises(ValueError, match="slots: expected"):
            self.cache.insert([*tokens, 1], range(len(tokens) + 1 + off))
        assert self.cache.take_batch() is None

    @invariant()
    def what_was_announced_is_what_is_held(self) -> None:
        assert self.consumer.held() == self.cache.holdings()
        assert {(block, "GPU") for block in self.live.values()} == self.cache.holdings()
        assert self.cache.total == len(self.live) * self.page_size

    @invariant()
    def no_slot_is_lost_or_used_twice(self) -> None:
        cached = [slot for node in self.cache._tree for slot in node.slots]
        assert not self.lent_slots & set(cached)
        free = self.cache.allocator.capacity - len(cached) - len(self.lent_slots)
        assert self.cache.allocator.available == free

    @invariant()
    def it_fits_together(self) -> None:
        self.cache.check_integrity()


TestRadixCache = RadixCacheMachine.TestCase
