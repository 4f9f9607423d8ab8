"""The names that others write against: where they are, how they are called, what they give."""

import ast
import importlib
import inspect
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvevents
from kvevents.caches import RadixCache
from kvevents.errors import CapacityError, ConfigError, KVEventsError, TransportError, WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    BlockStoredMetadata,
    BlockStoredWithMetadata,
    KVEventBatch,
    StorageMedium,
)
from kvevents.hashing import HashChain, block_hashes, identify_scheme
from kvevents.index import ApplyReport, Matches, PrefixIndex, WorkerHandle, WorkerMatch
from kvevents.recorder import EventRecorder, KVCacheEventMixin
from kvevents.routing import Decision, Router
from kvevents.transport import Source, SourceState, State, Subscriber, ZmqPublisher, discover
from kvevents.wire import decode_batch, encode_batch

NAMES = {
    "kvevents.errors": ["KVEventsError", "WireError", "ConfigError", "TransportError", "CapacityError"],
    "kvevents.events": [
        *("StorageMedium", "BlockStored", "BlockStoredMetadata", "BlockStoredWithMetadata", "BlockRemoved"),
        *("AllBlocksCleared", "KVEventBatch"),
    ],
    "kvevents.wire": ["encode_batch", "decode_batch", "WireError"],
    "kvevents.recorder": ["KVCacheEventMixin", "EventRecorder"],
    "kvevents.hashing": ["HashChain", "block_hashes", "identify_scheme"],
    "kvevents.caches": ["RadixCache"],
    "kvevents.transport": ["ZmqPublisher", "Source", "Subscriber", "discover", "CaptureReader", "CaptureWriter"],
    "kvevents.index": ["PrefixIndex"],
    "kvevents.routing": ["Router"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_a_name_is_where_it_is_said_to_be_and_is_documented(module: str, name: str) -> None:
    place = importlib.import_module(module)
    found = getattr(place, name)
    assert getattr(kvevents, name, found) is found, "one name, two things"
    if module != "kvevents.errors" and module != "kvevents.events":
        assert name in place.__all__
    assert documentation(found), "what users see has a docstring"
    assert found.__doc__, "help() says something"


def test_everything_the_package_offers_is_there() -> None:
    for name in kvevents.__all__:
        assert getattr(kvevents, name) is not None
    assert kvevents.__version__.count(".") == 2


def documentation(thing: Any) -> str:
    """The docstring of a class or function; what is made in Rust has all of it in its stub."""
    if not thing.__module__.startswith("kvevents._core"):
        return inspect.getdoc(thing) or ""
    stub = Path(kvevents.__file__).parent / "_core" / f"{thing.__module__.rpartition('.')[2]}.pyi"
    for node in ast.walk(ast.parse(stub.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == thing.__name__:
            return ast.get_docstring(node) or ""
    return ""


SIGNATURES: list[tuple[Any, str]] = [
    (
        BlockStored,
        (
            "block_hashes, parent_block_hash, token_ids, block_size, lora_id=None, medium=None, cache_salt=None,"
            " session_id=None, lora_name=None, *, extra_keys=None, group_idx=None"
        ),
    ),
    (BlockStoredMetadata, "cache_salt=..."),
    (BlockRemoved, "block_hashes, medium=None"),
    (AllBlocksCleared, ""),
    (KVEventBatch, "ts, events, attn_dp_rank=None"),
    (encode_batch, "batch, /, *, dialect='sglang'"),
    (decode_batch, "data, /"),
    (KVCacheEventMixin._enqueue_kv_event, "self, event"),
    (KVCacheEventMixin._record_store_event, "self, node, medium=None"),
    (KVCacheEventMixin._record_remove_event, "self, node, medium=None"),
    (KVCacheEventMixin._record_all_cleared_event, "self"),
    (KVCacheEventMixin.take_events, "self"),
    (
        EventRecorder,
        "page_size, *, coalesce='adjacent', event_format='default', enabled=True, lora_names=None",
    ),
    (EventRecorder.store, "self, chain, tokens, *, medium='GPU', session_id=None"),
    (EventRecorder.remove, "self, chain, *, medium='GPU'"),
    (EventRecorder.clear, "self"),
    (EventRecorder.take, "self"),
    (EventRecorder.take_batch, "self, *, ts=None, dp_rank=0, dialect='sglang'"),
    (HashChain.root, "page_size, *, scheme='sglang', extra_key=None, cache_salt=None, bigram=False"),
    (HashChain.extend, "self, tokens"),
    (HashChain.split, "self, pages"),
    (block_hashes, "tokens, block_size, *, scheme=..."),
    (identify_scheme, "events"),
    (
        RadixCache,
        (
            "*, page_size, capacity, eviction_policy='lru', bigram=False, event_format='default', recorder=None,"
            " announce_groups=False"
        ),
    ),
    (RadixCache.match_prefix, "self, tokens, *, extra_key=None, cache_salt=None"),
    (
        RadixCache.insert,
        "self, tokens, slots=None, *, extra_key=None, cache_salt=None, session_id=None, priority=0",
    ),
    (RadixCache.evict, "self, num_tokens"),
    (RadixCache.lock, "self, node"),
    (RadixCache.unlock, "self, node"),
    (RadixCache.reset, "self"),
    (RadixCache.take_events, "self"),
    (RadixCache.take_batch, "self"),
    (RadixCache.holdings, "self"),
    (RadixCache.check_integrity, "self"),
    (
        ZmqPublisher,
        (
            "endpoint, *, replay_endpoint=None, snapshot=..., topic='', buffer_steps=10_000, hwm=100_000,"
            " max_queue_size=100_000, dp_rank=0, bind=None"
        ),
    ),
    (ZmqPublisher.publish, "self, batch, /"),
    (ZmqPublisher.close, "self"),
    (
        Source,
        (
            "worker_id, endpoint, *, replay_endpoint=None, dp_rank=None, topic='', bind=None, block_size=None,"
            " residency='counted', keys=None"
        ),
    ),
    (discover, "worker_url"),
    (Subscriber, "sources, sink, *, on_state=None"),
    (Subscriber.state, "self, worker_id, dp_rank"),
    (Subscriber.close, "self"),
    (PrefixIndex, "block_size"),
    (PrefixIndex.add_worker, "self, id, *, block_size=None, residency='counted', groups=None"),
    (PrefixIndex.remove_worker, "self, id"),
    (PrefixIndex.clear_worker, "self, id, dp_rank=None"),
    (PrefixIndex.apply, "self, worker, data, *, seq=None, dp_rank=None"),
    (PrefixIndex.match, "self, tokens, *, lora_name=None, lora_id=None, cache_salt=None, extra_keys=None"),
    (PrefixIndex.match_many, "self, prompts, /"),
    (PrefixIndex.snapshot, "self"),
    (PrefixIndex.restore, "self, data"),
    (PrefixIndex.dump_events, "self, worker"),
    (PrefixIndex.stats, "self"),
    (PrefixIndex.check_integrity, "self"),
    (Router, "index, workers, policy='kv'"),
    (Router.select, "self, tokens"),
    (Router.prefill_done, "self, decision"),
    (Router.complete, "self, decision"),
    (Router.fail, "self, decision"),
]
"""What a caller may rely on: the real signature may take more, never less. `...` as a default: there is one."""


@pytest.mark.parametrize(("real", "promised"), SIGNATURES, ids=[real.__qualname__ for real, _ in SIGNATURES])
def test_a_call_takes_what_it_is_said_to_take(real: Any, promised: str) -> None:
    found = inspect.signature(real).parameters
    wanted = inspect.signature(eval(f"lambda {promised}: None")).parameters
    places = [name for name, one in found.items() if one.kind is not one.KEYWORD_ONLY]
    for place, (name, want) in enumerate(wanted.items()):
        by_place = want.kind is not want.KEYWORD_ONLY
        one = found[places[place]] if by_place else found[name]
        if want.kind is not want.POSITIONAL_ONLY and name != "self":
            assert one.name == name
            assert one.kind is not one.POSITIONAL_ONLY, f"{name} cannot be named"
        if want.default is not want.empty:
            assert one.default is not one.empty, f"{name} has no default"
            assert want.default in {..., one.default}, f"{name}: {one.default!r}"
    for name, one in found.items():
        is_promised = name in wanted or name in places[: len(wanted)]
        assert is_promised or one.default is not one.empty, f"{name} is asked for besides"


def test_errors_are_one_family() -> None:
    for error in (WireError("reason", 3), ConfigError("x"), TransportError("x")):
        assert isinstance(error, KVEventsError)
    assert (WireError("reason", 3).reason, WireError("reason", 3).offset) == ("reason", 3)
    assert issubclass(CapacityError, KVEventsError)


def test_events_are_mutable_structs() -> None:
    assert [(medium.name, medium.value) for medium in StorageMedium] == [
        ("GPU", "GPU"),
        ("CPU", "CPU_PINNED"),
        ("DISK", "DISK"),
        ("EXTERNAL", "EXTERNAL"),
    ]
    assert isinstance(StorageMedium.CPU, str)
    earlier = BlockStoredWithMetadata([1], None, [2], 1, metadata=BlockStoredMetadata("salt"))
    assert isinstance(earlier, BlockStored)
    events = [BlockStored([1], None, [2], 1), earlier, BlockRemoved([1]), AllBlocksCleared(), KVEventBatch(0.0, [])]
    for event in events:
        assert isinstance(event, msgspec.Struct)
    stored = BlockStored([1], None, [2], 1, medium="whatever came")
    stored.block_hashes = [3]
    assert (stored.block_hashes, stored.medium) == ([3], "whatever came")


@pytest.mark.parametrize("dialect", ["sglang", "sglang-array", "vllm", "vllm-array"])
def test_every_dialect_is_written_and_none_has_to_be_named_to_be_read(dialect: Any) -> None:
    batch = KVEventBatch(1.5, [BlockStored([1], None, [2], 1, medium="GPU"), BlockRemoved([1], "GPU")], attn_dp_rank=0)
    data = encode_batch(batch, dialect=dialect)
    assert isinstance(data, bytes)
    assert decode_batch(data) == batch


def test_a_recorder_has_one_queue_and_two_ways_out() -> None:
    recorder = EventRecorder(2)
    chain = HashChain.root(2).extend([1, 2, 3, 4])
    recorder.store(chain, [1, 2, 3, 4])
    recorder.remove(chain, medium=StorageMedium.CPU)
    assert [type(event) for event in recorder.take()] == [BlockStored, BlockRemoved]
    assert recorder.take_batch() is None
    recorder.clear()
    data = recorder.take_batch(ts=1.0, dp_rank=3)
    assert isinstance(data, bytes)
    assert decode_batch(data) == KVEventBatch(1.0, [AllBlocksCleared()], 3)
    assert recorder.take() == []
    off = EventRecorder(2, enabled=False)
    off.store(chain, [1, 2, 3, 4])
    off.remove(chain)
    off.clear()
    assert (off.take(), off.take_batch()) == ([], None)


def test_a_chain_counts_pages_and_shows_int64() -> None:
    chain = HashChain.root(2).extend(array("i", range(8)))
    head, tail = chain.split(3)
    assert (len(chain), len(head), len(tail)) == (4, 3, 1)
    assert (chain.ids.format, chain.ids.itemsize, chain.ids.ndim) == ("q", 8, 1)
    assert head.ids.tolist() + tail.ids.tolist() == chain.ids.tolist()
    assert head.extend([6, 7]).ids == tail.ids, "the new pages only, continuing"
    with pytest.raises(ValueError, match="whole pages"):
        chain.extend([1])
    pairs = HashChain.root(2, bigram=True).extend([1, 2, 3])
    assert len(pairs.extend([3, 4, 5])) == 1, "with the one overlapping token"


def test_a_cache_gives_named_results() -> None:
    cache = RadixCache(page_size=2, capacity=8)
    inserted = cache.insert([1, 2, 3, 4, 5], session_id="s")
    assert inserted.prefix_length == 0
    match = cache.match_prefix([1, 2, 3, 4])
    length, host_length, slots, node = match
    assert (length, host_length, len(slots)) == (match.length, match.host_length, 4) == (4, 0, 4)
    assert (slots.format, slots.itemsize) == ("q", 8)
    cache.lock(node)
    assert (cache.total, cache.evictable, cache.protected) == (4, 0, 4)
    cache.unlock(node)
    assert {tier for _, tier in cache.holdings()} == {StorageMedium.GPU}
    assert cache.evict(4).tokens == 4
    assert [type(event) for event in cache.take_events()] == [AllBlocksCleared, BlockStored, BlockRemoved]
    cache.reset()
    assert decode_batch(cache.take_batch() or b"").events == [AllBlocksCleared()]
    cache.check_integrity()


def test_an_index_answers_in_its_own_words() -> None:
    index = PrefixIndex(2)
    handle = index.add_worker("w", block_size=2, residency="counted", groups=None)
    assert isinstance(handle, WorkerHandle)
    stored = KVEventBatch(0.0, [BlockStored([1, 2], None, [1, 2, 3, 4], 2, medium="GPU")], attn_dp_rank=1)
    report = index.apply(handle, encode_batch(stored), seq=0, dp_rank=0)
    assert isinstance(report, ApplyReport)
    assert report.dp_rank == 1, "the rank in the batch beats the argument"
    matches = index.match([1, 2, 3, 4, 5])
    assert isinstance(matches, Matches)
    (match,) = matches
    assert isinstance(match, WorkerMatch)
    tiers = {"GPU": 2, "CPU_PINNED": 0, "DISK": 0, "EXTERNAL": 0}
    assert msgspec.structs.astuple(match) == ("w", 1, 2, tiers, tiers, 2, "live")
    assert index.match_many([[1, 2], [3]]) == [index.match([1, 2]), index.match([3])]
    other = PrefixIndex(2)
    other.restore(index.snapshot())
    assert other.match([1, 2, 3, 4, 5]) == matches
    assert [type(batch) for batch in index.dump_events("w")] == [KVEventBatch]
    index.clear_worker("w", 1)
    assert len(index.match([1, 2, 3])) == 0
    assert index.remove_worker("w")
    assert index.apply("w", encode_batch(stored)).ignored == index.apply(handle, encode_batch(stored)).ignored
    index.add_worker("w")
    assert index.apply("w", encode_batch(stored)).stored == 2
    index.stats()
    index.check_integrity()


@pytest.mark.parametrize("policy", ["kv", "round_robin", "random", "least_loaded"])
def test_a_router_decides_and_is_told_how_it_went(policy: str) -> None:
    router = Router(PrefixIndex(2), ["a", "b"], policy)
    decision = router.select([1, 2, 3])
    assert isinstance(decision, Decision)
    assert decision.worker in {"a", "b"}
    assert (decision.dp_rank, decision.usable) == (0, 0)
    assert decision.scores
    assert decision.reason
    router.prefill_done(decision)
    router.complete(decision)
    router.fail(router.select([1, 2, 3]))
    assert [load.requests for load in router.loads().values()] == [0, 0]


class TestTransport:
    pytestmark = pytest.mark.integration

    def test_what_can_be_closed_can_be_closed_again_and_closes_itself(self) -> None:
        with ZmqPublisher("inproc://contract", replay_endpoint="inproc://contract-replay") as publisher:
            source = Source("w", "inproc://contract", replay_endpoint="inproc://contract-replay")
            states: list[tuple[str, int | None, SourceState]] = []
            told = lambda worker, rank, state: states.append((worker, rank, state))  # noqa: E731 - as a user writes it
            index = PrefixIndex(2)
            with Subscriber([source], index, on_state=told) as subscriber:
                assert subscriber.wait_live(20)
                state = subscriber.state("w", None)
                assert (state.state, bool(state.reason)) == (State.LIVE, True)
                assert state.since > 0
                assert state.counters.received == 0
                publisher.publish(encode_batch(KVEventBatch(0.0, [AllBlocksCleared()])))
                subscriber.close()
            subscriber.close()
            publisher.close()
        publisher.close()
        assert states[-1][:2] == ("w", None)
        assert {str(state) for state in State} == {"connecting", "recovering", "live", "degraded", "lost"}


def test_what_one_thread_must_keep_to_itself_says_so() -> None:
    assert "one thread" in documentation(RadixCache).lower()
    assert "one thread" in documentation(KVCacheEventMixin).lower()
    for shared in (EventRecorder, PrefixIndex, Router, Subscriber, ZmqPublisher):
        assert "thread-safe" in documentation(shared).lower()
        assert "not thread-safe" not in documentation(shared).lower()
