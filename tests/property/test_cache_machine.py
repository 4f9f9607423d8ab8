"""The caches under any sequence of calls, against plain models of what they hold and announce."""

from array import array
from typing import Any, NamedTuple

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
    run_state_machine_as_test,
)

from cache_model import ANY_NAMESPACE, PLAIN, PROMPTS, EventModel, Namespace, Prefix, Prompt
from kvevents.caches import Layers, Mamba, Node, PrefixCache, RadixCache, SlidingWindow, UnifiedRadixCache
from kvevents.caches.eviction import POLICIES
from kvevents.errors import CapacityError
from kvevents.events import KVCacheEvent
from kvevents.index import GroupSpec, PrefixIndex
from kvevents.recorder import EventRecorder
from kvevents.wire import decode_batch
from residency import Residency

PAGES = 12
SESSIONS = ("a", "b")
"""Pages that the cache has room for; with a window or states there is less room for those."""
WINDOW_PAGES = 8
STATES = 4


class Locked(NamedTuple):
    """A lock and the blocks that it keeps, by component."""

    node: Node
    blocks: dict[str, set[Prefix]]


class CacheMachine(RuleBasedStateMachine):
    """Holds a model of which prefixes are cached, built from the decoded batches alone, and of all slots."""

    has_window = False
    has_state = False
    locked = Bundle("locked")
    lent = Bundle("lent")

    def make(self, settings: dict[str, Any]) -> PrefixCache:
        components: list[Layers] = []
        if self.has_window:
            components.append(SlidingWindow(self.window, WINDOW_PAGES * self.page_size))
        if self.has_state:
            components.append(Mamba(STATES))
        return UnifiedRadixCache(components=components, announce_groups=True, **settings)

    @initialize(
        page_size=st.integers(1, 3),
        window=st.integers(1, 6),
        policy=st.sampled_from(sorted(POLICIES)),
        bigram=st.booleans(),
        keep_sessions=st.booleans(),
        prompts=st.lists(PROMPTS, min_size=2, max_size=6),
    )
    def build(
        self, page_size: int, window: int, policy: str, bigram: bool, keep_sessions: bool, prompts: list[Prompt]
    ) -> None:
        self.page_size = page_size
        self.window = window
        self.cache = self.make(
            {
                "page_size": page_size,
                "capacity": PAGES * page_size,
                "eviction_policy": policy,
                "bigram": bigram,
                "keep_sessions": keep_sessions,
                # In this format ids are unique to their namespace, and the name says the adapter to the index.
                "recorder": EventRecorder(page_size, event_format="dynamo", lora_names={"adapter": "poet"}),
            }
        )
        self.index = PrefixIndex(page_size)
        # The index has to know of a group before it has announced anything, or has nothing left.
        specs = {"full": GroupSpec("full"), "sliding_window": GroupSpec("sliding_window", window + 1)}
        groups = {at: specs.get(component, GroupSpec(component)) for at, component in enumerate(self.cache.allocators)}
        self.index.add_worker("engine", groups=groups)
        self.model = EventModel(
            self.cache.allocators, page_size=page_size, bigram=self.cache.bigram, removed=self.removed
        )
        self.consumers = {component: Residency() for component in self.model.components}
        self.slots: dict[Prefix, list[int]] = {}
        self.lent_slots: set[int] = set()
        self.locks: list[Locked] = []
        self.take()
        for prompt in prompts:
            self.insert(prompt, PLAIN, priority=0, inserted_length=0, window_start=0, session_id=None)

    @property
    def live(self) -> dict[Prefix, Any]:
        return self.model.live["full"]

    def take(self, namespace: Namespace = PLAIN) -> None:
        """Bring the models up to date with what the cache announced in one call on a namespace."""
        data = self.cache.take_batch(ts=0.0)
        if data is None:
            return
        self.index.apply("engine", data)
        events = decode_batch(data).events
        self.model.apply(events, namespace)
        for index, component in enumerate(self.model.components):
            self.consumers[component].apply([event for event in events if group(event) in {None, index}])
        self.slots = {prefix: slots for prefix, slots in self.slots.items() if prefix in self.live}

    @rule(session_id=st.sampled_from(SESSIONS))
    def close_session(self, session_id: str) -> None:
        self.cache.close_session(session_id)
        assert not self.cache.close_session(session_id)
        assert self.cache.take_batch() is None

    def removed(self, component: str, prefix: Prefix) -> None:
        for lock in self.locks:
            assert prefix not in lock.blocks[component], f"a locked block was evicted from {component}"

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE, typecode=st.sampled_from(["list", "q", "Q"]))
    def match(self, prompt: Prompt, namespace: Namespace, typecode: str) -> None:
        tokens = prompt.tokens(self.page_size)
        expected = self.model.usable(tokens, namespace, self.window)
        match = self.cache.match_prefix(
            tokens if typecode == "list" else array(typecode, tokens), extra_key=namespace[0], cache_salt=namespace[1]
        )
        assert match.length == len(expected) * self.page_size
        assert len(match.slots) == match.length
        for index, prefix in enumerate(expected):
            slots = match.slots[index * self.page_size : (index + 1) * self.page_size].tolist()
            assert self.slots.setdefault(prefix, slots) == slots, "a block changed its slots"
        assert self.cache.take_batch() is None
        if not self.cache.bigram:
            lora_name = "poet" if namespace[0] else None
            matches = self.index.match(tokens, lora_name=lora_name, cache_salt=namespace[1])
            assert sum(match.usable for match in matches) == len(expected), "the index says otherwise"

    @rule(
        prompt=PROMPTS,
        namespace=ANY_NAMESPACE,
        priority=st.integers(0, 3),
        inserted_length=st.integers(0, 6),
        window_start=st.integers(0, 5),
        session_id=st.sampled_from([None, *SESSIONS]),
    )
    def insert(
        self,
        prompt: Prompt,
        namespace: Namespace,
        priority: int,
        inserted_length: int,
        window_start: int,
        session_id: str | None,
    ) -> None:
        tokens = prompt.tokens(self.page_size)
        wanted = self.model.prefixes(tokens, namespace)
        found = self.model.cached(tokens, namespace)
        need = self.needed(wanted, window_start)
        free = {component: allocator.available for component, allocator in self.cache.allocators.items()}
        before = {component: self.cache.holdings(component) for component in need}
        error: CapacityError | None = None
        try:
            result = self.cache.insert(
                tokens,
                extra_key=namespace[0],
                cache_salt=namespace[1],
                priority=priority,
                inserted_length=inserted_length,
                window_start=window_start * self.page_size,
                session_id=session_id,
            )
        except CapacityError as refused:
            error = refused
        if error is not None:
            assert any(need[component] == error.requested > free[component] for component in need)
            assert error.requested > error.available
            assert before == {component: self.cache.holdings(component) for component in need}
            assert self.cache.take_batch() is None
            return
        self.take(namespace)
        assert result.prefix_length == len(found) * self.page_size
        assert result.length == len(wanted) * self.page_size
        assert self.model.cached(tokens, namespace) == wanted
        assert set(wanted[window_start:]) <= self.held("sliding_window", wanted)
        assert set(wanted[-1:]) <= self.held("mamba", wanted)
        assert sum(map(len, result.window_kept)) == need.get("sliding_window", 0)
        assert result.state_kept == bool(need.get("mamba"))

    def needed(self, wanted: list[Prefix], window_start: int) -> dict[str, int]:
        """Slots that an insert takes, by component."""
        missing = {
            "full": [block for block in wanted if block not in self.live],
            "sliding_window": [block for block in wanted[window_start:] if block not in self.held("sliding_window")],
            "mamba": [block for block in wanted[-1:] if block not in self.held("mamba")],
        }
        units = {"full": self.page_size, "sliding_window": self.page_size, "mamba": 1}
        return {name: len(missing[name]) * units[name] for name in self.model.components}

    def held(self, component: str, otherwise: list[Prefix] | None = None) -> set[Prefix]:
        """What a component holds; in a cache without it, what was passed."""
        return set(self.model.live.get(component, otherwise or ()))

    @rule(target=lent, pages=st.integers(1, 3))
    def allocate(self, pages: int) -> object:
        slots = self.borrow(pages * self.page_size, "full")
        if slots is None:
            return multiple()
        assert not self.lent_slots & set(slots)
        self.lent_slots |= set(slots)
        return slots

    def borrow(self, count: int, component: str) -> "array[int] | None":
        if component not in self.model.components:
            return None
        room = self.cache.allocators[component].available + self.cache.sizes(component).evictable
        if count > room:
            with pytest.raises(CapacityError) as error:
                self.cache.allocate(count, component)
            assert (error.value.requested, error.value.available) == (count, room)
            return None
        slots = self.cache.allocate(count, component)
        self.take()
        assert len(slots) == count
        return slots

    @rule(slots=consumes(lent), prompt=PROMPTS, namespace=ANY_NAMESPACE, window_start=st.integers(0, 2))
    def insert_lent(self, slots: "array[int]", prompt: Prompt, namespace: Namespace, window_start: int) -> None:
        tokens = (prompt.tokens(self.page_size) + [7] * len(slots))[: len(slots)]
        start = min(window_start * self.page_size, len(tokens))
        window = self.borrow(len(tokens) - start, "sliding_window")
        state = self.borrow(1, "mamba")
        found = self.model.cached(tokens, namespace)
        result = self.cache.insert(
            tokens,
            slots,
            extra_key=namespace[0],
            cache_salt=namespace[1],
            window_slots=window,
            window_start=start,
            state_slot=None if state is None else state[0],
        )
        self.take(namespace)
        assert result.prefix_length == len(found) * self.page_size
        for index, prefix in enumerate(self.model.prefixes(tokens, namespace)):
            if prefix not in found:
                self.slots[prefix] = slots[index * self.page_size : (index + 1) * self.page_size].tolist()
        self.cache.allocator.free(slots[: result.prefix_length] + slots[result.length :])
        self.lent_slots -= set(slots)
        if window is not None:
            kept = {unit for units in result.window_kept for unit in units}
            self.cache.allocators["sliding_window"].free(
                [slot for unit, slot in enumerate(window, start) if unit not in kept]
            )
        if state is not None and not result.state_kept:
            self.cache.allocators["mamba"].free(state)

    @rule(slots=consumes(lent))
    def free(self, slots: "array[int]") -> None:
        self.cache.allocator.free(slots)
        self.lent_slots -= set(slots)

    @precondition(lambda self: len(self.live) > PAGES // 3)
    @rule(pages=st.integers(0, 4), window_pages=st.integers(0, 3), states=st.integers(0, 2))
    def evict(self, pages: int, window_pages: int, states: int) -> None:
        asked = (pages * self.page_size, window_pages * self.page_size, states)
        before = self.sizes()
        result = self.cache.evict(asked[0], window_tokens=asked[1], states=asked[2])
        self.take()
        for freed, wanted, (total, evictable), (left, _) in zip(result, asked, before, self.sizes(), strict=True):
            assert freed == total - left
            assert freed >= min(wanted, evictable)

    def sizes(self) -> list[tuple[int, int]]:
        """What there is and what is evictable, of each component that a cache may have."""
        names = ["full", "sliding_window", "mamba"]
        return [self.cache.sizes(name)[:2] if name in self.model.components else (0, 0) for name in names]

    @precondition(lambda self: len(self.live) > PAGES // 3)
    @rule(which=st.integers(0, 2))
    def evict_one_node(self, which: int) -> None:
        """A queue's choice is the smallest of all candidates."""
        components = self.cache._components
        component = components[which % len(components)]
        candidates = [node for node in self.cache._tree if component.can_lose(node)]
        if candidates:
            victim = min(candidates, key=component.order)
            self.cache._evictor.free([int(each is component) for each in components])
            assert component.part(victim).slots is None
            self.take()

    @rule(target=locked, prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def lock(self, prompt: Prompt, namespace: Namespace) -> Node:
        tokens = prompt.tokens(self.page_size)
        node = self.cache.match_prefix(tokens, extra_key=namespace[0], cache_salt=namespace[1]).node
        self.cache.lock(node)
        usable = self.model.usable(tokens, namespace, self.window)
        window = self.model.window(usable, self.window)
        self.locks.append(Locked(node, {"full": set(usable), "sliding_window": set(window), "mamba": set(usable[-1:])}))
        return node

    @rule(node=consumes(locked))
    def unlock(self, node: Node) -> None:
        self.cache.unlock(node)
        at = next((at for at, lock in enumerate(self.locks) if lock.node is node), None)
        if at is not None:
            del self.locks[at]

    @precondition(lambda self: len(self.live) == PAGES)
    @rule()
    def reset(self) -> None:
        self.locks.clear()
        self.cache.reset()
        self.take()
        assert not any(self.model.live.values())

    @precondition(lambda self: not self.locks and len(self.live) > PAGES // 2)
    @rule()
    def evict_everything(self) -> None:
        self.cache.evict(PAGES * self.page_size)
        self.take()
        assert not any(self.model.live.values())

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
        for component, consumer in self.consumers.items():
            holdings = self.cache.holdings(component)
            assert consumer.held() == holdings
            assert {(block, "GPU") for block in self.model.live[component].values()} == holdings
            units = 1 if component == "mamba" else self.page_size
            assert self.cache.sizes(component).total == len(holdings) * units

    @invariant()
    def no_slot_is_lost_or_used_twice(self) -> None:
        for component in self.cache._components:
            cached = [slot for node in self.cache._tree for slot in component.part(node).slots or ()]
            lent = self.lent_slots if component.group == "full" else set()
            assert not lent & set(cached)
            assert component.allocator.available == component.allocator.capacity - len(cached) - len(lent)

    @invariant()
    def it_fits_together(self) -> None:
        self.cache.check_integrity()


def group(event: KVCacheEvent) -> int | None:
    """The group that an event speaks of; None: of all."""
    return getattr(event, "group_idx", 0) or 0 if hasattr(event, "block_hashes") else None


class RadixMachine(CacheMachine):
    def make(self, settings: dict[str, Any]) -> PrefixCache:
        return RadixCache(**settings)


class FullMachine(CacheMachine):
    """The unified tree with full attention alone."""


class WindowMachine(CacheMachine):
    has_window = True


class StateMachine(CacheMachine):
    has_state = True


class MixedMachine(CacheMachine):
    has_window = True
    has_state = True


MACHINES = [RadixMachine, FullMachine, WindowMachine, StateMachine, MixedMachine]


@pytest.mark.parametrize("machine", MACHINES)
def test_any_sequence_of_calls(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(settings.default, stateful_step_count=40))
