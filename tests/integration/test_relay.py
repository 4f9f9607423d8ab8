"""A relay between a publisher and those who follow it, all with real sockets; each of them ends once without a word."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from engine_process import running_engine
from kvevents.errors import ConfigError, TransportError
from kvevents.events import BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import (
    DeliverySettings,
    Relay,
    RelaySettings,
    Source,
    State,
    Subscriber,
    ZmqPublisher,
    discover,
)
from publishing_process import PAGE, PublishingProcess
from relay_process import PlainConsumer, RelayProcess, running_relay
from zmq_peers import until

pytestmark = pytest.mark.integration
QUICK = DeliverySettings(replay_timeout_s=2.0, idle_probe_s=0.2, settle_s=0.02, heartbeat_s=0.5)
ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def index() -> Iterator[PrefixIndex]:
    index = PrefixIndex(PAGE)
    yield index
    index.check_integrity()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context = zmq.Context()
    yield context
    context.destroy(0)


def options(engine: PublishingProcess, log: Path) -> list[str | Path]:
    return [engine.endpoint, "--source-replay", engine.replay_endpoint, "--source-topic", "kv", "--log", log]


def source(relay: RelayProcess, worker: str = "w") -> Source:
    events = relay.kv_events
    live, replay = (f"tcp://127.0.0.1:{events[f'{kind}endpoint_port_base']}" for kind in ("", "replay_"))
    return Source(worker, live, replay_endpoint=replay, topic="kv", block_size=PAGE)


def gpu(index: PrefixIndex, worker: str = "w") -> set[int]:
    return index.holdings(worker).get(0, {}).get("GPU", set())


def agree(index: PrefixIndex, engine: PublishingProcess, worker: str = "w") -> None:
    truth = engine.holdings()
    until(lambda: gpu(index, worker) == truth, "index and engine hold the same")


def stats(relay: RelayProcess) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{relay.ready['url']}/stats").json()["streams"][0]
    return answer


def test_a_relay_that_is_killed_goes_on_where_it_was(index: PrefixIndex, tmp_path: Path) -> None:
    with (
        PublishingProcess(seed=1) as engine,
        running_relay(*options(engine, tmp_path)) as first,
        Subscriber([source(first)], index, settings=QUICK) as subscriber,
    ):
        engine.work(200)
        agree(index, engine)
        before = stats(first)
        assert before["stats"]["sent"] < before["stats"]["received"]
        first.end(signal.SIGKILL)
        until(lambda: subscriber.state("w").state is State.LOST)
        engine.work(50)
        with running_relay(*options(engine, tmp_path)) as second:
            assert second.kv_events == first.kv_events, "the same sockets"
            agree(index, engine)
            until(lambda: subscriber.state("w").state is State.LIVE)
            engine.work(50)
            agree(index, engine)
            after = stats(second)
            assert after["last_sequence"] > before["last_sequence"]
            assert after["source_sequence"] > before["source_sequence"]
            assert after["stats"]["clears"] == 0, "the engine is the same: nothing is announced anew"
            assert subscriber.state("w").counters.restarts == 0
            assert second.end(signal.SIGTERM) == 0


def test_an_engine_that_is_killed_and_started_anew_replaces_what_it_held(index: PrefixIndex, tmp_path: Path) -> None:
    with (
        PublishingProcess(seed=1) as first,
        running_relay(*options(first, tmp_path)) as relay,
        Subscriber([source(relay)], index, settings=QUICK) as subscriber,
    ):
        first.work(100)
        agree(index, first)
        first.kill()
        until(lambda: subscriber.state("w").state is not State.LIVE, "nobody vouches for what is held")
        with PublishingProcess(first.endpoint, first.replay_endpoint, seed=2) as second:
            second.work(150)
            agree(index, second)
            until(lambda: subscriber.state("w").state is State.LIVE)
            assert subscriber.state("w").counters.restarts == 0, "the relay is still the same"


def test_a_consumer_of_the_reference_protocol_outlives_both(
    context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path
) -> None:
    def agrees(consumer: PlainConsumer, engine: PublishingProcess) -> None:
        # Whoever is connected again learns only from the next batch what was missed.
        while not consumer.read(20):
            engine.work(1)
        truth = engine.holdings()
        until(lambda: not consumer.read(20) and consumer.held == truth, "consumer and engine hold the same")

    with PublishingProcess(seed=1) as first, contextlib.ExitStack() as later:
        few = ["--replay-mib", "0.01"]
        with running_relay(*options(first, tmp_path), *few) as relay:
            first.work(300)
            endpoint, replay = source(relay).endpoint, source(relay).replay_endpoint
            assert replay is not None
            consumer = later.enter_context(PlainConsumer(context, endpoint, replay))
            consumer.replay(0)
            first.work(300)
            agrees(consumer, first)
            relay.end(signal.SIGKILL)
        first.work(20)
        relay = later.enter_context(running_relay(*options(first, tmp_path), *few))
        assert source(relay).endpoint == endpoint
        agrees(consumer, first)
        first.kill()
        second = later.enter_context(PublishingProcess(first.endpoint, first.replay_endpoint, seed=2))
        second.work(60)
        agrees(consumer, second)
        late = later.enter_context(PlainConsumer(context, endpoint, replay))
        late.replay(0)
        agrees(late, second)
        assert stats(relay)["compacted_bytes"] > 0


def test_an_engine_that_stands_still_is_in_doubt_until_it_goes_on(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1) as engine:
        followed = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        settings = RelaySettings(unvouched_s=0.1)
        with (
            Relay([followed], ANY, replay_listen=ANY, settings=settings, delivery=QUICK) as relay,
            Subscriber(relay.sources("w"), index, settings=QUICK) as subscriber,
        ):
            engine.work(100)
            agree(index, engine)
            until(lambda: subscriber.state("w").state is State.LIVE)
            os.kill(engine.process.pid, signal.SIGSTOP)
            until(lambda: subscriber.state("w").state is State.DEGRADED)
            assert gpu(index), "what is left is flagged, not dropped"
            os.kill(engine.process.pid, signal.SIGCONT)
            until(lambda: subscriber.state("w").state is State.LIVE, "a snapshot ends the doubt")
            engine.work(50)
            agree(index, engine)
            assert subscriber.state("w").counters.snapshots > 0
            assert relay.stats().streams[0].stats.clears == 1, "nothing was lost"


def test_a_late_joiner_of_a_long_stream_takes_a_snapshot(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1) as engine:
        followed = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        settings = RelaySettings(window_s=0.0, replay_bytes=20_000)
        with Relay([followed], ANY, replay_listen=ANY, settings=settings, delivery=QUICK) as relay:
            for _ in range(20):
                engine.work(20)
            until(lambda: relay.stats().streams[0].compacted_bytes)
            with Subscriber(relay.sources("w"), index, settings=QUICK) as subscriber:
                assert subscriber.wait_live(20)
                agree(index, engine)
                engine.work(20)
                agree(index, engine)
                assert subscriber.state("w").state is State.LIVE
                assert subscriber.state("w").counters.snapshots == 1


def test_what_cannot_be_repaired_is_said_and_healed_by_a_new_beginning(index: PrefixIndex) -> None:
    with PublishingProcess(seed=1, buffer_steps=20) as engine:
        engine.work(300)
        whole = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        settings = RelaySettings(unvouched_s=0.1)
        with Relay([whole], ANY, replay_listen=ANY, settings=settings, delivery=QUICK) as relay:
            until(lambda: relay.stats().streams[0].state == "degraded")
            with Subscriber(relay.sources("w"), index, settings=QUICK) as subscriber:
                engine.work(20)
                until(lambda: subscriber.state("w").state is State.DEGRADED)
                assert gpu(index) < engine.holdings()
                engine.reset()
                engine.work(20)
                agree(index, engine)
                until(lambda: subscriber.state("w").state is State.LIVE)


def test_many_workers_and_ranks_in_one_relay(index: PrefixIndex) -> None:
    engines = {
        name: [PublishingProcess(seed=seed) for seed in seeds] for name, seeds in {"a": [1], "b": [2, 3]}.items()
    }
    try:
        sources = [
            Source(name, engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv", dp_rank=rank)
            for name, ranks in engines.items()
            for rank, engine in enumerate(ranks)
        ]
        with Relay(sources, ANY, replay_listen=ANY, topic="again", delivery=QUICK) as relay:
            assert relay.wait_live(20)
            assert relay.worker_ids == ["a", "b"]
            ports = [relay.describe(worker)["endpoint_port_base"] for worker in ("a", "b")]
            assert len(set(ports)) == 2
            passed_on = [source for worker in ("a", "b") for source in relay.sources(worker)]
            assert [source.topic for source in passed_on] == ["again"] * 3
            engines["a"][0].work(50)
            engines["b"][1].work(50)
            with Subscriber(passed_on[:1] + passed_on[2:], index, settings=QUICK) as subscriber:
                assert subscriber.wait_live(20)
                agree(index, engines["a"][0], "a")
                truth = engines["b"][1].holdings()
                until(lambda: truth in [tiers["GPU"] for tiers in index.holdings("b").values()])
    finally:
        for ranks in engines.values():
            for engine in ranks:
                engine.kill()


def test_a_socket_in_use_is_a_clear_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    with ZmqPublisher(ANY) as taken:
        source = Source("w", taken.endpoint)
        for log in (None, tmp_path):
            with pytest.raises(TransportError, match="address in use"):
                Relay([source], taken.endpoint, replay_listen=ANY, log=log)
        with (
            Relay([source], ANY, replay_listen=ANY, log=tmp_path),
            pytest.raises(ConfigError, match="another relay uses it"),
        ):
            Relay([source], ANY, replay_listen=ANY, log=tmp_path)
        with pytest.raises(ConfigError, match="rank None is there twice"):
            Relay([source, source], ANY, replay_listen=ANY)
        with pytest.raises(ConfigError, match="expected 1 to 4096 sources, got 0"):
            Relay([], ANY, replay_listen=ANY)


def test_a_relay_that_fails_says_so_and_ends(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with PublishingProcess(seed=1) as engine:
        source = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        with Relay([source], ANY, replay_listen=ANY, delivery=QUICK) as relay:
            assert relay.failure is None

            def fail(*_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(relay, "_persist", fail)
            engine.work(50)
            until(lambda: isinstance(relay.failure, ZeroDivisionError))
            assert "the relay has ended" in caplog.text


def test_an_engine_that_connects_is_bound_for(index: PrefixIndex) -> None:
    source = Source("w", "tcp://127.0.0.1:0", bind=True)
    with (
        Relay([source], ANY, replay_listen=ANY, delivery=QUICK) as relay,
        ZmqPublisher(relay.source_endpoint("w"), bind=False) as engine,
        Subscriber(relay.sources("w"), index, settings=QUICK),
    ):

        def publish() -> bool:
            engine.publish(KVEventBatch(0.0, [BlockStored([1], None, [1] * PAGE, PAGE, medium="GPU")], 0))
            return gpu(index) == {1}

        until(publish)


def test_the_engines_server_info_is_passed_on() -> None:
    config = '{"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "topic": "kv"}'
    with (
        running_engine("--dp-size", "2", "--page-size", "16", "--speed", "200", "--kv-events-config", config) as engine,
        running_relay(engine.url, "--window", "5ms") as relay,
    ):
        told = httpx.get(f"{engine.url}/server_info").json()
        passed_on = httpx.get(f"{relay.url}/server_info").json()
        assert passed_on == told | {"kv_events": told["kv_events"] | relay.kv_events}
        assert passed_on["kv_events"]["endpoint_port_base"] != told["kv_events"]["endpoint_port_base"]
        assert httpx.get(f"{relay.ready['url']}/server_info").json() == passed_on
        assert httpx.get(f"{relay.ready['url']}/health").status_code == 200
        assert httpx.get(f"{relay.ready['url']}/workers").status_code == 404
        index = PrefixIndex(16)
        sources = discover(relay.url, worker_id="w")
        assert [source.dp_rank for source in sources] == [0, 1]
        with Subscriber(sources, index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            for number in range(6):
                body = {"prompt": [number * 100 + token for token in range(70)], "data_parallel_rank": number % 2}
                assert httpx.post(f"{engine.url}/v1/completions", json=body).status_code == 200
            ranks = httpx.get(f"{engine.url}/holdings").json()["ranks"]
            truth = {rank["dp_rank"]: set(rank["tiers"]["GPU"]) for rank in ranks}
            assert all(truth.values())
            until(lambda: {rank: tiers["GPU"] for rank, tiers in index.holdings("w").items()} == truth)
        engine.stop(signal.SIGKILL)
        assert httpx.get(f"{relay.url}/server_info").json() == passed_on, "what it said last"
