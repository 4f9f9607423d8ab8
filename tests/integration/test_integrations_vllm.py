"""vLLM's plugin against vLLM's own published classes: its plugin loader, its configuration, its factory."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq

from engine_packages import module, real_modules
from kvevents.errors import ConfigError
from kvevents.index import PrefixIndex
from kvevents.integrations import plugin_states
from kvevents.integrations import vllm as plugin
from kvevents.transport import Source, Subscriber
from kvevents.wire import decode_batch
from nats_server import free_port, wait_until

pytestmark = pytest.mark.integration

EVENTS = "vllm.distributed.kv_events"
REAL = (EVENTS, "vllm.config.kv_events", "vllm.config.utils", "vllm.envs", "vllm.plugins")
PAGE = 4


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VLLM_PLUGINS", "kvevents")
    with real_modules("vllm", REAL):
        yield


@pytest.fixture
def events(vllm: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's module of events, its plugins loaded as an engine's process loads them, our publisher asked for."""
    monkeypatch.setenv("KVEVENTS_VLLM", "1")
    module("vllm.plugins").load_general_plugins()
    return module(EVENTS)


def configured(events: Any, rank: int = 0, **settings: Any) -> Any:
    """The publisher that vLLM's scheduler makes from `--kv-events-config`."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{free_port() - rank}",
        "replay_endpoint": f"tcp://*:{free_port() - rank}",
    }
    return events.EventPublisherFactory.create(events.KVEventsConfig(**config | settings), rank)


def stored(events: Any, block_hash: int, parent: int | None = None) -> Any:
    tokens = [block_hash % 1_000 * 10 + token for token in range(PAGE)]
    return events.BlockStored(
        block_hashes=[block_hash],
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=PAGE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[None],
        group_idx=0,
    )


def batch(events: Any, *contents: Any) -> Any:
    return events.KVEventBatch(ts=1.0, events=list(contents))


def test_unasked_the_plugin_leaves_vllm_alone(vllm: None) -> None:
    module("vllm.plugins").load_general_plugins()
    events = module(EVENTS)
    assert events.EventPublisherFactory._registry["zmq"] is events.ZmqEventPublisher


def test_asked_it_stands_in_for_zmq_however_often_it_is_loaded(events: Any) -> None:
    ours = events.EventPublisherFactory._registry["zmq"]
    assert ours.is_kvevents
    assert plugin_states()["vllm"].status == "loaded"
    plugin.load()
    assert events.EventPublisherFactory._registry["zmq"] is ours
    assert isinstance(
        events.EventPublisherFactory.create(events.KVEventsConfig(enable_kv_cache_events=False)),
        events.NullEventPublisher,
    )


def test_a_vllm_that_is_built_otherwise_is_said(events: Any, capsys: pytest.CaptureFixture[str]) -> None:
    events.EventPublisherFactory._registry = {}
    with pytest.raises(ConfigError, match="has no registry with 'zmq' in it"):
        plugin.load()
    assert "kvevents: vllm plugin failed" in capsys.readouterr().err


def test_batches_reach_a_subscriber_with_the_rank_and_late_ones_too(events: Any) -> None:
    publisher = configured(events, rank=1)
    told = publisher.get_publisher_config()
    try:
        for number in range(1, 21):
            publisher.publish(batch(events, stored(events, number)))
        index = PrefixIndex(PAGE)
        live, replay = (address.replace("*", "127.0.0.1") for address in (told.endpoint, told.replay_endpoint))
        with Subscriber([Source("w", live, replay_endpoint=replay, dp_rank=1)], index) as subscriber:
            assert subscriber.wait_live(20.0), subscriber.states()
            assert index.holdings("w")[1]["GPU"] == set(range(1, 21))
            publisher.publish(batch(events, events.BlockRemoved(block_hashes=[1], medium="GPU", group_idx=0)))
            wait_until(lambda: 1 not in index.holdings("w")[1]["GPU"], subscriber.states)
        assert publisher.stats().failed == 0
    finally:
        publisher.shutdown()
    with pytest.raises(RuntimeError, match="closed"):
        publisher.publish(batch(events, stored(events, 1)))


def test_what_goes_out_is_what_vllm_writes_but_for_the_merging(events: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [2**63 + 5, 2**63 + 6, 7]  # unsigned, as vLLM has them
    contents = [stored(events, hashes[0]), stored(events, hashes[1], parent=hashes[0]), stored(events, hashes[2])]
    removals = [events.BlockRemoved(block_hashes=[block], medium="GPU", group_idx=0) for block in hashes]
    sent = []
    for level in ("off", "chain"):
        monkeypatch.setenv("KVEVENTS_COALESCE", level)
        publisher = configured(events)
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(publisher.get_publisher_config().replay_endpoint.replace("*", "127.0.0.1"))
            publisher.publish(batch(events, *contents, *removals))
            dealer.send_multipart([b"", bytes(8)])
            assert dealer.poll(10_000)
            sent.append(dealer.recv_multipart()[-1])
        publisher.shutdown()
    wanted = events.KVEventBatch(ts=1.0, events=[*contents, *removals], data_parallel_rank=0)
    assert sent[0] == msgspec.msgpack.encode(wanted)
    merged = decode_batch(sent[1]).events
    assert [getattr(event, "block_hashes", None) for event in merged] == [hashes[:2], hashes[2:], hashes]
    assert len(sent[1]) < len(sent[0])


def test_where_vllm_binds_any_port_others_are_told_the_nodes_address(
    events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "get_ip", lambda: "127.0.0.1")
    publisher = configured(events, endpoint="tcp://*:0", replay_endpoint="tcp://*:0")
    told = publisher.get_publisher_config()
    assert told.endpoint.startswith("tcp://127.0.0.1:")
    assert not told.endpoint.endswith(":0")
    assert told.replay_endpoint.startswith("tcp://127.0.0.1:")
    publisher.shutdown()
    monkeypatch.setattr(events, "get_ip", lambda: "0.0.0.0")
    with pytest.raises(ConfigError, match="VLLM_HOST_IP"):
        configured(events, endpoint="tcp://*:0")


def test_a_concrete_address_is_connected_to_as_vllm_does(events: Any) -> None:
    index = PrefixIndex(PAGE)
    address = f"tcp://127.0.0.1:{free_port()}"
    replay = f"tcp://127.0.0.1:{free_port()}"
    with Subscriber([Source("w", address, replay_endpoint=replay, bind=True)], index) as subscriber:
        publisher = configured(events, endpoint=address, replay_endpoint=replay)
        publisher.publish(batch(events, stored(events, 3)))
        wait_until(lambda: index.holdings("w").get(0, {}).get("GPU") == {3}, subscriber.states)
        publisher.shutdown()
