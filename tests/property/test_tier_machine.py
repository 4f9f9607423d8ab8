"""Caches with tiers under any sequence of calls, with stores that fail, are late or are full."""

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
    precondition,
    rule,
    run_state_machine_as_test,
)

from cache_model import ANY_NAMESPACE, PLAIN, PROMPTS, Namespace, Prefix, Prompt
from kvevents.caches import HiRadixCache, Layers, Mamba, Node, SlidingWindow, SlotMemory, WritePolicy
from kvevents.errors import CapacityError
from kvevents.events import BlockHash
from kvevents.index import PrefixIndex
from kvevents.recorder import EventRecorder
from kvevents.wire import decode_batch
from residency import Residency
from tier_model import CALLS, MoodyStore, TierModel, content

PAGES = {"device": 8, "host": 10, "storage": 7}
STATES = 4
SESSIONS = ("a", "b")
LOWER = ("CPU_PINNED", "DISK", "EXTERNAL")


class Locked(NamedTuple):
    """A lock, and the blocks it keeps on the device or wherever they were."""

    node: Node
    blocks: list[Prefix]


class TierMachine(RuleBasedStateMachine):
    """Follows the decoded batches alone; knows the bytes of every block."""

    has_window = False
    has_state = False
    has_store = True
    locked = Bundle("locked")

    @initialize(
        page_size=st.integers(1, 3),
        window=st.integers(1, 5),
        write_policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
        prompts=st.lists(PROMPTS, min_size=2, max_size=6),
    )
    def build(self, page_size: int, window: int, write_policy: WritePolicy, prompts: list[Prompt]) -> None:
        self.page_size = page_size
        self.window = window
        self.write_policy: WritePolicy = write_policy
        self.device = {name: SlotMemory(bytearray(8 * 64), 8) for name in ("full", "sliding_window", "mamba")}
        host = {name: SlotMemory(bytearray(8 * 64), 8) for name in ("full", "sliding_window", "mamba")}
        self.store = MoodyStore(PAGES["storage"], device=self.device, host=host)
        self.prefixes: dict[BlockHash, Prefix] = {}
        self.open()
        for prompt in prompts:
            self.insert(prompt, PLAIN, window_start=0, session_id=None)

    def open(self) -> None:
        """A new cache, over what the store has."""
        components: list[Layers] = []
        if self.has_window:
            components.append(SlidingWindow(self.window, (PAGES["device"] - 2) * self.page_size))
        if self.has_state:
            components.append(Mamba(STATES))
        self.cache = HiRadixCache(
            host_tokens=PAGES["host"] * self.page_size,
            write_policy=self.write_policy,
            storage=self.store if self.has_store else None,
            components=components,
            load_back_threshold=1,
            page_size=self.page_size,
            keep_sessions=True,
            capacity=PAGES["device"] * self.page_size,
            recorder=EventRecorder(self.page_size, event_format="dynamo", lora_names={"adapter": "poet"}),
            announce_groups=bool(components),
        )
        self.model = TierModel(self.cache.allocators, page_size=self.page_size, prefixes=self.prefixes)
        self.consumers = {component: Residency() for component in self.model.components}
        self.index = PrefixIndex(self.page_size)
        self.locks: list[Locked] = []
        self.take()

    def take(self, namespace: Namespace = PLAIN) -> None:
        """Bring the models up to date."""
        data = self.cache.take_batch(ts=0.0)
        if data is None:
            return
        self.index.apply("engine", data)
        events = decode_batch(data).events
        self.model.apply(events, namespace)
        for index, component in enumerate(self.model.components):
            self.consumers[component].apply(
                [
                    event
                    for event in events
                    if (getattr(event, "group_idx", None) or 0) == index or not hasattr(event, "block_hashes")
                ]
            )

    @rule(
        prompt=PROMPTS,
        namespace=ANY_NAMESPACE,
        window_start=st.integers(0, 3),
        session_id=st.sampled_from([None, *SESSIONS]),
    )
    def insert(self, prompt: Prompt, namespace: Namespace, window_start: int, session_id: str | None) -> None:
        tokens = prompt.tokens(self.page_size)
        blocks = self.model.blocks(tokens, namespace)
        before = self.holdings()
        try:
            result = self.cache.insert(
                tokens,
                extra_key=namespace[0],
                cache_salt=namespace[1],
                window_start=window_start * self.page_size,
                session_id=session_id,
            )
        except CapacityError:
            assert {(block, tier) for block, tier in before if tier == "GPU"} == {
                (block, tier) for block, tier in self.holdings() if tier == "GPU"
            }
            self.take(namespace)
            return
        self.take(namespace)
        assert all(self.model.holds("full", block, ["GPU"]) for block in blocks)
        size = self.page_size
        new = [*result.refilled, range(result.prefix_length, result.length)]
        slots = self.cache.slots(result.node)
        for unit in (unit for units in new for unit in units):
            self.device["full"].write([slots[unit]], self.expected("full", blocks[unit // size], unit % size))
        if self.has_window and result.window_kept:
            self.fill_windows(result.node, blocks, {unit for units in result.window_kept for unit in units})
        if result.state_kept:
            (state,) = self.cache.slots(result.node, "mamba")
            self.device["mamba"].write([state], content(blocks[-1], "mamba", size))

    def fill_windows(self, node: Node, blocks: list[Prefix], units: set[int]) -> None:
        component = self.cache._by_group["sliding_window"]
        at = node
        while at.parent is not None:
            slots = component.part(at).slots
            for offset, slot in enumerate(slots or ()):
                unit = at.end - at.length + offset
                if unit in units:
                    block = blocks[unit // self.page_size]
                    self.device["sliding_window"].write(
                        [slot], self.expected("sliding_window", block, unit % self.page_size)
                    )
            at = at.parent

    def expected(self, component: str, block: Prefix, unit: int) -> bytes:
        return content(block, component, self.page_size)[unit * 8 : (unit + 1) * 8]

    @rule(session_id=st.sampled_from(SESSIONS))
    def close_session(self, session_id: str) -> None:
        self.cache.close_session(session_id)
        assert self.cache.take_batch() is None

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def match(self, prompt: Prompt, namespace: Namespace) -> None:
        self.find(prompt, namespace)

    def find(self, prompt: Prompt, namespace: Namespace) -> Node:
        tokens = prompt.tokens(self.page_size)
        blocks = self.model.blocks(tokens, namespace)
        match = self.cache.match_prefix(tokens, extra_key=namespace[0], cache_salt=namespace[1])
        on_device = self.model.usable(blocks, self.window, ["GPU"])
        anywhere = self.model.usable(blocks, self.window)
        below = [block for block in anywhere[len(on_device) :] if self.model.holds("full", block, LOWER)]
        assert match.length == len(match.slots) == len(on_device) * self.page_size
        assert match.host_length == len(below) * self.page_size
        assert match.node.end == len(anywhere) * self.page_size
        assert self.cache.take_batch() is None
        for index, slot in enumerate(match.slots if self.has_store else ()):
            block = on_device[index // self.page_size]
            assert self.device["full"].read([slot]) == self.expected("full", block, index % self.page_size)
        return match.node

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def load_back(self, prompt: Prompt, namespace: Namespace) -> None:
        node = self.find(prompt, namespace)
        blocks = self.model.blocks(prompt.tokens(self.page_size), namespace)
        anywhere = self.model.usable(blocks, self.window)
        failures = dict(self.cache.failures)
        missing = len(anywhere) > len(self.model.usable(blocks, self.window, ["GPU"]))
        loaded = self.cache.load_back(node)
        self.take(namespace)
        if loaded:
            assert missing
            assert self.model.usable(blocks, self.window, ["GPU"]) == anywhere
            self.find(prompt, namespace)
            if self.has_store:
                self.check_bytes(node, blocks)
        else:
            assert not missing or self.cache.failures != failures

    @precondition(lambda self: self.has_store)
    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def lose(self, prompt: Prompt, namespace: Namespace) -> None:
        """Only the store is left, and cannot read."""
        self.cache.wait()
        self.cache.evict(PAGES["device"] * self.page_size)
        self.cache.evict_host(PAGES["host"] * self.page_size)
        self.take()
        self.store.moods["read"] = "fails"
        self.load_back(prompt, namespace)

    def check_bytes(self, node: Node, blocks: list[Prefix]) -> None:
        """Windows and states that a load has brought back are those of the prompt."""
        size = self.page_size
        if self.has_window:
            slots = self.cache.slots(node, "sliding_window")
            start = node.end - len(slots)
            for offset, slot in enumerate(slots):
                unit = start + offset
                expected = self.expected("sliding_window", blocks[unit // size], unit % size)
                assert self.device["sliding_window"].read([slot]) == expected
        if self.has_state and not node.is_root:
            (state,) = self.cache.slots(node, "mamba")
            assert self.device["mamba"].read([state]) == content(blocks[node.end // size - 1], "mamba", size)

    @rule(
        call=st.sampled_from(CALLS),
        mood=st.sampled_from(["fails", "late", "fails late", "is cancelled"]),
    )
    def mood(self, call: str, mood: str) -> None:
        self.store.moods[call] = mood

    @rule()
    def poll(self) -> None:
        self.cache.poll()
        self.take()

    @rule()
    def finish_copies(self) -> None:
        self.store.finish()

    @rule(pages=st.integers(0, 5), window_pages=st.integers(0, 3), states=st.integers(0, 2))
    def evict(self, pages: int, window_pages: int, states: int) -> None:
        evictable = self.cache.evictable
        result = self.cache.evict(pages * self.page_size, window_tokens=window_pages * self.page_size, states=states)
        assert result.tokens >= min(pages * self.page_size, evictable)
        self.take()

    @rule(pages=st.integers(0, 5), which=st.integers(0, 2))
    def evict_host(self, pages: int, which: int) -> None:
        component = self.model.components[which % len(self.model.components)]
        on_device = {block for block, tier in self.holdings() if tier == "GPU"}
        self.cache.evict_host(pages * self.page_size, component)
        self.take()
        assert {block for block, tier in self.holdings() if tier == "GPU"} == on_device

    @rule(prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def insert_host(self, prompt: Prompt, namespace: Namespace) -> None:
        tokens = prompt.tokens(self.page_size)
        blocks = self.model.blocks(tokens, namespace)
        try:
            result = self.cache.insert_host(tokens, extra_key=namespace[0], cache_salt=namespace[1])
        except CapacityError:
            self.take(namespace)
            return
        self.take(namespace)
        assert all(self.model.holds("full", block) for block in blocks)
        host = self.cache._tiers.host.full
        units = {unit for filled in result.filled for unit in filled}
        at = result.node
        while at.parent is not None:
            for offset, slot in enumerate(host.part(at).slots or ()):
                unit = at.end - at.length + offset
                if unit in units:
                    self.store._copier._host["full"].write(
                        [slot], self.expected("full", blocks[unit // self.page_size], unit % self.page_size)
                    )
            at = at.parent

    @rule(target=locked, prompt=PROMPTS, namespace=ANY_NAMESPACE)
    def lock(self, prompt: Prompt, namespace: Namespace) -> Node:
        node = self.find(prompt, namespace)
        self.cache.lock(node)
        blocks = self.model.blocks(prompt.tokens(self.page_size), namespace)[: node.end // self.page_size]
        self.locks.append(Locked(node, [block for block in blocks if self.model.holds("full", block, ["GPU"])]))
        return node

    @rule(node=consumes(locked))
    def unlock(self, node: Node) -> None:
        if self.cache._tree.is_foreign(node):  # of the process before a restart
            with pytest.raises(ValueError, match="unlock: the node is another cache's"):
                self.cache.unlock(node)
        elif node.held:
            self.cache.unlock(node)
        self.take()
        at = next((at for at, lock in enumerate(self.locks) if lock.node is node), None)
        if at is not None:
            del self.locks[at]

    @precondition(lambda self: len(self.model.live["GPU", "full"]) > PAGES["device"] // 2)
    @rule()
    def reset(self) -> None:
        self.locks.clear()
        self.cache.reset()
        self.take()
        assert not any(self.model.live.values())

    @precondition(lambda self: self.has_store and len(self.store.blocks()) > 2)
    @rule()
    def restart(self) -> None:
        """The next process finds what the store has kept."""
        self.store.moods.clear()
        self.store.finish()
        self.cache.poll()
        self.take()
        kept = {block for block, tier in self.holdings() if tier == "EXTERNAL"}
        self.open()
        assert {block for block, tier in self.holdings() if tier == "EXTERNAL"} >= kept

    def holdings(self) -> set[tuple[int, Any]]:
        return set(self.cache.holdings())

    @invariant()
    def what_was_announced_is_what_is_held(self) -> None:
        for component, consumer in self.consumers.items():
            assert consumer.held() == self.cache.holdings(component)
        if len(self.consumers) == 1:
            known = self.index.holdings("engine").get(0, {})
            assert {(block, tier) for tier, blocks in known.items() for block in blocks} == self.holdings()

    @invariant()
    def locks_keep_what_they_kept(self) -> None:
        for lock in self.locks:
            assert all(self.model.holds("full", block, ["GPU"]) for block in lock.blocks)

    @invariant()
    def no_slot_is_lost_or_used_twice(self) -> None:
        nodes = list(self.cache._tree)
        places = [*self.cache._components, *(copies for tier in self.cache._tiers.lower for copies in tier.copies)]
        for place in places:
            slots = [slot for node in nodes for slot in place.part(node).slots or ()]
            assert len(slots) == len(set(slots))
            assert place.allocator.available == place.allocator.capacity - len(slots)

    @invariant()
    def the_store_has_what_it_is_said_to_have(self) -> None:
        if self.has_store and not len(self.cache._storage.transfers):  # type: ignore[union-attr]  # it has one
            kept = {component: set() for component in self.model.components}  # type: ignore[var-annotated]
            for block in self.store.blocks():
                kept[block.component].add(block.key)
            for component, keys in kept.items():
                said = {block for block, tier in self.cache.holdings(component) if tier == "EXTERNAL"}
                assert len(keys) == len(said)

    @invariant()
    def it_fits_together(self) -> None:
        self.cache.check_integrity()


class FullMachine(TierMachine):
    """Full attention alone."""


class HostOnlyMachine(TierMachine):
    has_store = False


class WindowMachine(TierMachine):
    has_window = True


class StateMachine(TierMachine):
    has_state = True


class MixedMachine(TierMachine):
    has_window = True
    has_state = True


@pytest.mark.parametrize("machine", [FullMachine, HostOnlyMachine, WindowMachine, StateMachine, MixedMachine])
def test_any_sequence_of_calls(machine: type[TierMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings().max_examples // 3, stateful_step_count=30)
    )
