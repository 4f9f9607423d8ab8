"""The contract of every level: after each batch all kinds of consumers hold what they hold without coalescing."""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from block_streams import Batches, batches
from consumers import Kind, consumers, key
from kvevents.coalescing import Coalescer, Level
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.wire import decode_batch, encode_batch

LEVELS: tuple[Level, ...] = get_args(Level)


def coalesced(coalescer: Coalescer, events: list[KVCacheEvent]) -> list[KVCacheEvent]:
    for start in range(0, len(events), 5):  # a window of several payloads
        assert coalescer.add(encode_batch(KVEventBatch(1.0, events[start : start + 5], 0))) == []
    data = coalescer.take_batch()
    return [] if data is None else decode_batch(data).events


def breaks(coalesce: Callable[[list[KVCacheEvent]], list[KVCacheEvent]], batches: Batches) -> Kind | None:
    """The first kind of consumer to which the coalesced stream does not look like the raw one."""
    raw, seen = consumers(), consumers()
    for events in batches:
        merged = coalesce(events)
        for kind in raw:
            raw[kind].apply(events)
            seen[kind].apply(merged)
            if raw[kind].held() != seen[kind].held():
                return kind
    return None


def announcements(events: list[KVCacheEvent]) -> Iterator[Any]:
    """A stream, one block an event where that is possible, with all that it says."""
    for event in events:
        match event:
            case BlockStored() if len(event.token_ids) == len(event.block_hashes) * event.block_size:
                parent = event.parent_block_hash
                rest = (event.block_size, event.medium, event.group_idx, event.session_id)
                for at, block in enumerate(event.block_hashes):
                    tokens = event.token_ids[at * event.block_size : (at + 1) * event.block_size]
                    entry = None if event.extra_keys is None else event.extra_keys[at]
                    yield ("stored", block, parent, str((tokens, entry)), *rest)
                    parent = block
            case BlockRemoved():
                yield from (("removed", block, event.medium, event.group_idx) for block in event.block_hashes)
            case _:
                yield repr(event)


@pytest.mark.parametrize("level", LEVELS)
@given(batches())
def test_all_kinds_of_consumers_hold_the_same_after_each_batch(level: Level, batches: Batches) -> None:
    coalescer = Coalescer(level, from_start=True)
    assert breaks(lambda events: coalesced(coalescer, events), batches) is None


@given(batches(), st.integers(0, 3))
def test_a_relay_that_came_late_leaves_what_it_does_not_know(batches: Batches, missed: int) -> None:
    coalescer = Coalescer("compact")
    late = iter([False] * missed)
    assert breaks(lambda events: coalesced(coalescer, events) if next(late, True) else events, batches) is None


@pytest.mark.parametrize("level", ["off", "adjacent", "chain"])
@given(batches())
def test_nothing_is_lost_and_nothing_made_up(level: Level, batches: Batches) -> None:
    coalescer = Coalescer(level)
    for events in batches:
        merged = coalesced(coalescer, events)
        assert Counter(announcements(merged)) == Counter(announcements(events))
        if level in {"off", "adjacent"}:
            assert list(announcements(merged)) == list(announcements(events))
        if level == "off":
            assert merged == events


@given(batches())
def test_chain_merges_whatever_may_be_merged(batches: Batches) -> None:
    coalescer = Coalescer("chain")
    for events in batches:
        assert coalesced(coalescer, events) == PlainChain().coalesce(events)


@given(batches())
def test_each_level_says_no_more_than_the_one_before(batches: Batches) -> None:
    coalescers = [Coalescer(level, from_start=True) for level in LEVELS]
    for events in batches:
        said = [coalesced(coalescer, events) for coalescer in coalescers]
        lengths = [len(events) for events in said]
        assert lengths == sorted(lengths, reverse=True)
        chain, compact = (Counter(announcements(events)) for events in said[2:])
        assert compact <= chain


class PlainChain:
    """The level `chain` event by event, as slow as it is plain. Subclasses are wrong."""

    def coalesce(self, events: list[KVCacheEvent]) -> list[KVCacheEvent]:
        queue: list[KVCacheEvent] = []
        for event in decode_batch(encode_batch(KVEventBatch(0.0, events))).events:  # copies: they grow
            for earlier in reversed(queue):
                if self.takes(earlier, event):
                    self.fold(earlier, event)
                    break
                if self.keeps_apart(earlier, event):
                    queue.append(event)
                    break
            else:
                queue.append(event)
        return queue

    def takes(self, tail: Any, event: Any) -> bool:
        match tail, event:
            case BlockRemoved(), BlockRemoved():
                return (tail.medium, tail.group_idx) == (event.medium, event.group_idx)
            case BlockStored(), BlockStored() if event.parent_block_hash is not None:
                fields = ("block_size", "medium", "group_idx", "session_id")
                return (
                    all(len(store.token_ids) == len(store.block_hashes) * store.block_size for store in (tail, event))
                    and all(getattr(tail, name) == getattr(event, name) for name in fields)
                    and (tail.extra_keys is None) == (event.extra_keys is None)
                    and tail.block_hashes[-1] == event.parent_block_hash
                )
            case _:
                return False

    def fold(self, tail: Any, event: Any) -> None:
        for name in ("block_hashes", "token_ids", "extra_keys"):
            if (more := getattr(event, name, None)) is not None:
                getattr(tail, name).extend(more)

    def keeps_apart(self, earlier: KVCacheEvent, event: KVCacheEvent) -> bool:
        return self.is_barrier(earlier) or self.is_barrier(event) or bool(self.names(earlier) & self.names(event))

    def is_barrier(self, event: KVCacheEvent) -> bool:
        return isinstance(event, AllBlocksCleared)

    def names(self, event: Any) -> set[int]:
        parent = getattr(event, "parent_block_hash", None)
        return {key(block) for block in [*event.block_hashes, *([] if parent is None else [parent])]}


class LooksAtRemovalsOnly(PlainChain):
    def keeps_apart(self, earlier: KVCacheEvent, event: KVCacheEvent) -> bool:
        return self.is_barrier(earlier) or (isinstance(earlier, BlockRemoved) and super().keeps_apart(earlier, event))


def test_the_consumers_catch_a_coalescer_that_looks_at_removals_only() -> None:
    search = settings(max_examples=5_000, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    assert find(batches(), lambda batches: breaks(LooksAtRemovalsOnly().coalesce, batches) is not None, settings=search)


@given(batches())
def test_the_consumers_let_the_plain_one_pass(batches: Batches) -> None:
    assert breaks(PlainChain().coalesce, batches) is None


def put(*blocks: int, parent: int | None = None, tier: str = "GPU") -> BlockStored:
    return BlockStored([*blocks], parent, [*blocks], 1, medium=tier)


def drop(*blocks: int, tier: str = "GPU") -> BlockRemoved:
    return BlockRemoved([*blocks], tier)


CLEAR = AllBlocksCleared()


class Trap(NamedTuple):
    """A stream, and how it must not be coalesced; `sees` names the kind of consumer that tells the difference."""

    batches: Batches
    wrong: Batches
    sees: Kind


TRAPS = {
    "a removal moved before the store of its block": Trap([[drop(8), put(1), drop(1)]], [[drop(8, 1), put(1)]], "sets"),
    "a removal moved before a child's store": Trap(
        [[put(1)], [drop(8), put(2, parent=1), drop(1)]], [[put(1)], [drop(8, 1), put(2, parent=1)]], "drops"
    ),
    "a removal moved before a child's store in another tier": Trap(
        [[put(1)], [drop(8), put(2, parent=1, tier="DISK"), drop(1)]],
        [[put(1)], [drop(8, 1), put(2, parent=1, tier="DISK")]],
        "drops",
    ),
    "a store moved before the removal of its parent": Trap(
        [[put(1), drop(1), put(2, parent=1)]], [[put(1, 2), drop(1)]], "drops"
    ),
    "a store moved past a clear": Trap([[put(1), CLEAR, put(2, parent=1)]], [[put(1, 2), CLEAR]], "sets"),
    "a removal moved past a clear": Trap(
        [[put(1)], [drop(8), CLEAR, put(1), drop(1)]], [[put(1)], [drop(8, 1), CLEAR, put(1)]], "sets"
    ),
    "stores that do not continue each other": Trap([[put(2, parent=1), put(3)]], [[put(2, 3, parent=1)]], "drops"),
    "a second store cancelled with a removal": Trap([[put(1)], [put(1), drop(1)]], [[put(1)], []], "sets"),
    "a removal of what is absent cancelled with a store": Trap([[drop(1), put(1)]], [[]], "sets"),
    "a copy that sets have lost cancelled by its count": Trap(
        [[put(1), put(1), drop(1)], [drop(1), put(1)]], [[put(1), put(1), drop(1)], []], "sets"
    ),
    "an orphan's store cancelled": Trap(
        [[put(1), put(2, parent=1), drop(1)], [drop(2), put(2, parent=1)]], [[put(1, 2), drop(1)], []], "drops"
    ),
    "a removal and a store cancelled past a clear": Trap(
        [[put(1)], [drop(1), CLEAR, put(1)]], [[put(1)], [CLEAR]], "sets"
    ),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS.keys())
def test_no_level_walks_into_a_trap_that_the_consumers_see(trap: Trap) -> None:
    outputs = iter(trap.wrong)
    assert breaks(lambda events: next(outputs), trap.batches) == trap.sees
    for level in LEVELS:
        coalescer = Coalescer(level, from_start=True)
        assert breaks(functools.partial(coalesced, coalescer), trap.batches) is None
