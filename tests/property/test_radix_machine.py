"""`RadixCache` under any sequence of calls, against plain models of what it holds and announces."""

import itertools
from array import array
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import settings
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

Namespace: TypeAlias = tuple[str | None, str | None]

PLAIN: Namespace = (None, None)
ANY_NAMESPACE = st.sampled_from([PLAIN, PLAIN, PLAIN, ("adapter", None), (None, "salt"), ("adapter", "salt")])
PAGES = 12
"""Pages that the cache has room for."""


class Prompt(NamedTuple):
    """Pages by their letters, few enough that most prompts share a prefix with one that is cached; then a tail."""

    letters: str
    tail: list[int]

    def tokens(self, page_size: int) -> list[int]:
        """Pages differ in their last token only."""
        last = {"a": 1, "b": 1 << 33, "c": 2}
        return [token for page in self.letters for token in [7] * (page_size - 1) + [last[page]]] + self.tail


PROMPTS = st.builds(
    Prompt, st.text("aabc", min_size=1, max_size=5), st.lists(st.sampled_from([1, 7, 1 << 33]), max_size=3)
)


class Prefix(NamedTuple):
    """A block by what it means: a namespace and all units up to its end."""

    namespace: Namespace
    units: tuple[object, ...]


class RadixCacheMachine(RuleBasedStateMachine):
    """Holds a model of which prefixes are cached, built from the decoded batches alone, and of all slots."""

    locked = Bundle("locked")
    lent = Bundle("lent")

    @initialize(
        page_size=st.integers(1, 3),
        policy=st.sampled_from(sorted(POLICIES)),
        bigram=st.booleans(),
        prompts=st.lists(PROMPTS, min_size=2, max_size=6),
    )
    def build(self, page_size: int, policy: str, bigram: bool, prompts: list[Prompt]) -> None:
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
        self.take()
        for prompt in prompts:
            self.insert(prompt, PLAIN, priority=0, inserted_length=0)

    def prefixes_of(self, tokens: list[int], namespace: Namespace) -> list[Prefix]:
        units: list[object] = list(itertools.pairwise(tokens)) if self.bigram else list(tokens)
        size = self.page_size
        return [Prefix(namespace, tuple(units[: end * size])) for end in range(1, len(units) // size + 1)]

    def cached(self, tokens: list[int], namespace: Namespace) -> list[Prefix]:
        """The prefixes of a prompt that the model has, from the first on without a gap."""
        prefixes = self.prefixes_of(tokens, namespace)
        return list(itertools.takewhile(self.live.__contains__, prefixes))

    def take(self, namespace: Namespace = PLAIN) -> None:
        """Bring the model up to date with what the cache announced in one call on a namespace."""
        data = self.cache.take_batch(ts=0.0)
        if data is None:
            return
        events = decode_batch(data).events
        self.consumer.apply(events)
        for event in events:
            match event:
                case BlockStored():
                    self.stored(event, namespace)
                case BlockRemoved():
                    for block in event.block_hashes:
                        self.removed(self.prefixes[block])
                case AllBlocksCleared():
                    self.live.clear()
                    self.slots.clear()

    def stored(self, event: BlockStored, namespace: Namespace) -> None:
        above = Prefix(namespace, ())
        if event.parent_block_hash is not None:
            above = self.prefixes[event.parent_block_hash]
            assert above in self.live, "a store under a block that is not held"
            assert above.namespace == namespace
        units: list[object] = list(event.token_ids)
        assert len(units) == len(event.block_hashes) * self.page_size
        for index, block in enumerate(event.block_hashes):
            above = Prefix(namespace, above.units + tuple(units[index * self.page_size : (index + 1) * self.page_size]))
            assert above not in self.live, "a store of a block that is held"
            self.prefixes[block] = above
            self.live[above] = block

    def removed(self, prefix: Prefix) -> None:
        del self.live[prefix]
        self.slots.pop(prefix, None)
        for _, blocks in self.locked_blocks:
            assert prefix not in blocks, "a locked block was evicted"

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE, typecode=st.sampled_from(["list", "q", "Q"]))
    def match(self, prompt: Prompt, namespace: Namespace, typecode: str) -> None:
        tokens = prompt.tokens(self.page_size)
        expected = self.cached(tokens, namespace)
        match = self.cache.match_prefix(
            tokens if typecode == "list" else array(typecode, tokens), extra_key=namespace[0], cache_salt=namespace[1]
        )
        assert match.length == len(expected) * self.page_size
        assert len(match.slots) == match.length
        for index, prefix in enumerate(expected):
            slots = match.slots[index * self.page_size : (index + 1) * self.page_size].tolist()
            assert self.slots.setdefault(prefix, slots) == slots, "a block changed its slots"
        assert self.cache.take_batch() is None

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE, priority=st.integers(0, 3), inserted_length=st.integers(0, 6))
    def insert(self, prompt: Prompt, namespace: Namespace, priority: int, inserted_length: int) -> None:
        tokens = prompt.tokens(self.page_size)
        wanted = self.prefixes_of(tokens, namespace)
        found = self.cached(tokens, namespace)
        need = (len(wanted) - len(found)) * self.page_size
        kept = set(found).union(*(blocks for _, blocks in self.locked_blocks))
        room = self.cache.allocator.available + (len(self.live) - len(kept)) * self.page_size
        if need > room:
            with pytest.raises(CapacityError) as error:
                self.cache.insert(tokens, extra_key=namespace[0], cache_salt=namespace[1])
            assert (error.value.requested, error.value.available) == (need, room)
            assert self.cache.take_batch() is None
            return
        result = self.cache.insert(
            tokens,
            extra_key=namespace[0],
            cache_salt=namespace[1],
            priority=priority,
            inserted_length=inserted_length,
        )
        assert result.prefix_length == len(found) * self.page_size
        assert result.length == len(wanted) * self.page_size
        self.take(namespace)
        assert self.cached(tokens, namespace) == wanted

    @rule(target=lent, pages=st.integers(1, 3))
    def allocate(self, pages: int) -> object:
        count = pages * self.page_size
        if count > self.cache.allocator.available + self.cache.evictable:
            with pytest.raises(CapacityError):
                self.cache.allocate(count)
            return multiple()
        slots = self.cache.allocate(count)
        self.take()
        assert len(slots) == count
        assert not self.lent_slots & set(slots)
        self.lent_slots |= set(slots)
        return slots

    @rule(slots=consumes(lent), prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def insert_lent(self, slots: "array[int]", prompt: Prompt, namespace: Namespace) -> None:
        tokens = (prompt.tokens(self.page_size) + [7] * len(slots))[: len(slots)]
        found = self.cached(tokens, namespace)
        result = self.cache.insert(tokens, slots, extra_key=namespace[0], cache_salt=namespace[1])
        self.take(namespace)
        assert result.prefix_length == len(found) * self.page_size
        for index, prefix in enumerate(self.prefixes_of(tokens, namespace)):
            if prefix not in found:
                self.slots[prefix] = slots[index * self.page_size : (index + 1) * self.page_size].tolist()
        self.cache.allocator.free(slots[: result.prefix_length] + slots[result.length :])
        self.lent_slots -= set(slots)

    @rule(slots=consumes(lent))
    def free(self, slots: "array[int]") -> None:
        self.cache.allocator.free(slots)
        self.lent_slots -= set(slots)

    @precondition(lambda self: len(self.live) > PAGES // 3)
    @rule(pages=st.integers(0, 4))
    def evict(self, pages: int) -> None:
        before, could = self.cache.total, self.cache.evictable
        result = self.cache.evict(pages * self.page_size)
        self.take()
        assert result.tokens == before - self.cache.total
        assert result.tokens >= min(pages * self.page_size, could)

    @precondition(lambda self: len(self.live) > PAGES // 3)
    @rule()
    def evict_one_node(self) -> None:
        """The queue's choice is the smallest of all leaves."""
        leaves = [node for node in self.cache._tree if not node.children and not node.locks]
        if leaves:
            victim = min(leaves, key=self.order)
            self.cache.evict(1)
            assert victim.parent is None
            self.take()

    @rule(target=locked, prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def lock(self, prompt: Prompt, namespace: Namespace) -> Node:
        tokens = prompt.tokens(self.page_size)
        node = self.cache.match_prefix(tokens, extra_key=namespace[0], cache_salt=namespace[1]).node
        self.cache.lock(node)
        self.locked_blocks.append((node, set(self.cached(tokens, namespace))))
        return node

    @rule(node=consumes(locked))
    def unlock(self, node: Node) -> None:
        self.cache.unlock(node)
        at = next((at for at, (held, _) in enumerate(self.locked_blocks) if held is node), None)
        if at is not None:
            del self.locked_blocks[at]

    @precondition(lambda self: len(self.live) == PAGES)
    @rule()
    def reset(self) -> None:
        self.locked_blocks.clear()
        self.cache.reset()
        self.take()
        assert not self.live

    @rule(prompt=PROMPTS, token=st.sampled_from([-1, 1 << 64]), off=st.sampled_from([-1, 1]))
    def refuse(self, prompt: Prompt, token: int, off: int) -> None:
        tokens = prompt.tokens(self.page_size)
        with pytest.raises(ValueError, match="token ids: expected"):
            self.cache.insert([*tokens, token])
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
        cached = [slot for node in self.cache._tree for slot in node.slots or ()]
        assert not self.lent_slots & set(cached)
        free = self.cache.allocator.capacity - len(cached) - len(self.lent_slots)
        assert self.cache.allocator.available == free

    @invariant()
    def it_fits_together(self) -> None:
        self.cache.check_integrity()


TestRadixCache = RadixCacheMachine.TestCase
TestRadixCache.settings = settings(settings.default, stateful_step_count=60)
