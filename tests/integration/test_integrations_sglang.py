"""SGLang's plugin against SGLang's own published classes: its plugin loader, its factory, its recorder."""

import json
import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from engine_packages import module, real_modules
from kvevents._core.hashing import page_digests
from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.integrations import plugin_states
from kvevents.integrations import sglang as plugin
from kvevents.transport import Source, Subscriber
from kvevents.wire import decode_batch
from nats_server import free_port, running_nats, wait_until

pytestmark = pytest.mark.integration

EVENTS = "sglang.srt.disaggregation.kv_events"
RECORDER = "sglang.srt.mem_cache.events"
REAL = (
    EVENTS,
    RECORDER,
    "sglang.srt.environ",
    "sglang.srt.managers.scheduler_components.kv_events_publisher",
    "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.utils",
    "sglang.srt.plugins",
    "sglang.srt.plugins.hook_registry",
    "sglang.srt.utils.network",
)
PAGE = 4


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SGLANG_PLUGINS", "kvevents")
    with real_modules("sglang", REAL):
        yield


@pytest.fixture
def events(sglang: None) -> Any:
    """SGLang's module of events, its plugins loaded as an engine's process loads them: by entry point."""
    module("sglang.srt.plugins").load_plugins()
    return module(EVENTS)


def configured(events: Any, rank: int = 0, **settings: Any) -> Any:
    """The publisher that `--kv-events-config` gives."""
    port = free_port()
    config = {
        "publisher": "kvevents",
        "endpoint": f"tcp://127.0.0.1:{port - rank}",
        "replay_endpoint": f"tcp://127.0.0.1:{free_port() - rank}",
        "bind": True,
    }
    return events.EventPublisherFactory.create(json.dumps(config | settings), rank)


def source(publisher: Any) -> Source:
    told = publisher.describe_local_source(PAGE)
    return Source("w", told["endpoint"], replay_endpoint=told["replay_endpoint"], dp_rank=told["dp_rank"])


def stored(events: Any, *hashes: int, parent: int | None = None) -> Any:
    tokens = [hash_value * 10 + token for hash_value in hashes for token in range(PAGE)]
    return events.BlockStored(list(hashes), parent, tokens, PAGE, None, medium="GPU")


def batch(events: Any, *contents: Any) -> Any:
    return events.KVEventBatch(ts=1.0, events=list(contents))


def test_the_plugin_is_found_by_its_entry_point_and_offers_the_publisher(events: Any) -> None:
    assert getattr(events.EventPublisherFactory._registry["kvevents"], "is_kvevents", False)
    assert plugin_states()["sglang"].status == "loaded"
    assert "publisher 'kvevents' can be chosen" in plugin_states()["sglang"].detail


def test_it_may_be_loaded_twice_but_does_not_take_a_name_from_others(events: Any) -> None:
    first = events.EventPublisherFactory._registry["kvevents"]
    plugin.load()
    assert events.EventPublisherFactory._registry["kvevents"] is first
    events.EventPublisherFactory._registry["kvevents"] = events.NullEventPublisher
    with pytest.raises(ConfigError, match="another publisher 'kvevents' already"):
        plugin.load()


def test_a_setting_that_cannot_work_is_said_loudly_although_sglang_only_logs_it(
    sglang: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVEVENTS_COALESCE", "more")
    module("sglang.srt.plugins").load_plugins()
    assert "kvevents: sglang plugin failed" in capsys.readouterr().err
    assert plugin_states()["sglang"].status == "failed"
    with pytest.raises(ValueError, match="Unknown event publisher 'kvevents'"):
        configured(module(EVENTS))


def test_batches_reach_a_subscriber_with_the_rank_and_late_ones_too(events: Any) -> None:
    publisher = configured(events, rank=1)
    try:
        for number in range(1, 21):
            publisher.publish(batch(events, stored(events, number)))
        index = PrefixIndex(PAGE)
        with Subscriber([source(publisher)], index) as subscriber:
            assert subscriber.wait_live(20.0), subscriber.states()
            assert index.holdings("w")[1]["GPU"] == set(range(1, 21))
            publisher.publish(batch(events, events.BlockRemoved([1], medium="GPU")))
            wait_until(lambda: 1 not in index.holdings("w")[1]["GPU"], subscriber.states)
        assert publisher.stats().failed == 0
    finally:
        publisher.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(batch(events, stored(events, 1)))
    publisher.shutdown()


@pytest.mark.parametrize("level", ["off", "chain"])
def test_what_a_plain_subscriber_reads_is_what_sglang_would_send(
    sglang: None, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """Frame by frame; what interleaved requests stored is merged, but for the level `off`."""
    monkeypatch.setenv("KVEVENTS_COALESCE", level)
    module("sglang.srt.plugins").load_plugins()
    events = module(EVENTS)
    publisher = configured(events, topic="kv")
    interleaved = [stored(events, 1), stored(events, 11), stored(events, 2, parent=1), stored(events, 12, parent=11)]
    wanted = msgspec.msgpack.encode(events.KVEventBatch(ts=1.0, events=interleaved, attn_dp_rank=0))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(publisher.describe_local_source(PAGE)["replay_endpoint"])
        publisher.publish(batch(events, *interleaved))
        dealer.send_multipart([b"", struct.pack(">Q", 0)])
        assert dealer.poll(10_000)
        empty, topic, sequence, payload = dealer.recv_multipart()
    publisher.shutdown()
    assert (empty, topic, sequence) == (b"", b"kv", bytes(8))
    if level == "off":
        assert payload == wanted
    else:
        assert [getattr(event, "block_hashes", None) for event in decode_batch(payload).events] == [[1, 2], [11, 12]]
        assert publisher.stats().sent_bytes < publisher.stats().bytes


def test_a_snapshot_serves_those_who_come_too_late_for_the_replay_buffer(
    sglang: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVEVENTS_SNAPSHOT", "1")
    module("sglang.srt.plugins").load_plugins()
    events = module(EVENTS)
    publisher = configured(events, buffer_steps=2)
    try:
        for number in range(1, 51):
            publisher.publish(batch(events, stored(events, number)))
        index = PrefixIndex(PAGE)
        with Subscriber([source(publisher)], index) as subscriber:
            assert subscriber.wait_live(20.0), subscriber.states()
            assert index.holdings("w")[0]["GPU"] == set(range(1, 51))
            assert subscriber.state("w").last_sequence == 49
        assert publisher.stats().zmq.snapshots == 1
    finally:
        publisher.shutdown()


def test_snapshots_without_a_replay_endpoint_are_refused(events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVEVENTS_SNAPSHOT", "1")
    with pytest.raises(ConfigError, match="expected a replay_endpoint"):
        configured(events, replay_endpoint=None)


def test_the_same_batches_go_into_a_fleets_log(sglang: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jetstream = pytest.importorskip("kvevents.transport.jetstream", reason="nats-py is not installed")
    with running_nats(tmp_path / "nats") as server:
        monkeypatch.setenv("KVEVENTS_NATS_SERVERS", server.url)
        monkeypatch.setenv("KVEVENTS_NATS_MAX_BYTES", str(64 << 20))
        monkeypatch.setenv("KVEVENTS_WORKER_ID", "engine-1")
        monkeypatch.setenv("KVEVENTS_WORKER_URL", "http://engine-1:30000")
        monkeypatch.setenv("KVEVENTS_ZMQ", "0")
        module("sglang.srt.plugins").load_plugins()
        events = module(EVENTS)
        publisher = configured(events, rank=2)
        index = PrefixIndex(PAGE)
        with jetstream.JetStreamSubscriber(jetstream.JetStreamSettings.from_environment(), index) as subscriber:
            publisher.publish(batch(events, stored(events, 7)))
            assert subscriber.wait_live(20.0), (subscriber.states(), subscriber.broker)
            wait_until(lambda: index.holdings("engine-1").get(2, {}).get("GPU") == {7}, subscriber.states)
            assert [record.url for record in subscriber.workers()] == ["http://engine-1:30000"]
            assert publisher.describe_local_source(PAGE) is None
            publisher.shutdown()


def test_an_address_in_use_stops_the_engine_with_a_reason(events: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = configured(events)
    endpoint = first.describe_local_source(PAGE)["endpoint"]
    with pytest.raises(Exception, match="address in use"):
        configured(events, endpoint=endpoint)
    assert "address in use" in capsys.readouterr().err
    first.shutdown()


# The recorder.


def hashed(key: Any, prior: bytes | None, page_size: int) -> list[str]:
    """SGLang's native hash, which needs a compiler, as kvevents computes it."""
    return page_digests(
        key.token_ids, page_size, above=None if prior is None else prior.hex(), bigram=bool(key.is_bigram)
    )


@pytest.fixture
def recorders(sglang: None, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """SGLang's recorder, the one that stands in its place afterwards, and what nodes are made of."""
    theirs = module(RECORDER).KVCacheEventRecorder
    monkeypatch.setattr(module("sglang.srt.mem_cache.utils"), "get_native_hash", hashed)
    monkeypatch.setenv("KVEVENTS_RECORDER", "1")
    radix = module("sglang.srt.mem_cache.radix_cache")
    module("sglang.srt.plugins").load_plugins()
    ours = module(RECORDER).KVCacheEventRecorder
    assert ours is not theirs
    assert radix.KVCacheEventRecorder is ours  # wherever it had been imported to
    return theirs, ours, radix


def tree(radix: Any, draw: random.Random, *, extra_key: str | None, cache_salt: str | None, bigram: bool) -> list[Any]:
    """A chain of nodes below a root."""
    root = radix.TreeNode()
    root.key, root.hash_value = radix.RadixKey(array("q")), []
    nodes, parent, last = [], root, draw.randrange(1000)
    for depth in range(draw.randrange(1, 5)):
        pages = draw.randrange(1, 6)
        units = pages * PAGE + (draw.randrange(1, PAGE) if depth == 3 else 0)
        tokens = array("q", [last, *(draw.randrange(1 << 17) for _ in range(units))] if bigram else [])
        if not bigram:
            tokens.extend(draw.randrange(1 << 17) for _ in range(units))
        last = tokens[-1]
        node = radix.TreeNode()
        node.parent = parent
        node.key = radix.RadixKey(tokens, extra_key, is_bigram=bigram, cache_salt=cache_salt)
        nodes.append(node)
        parent = node
    return nodes


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dynamo", [False, True])
def test_our_recorder_makes_the_same_bytes(recorders: tuple[Any, Any, Any], seed: int, dynamo: bool) -> None:
    theirs, ours, radix = recorders
    events = module(RECORDER)
    adapter = "a" * 32
    payloads = []
    for make in (theirs, ours):
        draw = random.Random(seed)
        names = events.KvEventLoraNames()
        names.register(lora_id=adapter, lora_name="poet")
        recorder = make(enabled=True, page_size=PAGE, dynamo_format=dynamo, lora_names=names)
        written = []
        for _ in range(6):
            extra_key = draw.choice([None, None, "other", f"x{adapter}"])
            cache_salt = draw.choice([None, None, "tenant"])
            nodes = tree(radix, draw, extra_key=extra_key, cache_salt=cache_salt, bigram=draw.random() < 0.3)
            for node in nodes:
                recorder.record_store(node, session_id=draw.choice([None, "s"]))
            for node in reversed(nodes):
                if draw.random() < 0.5:
                    recorder.record_remove(node, medium=draw.choice([None, events.StorageMedium.CPU]))
            if draw.random() < 0.2:
                recorder.record_all_cleared()
            taken = module(EVENTS).KVEventBatch(ts=1.0, events=recorder.take(), attn_dp_rank=0)
            written.append(msgspec.msgpack.encode(taken))
            written.append(str([(node.hash_value, node.event_hash_value) for node in nodes]).encode())
        assert recorder.take() == []
        payloads.append(written)
    assert payloads[1] == payloads[0]


def test_a_recorder_that_is_off_does_nothing(recorders: tuple[Any, Any, Any]) -> None:
    _, ours, radix = recorders
    recorder = ours(enabled=False, page_size=PAGE)
    node = tree(radix, random.Random(1), extra_key=None, cache_salt=None, bigram=False)[0]
    recorder.record_store(node)
    recorder.record_remove(node)
    assert recorder.take() == []
    assert node.hash_value is None
