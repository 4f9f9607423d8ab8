"""Laws of coalescing: the merged stream says what the raw one says, for both recorders, against plain Python."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers import DropsOrphans, consumers, key
from hash_oracle import Unit, block_id, digests, wrapped
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from kvevents.hashing import EventFormat, HashChain
from kvevents.recorder import EventRecorder, KVCacheEventMixin
from kvevents.wire import Dialect, decode_batch
from strategies import DIALECTS

PAGE_SIZE = 2
LEVELS: tuple[Any, ...] = ("off", "adjacent", "chain", "compact")
NAMES = {"named": "adapter"}


class Namespace(NamedTuple):
    extra_key: str | None
    cache_salt: str | None


@dataclasses.dataclass
class Node:
    """A node of the tree that both recorders are told about."""

    parent: "Node | None"
    namespace: Namespace
    bigram: bool
    tokens: list[int]
    chain: HashChain
    digests: list[bytes]
    hash_value: list[str] | None = None

    @property
    def key(self) -> "Node | list[int]":
        return self if self.parent is not None else []

    @property
    def token_ids(self) -> list[int]:
        return self.tokens

    @property
    def extra_key(self) -> str | None:
        return self.namespace.extra_key

    @property
    def cache_salt(self) -> str | None:
        return self.namespace.cache_salt

    @property
    def is_bigram(self) -> bool:
        return self.bigram

    @property
    def units(self) -> list[Unit]:
        return list(itertools.pairwise(self.tokens)) if self.bigram else list(self.tokens)

    def announced(self, digest: bytes, event_format: str) -> int:
        key, salt = self.namespace
        if event_format == "dynamo":
            return wrapped(block_id(digest), key, salt) if key is not None or salt else block_id(digest)
        return wrapped(block_id(digest), key, None) if key in NAMES else block_id(digest)


class Step(NamedTuple):
    """One call of a recorder."""

    call: str
    node: Node | None = None
    medium: str = "GPU"
    session_id: str | None = None


class Engine(KVCacheEventMixin):
    def __init__(self, event_format: EventFormat) -> None:
        self.enable_kv_cache_events = True
        self.kv_event_queue: list[KVCacheEvent] = []
        self.page_size = PAGE_SIZE
        self.kv_event_format = event_format
        self.kv_event_lora_names = NAMES

    def do(self, step: Step) -> None:
        match step:
            case Step("store", Node() as node, medium, session_id):
                self._record_store_event(node, medium, session_id=session_id)
            case Step("remove", Node() as node, medium):
                self._record_remove_event(node, medium)
            case _:
                self._record_all_cleared_event()


def tell(recorder: EventRecorder, step: Step) -> None:
    match step:
        case Step("store", Node() as node, medium, session_id):
            recorder.store(node.chain, node.tokens, medium=medium, session_id=session_id)
        case Step("remove", Node() as node, medium):
            recorder.remove(node.chain, medium=medium)
        case _:
            recorder.clear()


def raw_event(step: Step, event_format: str) -> KVCacheEvent:
    """The event of one step, unmerged."""
    if step.node is None:
        return AllBlocksCleared()
    node = step.node
    hashes: list[Any] = [node.announced(digest, event_format) for digest in node.digests]
    if step.call == "remove":
        return BlockRemoved(hashes, step.medium)
    above = node.parent.digests[-1] if node.parent is not None and node.parent.digests else None
    return BlockStored(
        hashes,
        None if above is None else node.announced(above, event_format),
        node.units,  # type: ignore[arg-type]  # one kind of unit in a node
        PAGE_SIZE,
        medium=step.medium,
        cache_salt=node.cache_salt,
        session_id=step.session_id,
        lora_name=NAMES.get(node.extra_key or ""),
    )


def expanded(events: list[KVCacheEvent]) -> Iterator[tuple[Any, ...]]:
    """The stream, one block an event."""
    for event in events:
        match event:
            case BlockStored():
                parent = event.parent_block_hash
                rest = (event.block_size, event.medium, event.cache_salt, event.session_id, event.lora_name)
                for page, block in enumerate(event.block_hashes):
                    tokens = event.token_ids[page * event.block_size : (page + 1) * event.block_size]
                    yield ("stored", block, parent, tuple(tokens), *rest)
                    parent = block
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            case BlockRemoved():
                yield from (("removed", block, event.medium) for block in event.block_hashes)
            case _:
                yield ("cleared",)


def merged(events: list[KVCacheEvent]) -> list[int]:
    """How many raw events each merged event is made of, by the rule in plain Python."""
    groups: list[int] = []
    for before, event in itertools.pairwise([None, *events]):
        match before, event:
            case BlockRemoved(), BlockRemoved():
                joins = before.medium == event.medium
            case BlockStored(), BlockStored():
                fields = ("medium", "cache_salt", "session_id", "lora_name")
                joins = event.parent_block_hash == before.block_hashes[-1]
                joins = joins and isinstance(event.token_ids[0], tuple) == isinstance(before.token_ids[0], tuple)
                joins = joins and all(getattr(before, name) == getattr(event, name) for name in fields)
            case _:
                joins = False
        if joins:
            groups[-1] += 1
        else:
            groups.append(1)
    return groups


@st.composite
def streams(draw: st.DrawFn) -> tuple[EventFormat, list[Step]]:
    """A format, and calls about a small forest: parents before children, as often and in what order as may be."""
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 6))):
        above = draw(st.sampled_from([None, *nodes]))
        if above is None:
            namespace = Namespace(
                draw(st.sampled_from([None, "named", "other"])), draw(st.sampled_from([None, None, "salt"]))
            )
            bigram = draw(st.booleans())
            chain = HashChain.root(
                PAGE_SIZE, extra_key=namespace.extra_key, cache_salt=namespace.cache_salt, bigram=bigram
            )
            above = Node(None, namespace, bigram, [], chain, [])
        pages = draw(st.integers(1, 3))
        # Few ids: chains of different namespaces have equal tokens, and often equal ids.
        fresh = draw(st.lists(st.integers(0, 1), min_size=pages, max_size=pages))
        tokens = [token for token in fresh for _ in range(PAGE_SIZE)]
        if above.bigram:
            tokens = [above.tokens[-1] if above.tokens else 7, *tokens]
        node = Node(above, above.namespace, above.bigram, tokens, above.chain.extend(tokens), [])
        prior = above.digests[-1] if above.digests else None
        node.digests = digests(node.units, PAGE_SIZE, node.cache_salt, prior)
        nodes.append(node)
    steps = st.builds(
        Step,
        st.sampled_from(["store", "store", "store", "remove"]),
        st.sampled_from(nodes),
        st.sampled_from(["GPU", "GPU", "CPU_PINNED"]),
        st.sampled_from([None, None, "session"]),
    )
    return draw(st.sampled_from(["default", "dynamo"])), draw(
        st.lists(st.one_of(steps, steps, steps, st.just(Step("clear"))), max_size=25)
    )


@given(streams())
def test_expanding_what_the_event_recorder_merged_gives_the_raw_stream(stream: tuple[EventFormat, list[Step]]) -> None:
    event_format, steps = stream
    recorder = EventRecorder(PAGE_SIZE, event_format=event_format, lora_names=NAMES)
    for step in steps:
        tell(recorder, step)
    raw = [raw_event(step, event_format) for step in steps]
    events = recorder.take()
    assert list(expanded(events)) == list(expanded(raw))
    assert len(events) == len(merged(raw))
    stats = recorder.stats()
    assert (stats.recorded_events, stats.coalesced_events) == (len(raw), len(events))


@given(streams())
def test_expanding_what_the_mixin_merged_gives_the_raw_stream(stream: tuple[EventFormat, list[Step]]) -> None:
    event_format, steps = stream
    engine = Engine(event_format)
    for step in steps:
        engine.do(step)
    raw = [raw_event(step, event_format) for step in steps]
    events = engine.take_events()
    assert list(expanded(events)) == list(expanded(raw))
    assert len(events) == len(merged(raw))


@given(streams(), st.integers(1, 6))
def test_a_cap_bounds_merged_events_and_changes_nothing_else(
    stream: tuple[EventFormat, list[Step]], blocks: int
) -> None:
    event_format, steps = stream
    recorder = EventRecorder(PAGE_SIZE, event_format=event_format, lora_names=NAMES, max_event_blocks=blocks)
    for step in steps:
        tell(recorder, step)
    events = recorder.take()
    assert list(expanded(events)) == list(expanded([raw_event(step, event_format) for step in steps]))
    largest = max((len(step.node.digests) for step in steps if step.node), default=0)
    assert all(
        len(event.block_hashes) <= max(blocks, largest)
        for event in events
        if isinstance(event, BlockStored | BlockRemoved)
    )


@given(streams(), st.sampled_from(DIALECTS), st.sampled_from(LEVELS))
def test_both_ways_out_say_the_same(stream: tuple[EventFormat, list[Step]], dialect: Dialect, level: Any) -> None:
    event_format, steps = stream
    recorders = [
        EventRecorder(PAGE_SIZE, event_format=event_format, lora_names=NAMES, coalesce=level) for _ in range(2)
    ]
    for step in steps:
        for recorder in recorders:
            tell(recorder, step)
    events = recorders[0].take()
    data = recorders[1].take_batch(ts=1.5, dp_rank=3, dialect=dialect)
    if not events:
        assert data is None
        return
    assert data is not None
    batch = decode_batch(data)
    if dialect.startswith("vllm"):
        events = [as_vllm(event) for event in events]
    assert (batch.ts, batch.attn_dp_rank, batch.events, batch.skipped) == (1.5, 3, events, [])
    if level == "off":
        assert len(events) == len(steps)


def as_vllm(event: KVCacheEvent) -> KVCacheEvent:
    """The event as vLLM says it: ids unsigned, adapter and salt among the extra keys."""
    if isinstance(event, BlockRemoved):
        event.block_hashes = [key(block) for block in event.block_hashes]
    if isinstance(event, BlockStored):
        event.block_hashes = [key(block) for block in event.block_hashes]
        name = [] if event.lora_name is None else [event.lora_name]
        salt = [] if event.cache_salt is None or event.parent_block_hash is not None else [event.cache_salt]
        event.extra_keys = [name + salt or None] + [name or None] * (len(event.block_hashes) - 1)
        event.cache_salt = None
        if event.parent_block_hash is not None:
            event.parent_block_hash = key(event.parent_block_hash)
    return event


@pytest.mark.parametrize("level", LEVELS)
@given(streams(), st.lists(st.integers(0, 25), max_size=3))
def test_all_kinds_of_consumers_hold_the_same_after_each_batch(
    level: Any, stream: tuple[EventFormat, list[Step]], cuts: list[int]
) -> None:
    event_format, steps = stream
    recorder = EventRecorder(PAGE_SIZE, event_format=event_format, lora_names=NAMES, coalesce=level)
    droppers = DropsOrphans(), DropsOrphans(in_place=True)
    raw, seen = consumers(), consumers()
    for at, step in enumerate(steps):
        event = raw_event(step, event_format)
        # In the default format blocks of two salts can have one id; the event may then contradict what came before.
        if not any(dropper.contradicts(event) for dropper in droppers):
            for consumer in (*droppers, *raw.values()):
                consumer.apply([event])
            tell(recorder, step)
        if at in cuts or at == len(steps) - 1:
            events = recorder.take()
            for kind in raw:
                seen[kind].apply(events)
                assert seen[kind].held() == raw[kind].held(), kind


@given(streams())
def test_stats_add_up_at_every_level(stream: tuple[EventFormat, list[Step]]) -> None:
    event_format, steps = stream
    taken = {}
    for level in LEVELS:
        recorder = EventRecorder(PAGE_SIZE, event_format=event_format, lora_names=NAMES, coalesce=level)
        for step in steps:
            tell(recorder, step)
        events = recorder.take()
        taken[level] = len(events)
        stats = recorder.stats()
        pages = sum(len(event.block_hashes) for event in events if isinstance(event, BlockStored | BlockRemoved))
        assert (stats.recorded_events, stats.coalesced_events) == (len(steps), len(events))
        assert stats.stored_pages + stats.removed_pages == pages + stats.cancelled_pages
        assert stats.cancelled_pages == 0 or level == "compact"
    assert [*taken.values()] == sorted(taken.values(), reverse=True)
