"""`Subscriber` as a whole: sources that come and go, sinks that fail, addresses of every kind."""

import os
import socket
import threading
from pathlib import Path

import pytest

from kvevents.errors import ConfigError, TransportError, WireError
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.transport import DeliverySettings, Reason, Source, SourceState, State, Subscriber, ZmqPublisher
from kvevents.wire import encode_batch
from recording_sink import RecordingSink
from zmq_peers import PlainEngine, number, until

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"
QUICK = DeliverySettings(replay_timeout_s=0.2, idle_probe_s=0.1, settle_s=0.02)


def follow(publisher: ZmqPublisher, worker: str = "w", dp_rank: int | None = None) -> Source:
    return Source(worker, publisher.endpoint, replay_endpoint=publisher.replay_endpoint, dp_rank=dp_rank)


def test_sources_come_and_go_while_it_runs() -> None:
    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY) as a, ZmqPublisher(ANY, replay_endpoint=ANY, dp_rank=0) as b:
        a.publish(b"a0")
        b.publish(b"b0")
        with Subscriber([], sink) as subscriber:
            assert subscriber.wait_live(0)
            subscriber.add_source(follow(a, "a"))
            subscriber.add_source(follow(b, "b", dp_rank=1))
            assert subscriber.wait_live(20)
            assert {key: state.state for key, state in subscriber.states().items()} == {
                ("a", None): State.LIVE,
                ("b", 1): State.LIVE,
            }
            assert sink.payloads("a") == [b"a0"]
            assert sink.payloads("b") == [b"b0"]
            assert set(sink.ranks) == {None, 1}
            subscriber.remove_source("b", 1)
            assert sink.clears == [("b", 1)]
            assert sink.payloads("b") == []
            with pytest.raises(ConfigError, match="'b'"):
                subscriber.state("b", 1)
            subscriber.add_source(follow(b, "b", dp_rank=1))
            assert subscriber.wait_live(20)
            assert sink.payloads("b") == [b"b0"]
        assert sink.threads == {"kvevents-subscriber"}


def test_each_rank_of_a_worker_is_a_source_and_a_restart_clears_one() -> None:
    sink = RecordingSink()
    with PlainEngine() as zero, PlainEngine() as one:
        sources = [
            Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, dp_rank=rank)
            for rank, engine in enumerate([zero, one])
        ]
        zero.publish(b"old", live=False)
        with Subscriber(sources, sink, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            zero.buffer.clear()
            until(lambda: zero.publish(b"new", sequence=0) == 0 and sink.clears)
            assert sink.clears[0] == ("w", 0)
            assert subscriber.state("w", 1).counters.clears == 0


def test_a_worker_is_followed_once_per_rank() -> None:
    with Subscriber([Source("w", "tcp://127.0.0.1:9", dp_rank=0)], RecordingSink()) as subscriber:
        for rank in (0, None):
            with pytest.raises(ConfigError, match="rank"):
                subscriber.add_source(Source("w", "tcp://127.0.0.1:10", dp_rank=rank))
        subscriber.add_source(Source("w", "tcp://127.0.0.1:10", dp_rank=1))
        with pytest.raises(ConfigError, match="known are"):
            subscriber.remove_source("v")


def test_a_source_without_a_rank_answers_for_all() -> None:
    with Subscriber([Source("w", "tcp://127.0.0.1:9")], RecordingSink()) as subscriber:
        assert subscriber.state("w", 3) == subscriber.state("w")
        assert subscriber.state("w").state is State.CONNECTING


def test_an_endpoint_where_nothing_listens_is_said() -> None:
    with Subscriber([Source("w", "tcp://127.0.0.1:9")], RecordingSink()) as subscriber:
        until(lambda: "nothing answers at tcp://127.0.0.1:9" in subscriber.state("w").reason)
        assert not subscriber.wait_live(0)


def test_an_endpoint_that_is_no_publisher_is_said() -> None:
    with PlainEngine() as engine, Subscriber([Source("w", engine.replay_endpoint)], RecordingSink()) as subscriber:
        until(lambda: "no ZMQ publisher" in subscriber.state("w").reason)
        assert subscriber.state("w").state is State.CONNECTING


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\0NONSENSE"])
def test_an_engine_is_reached_after_something_else_spoke_at_its_port(greeting: bytes) -> None:
    sink = RecordingSink()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        endpoint = f"tcp://127.0.0.1:{stranger.getsockname()[1]}"
        with Subscriber([Source("w", endpoint)], sink) as subscriber:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(greeting.ljust(64, b"\0"))
            until(lambda: "no ZMQ publisher" in subscriber.state("w").reason)
            stranger.close()
            with PlainEngine(endpoint=endpoint) as engine:
                until(lambda: engine.publish(b"x") >= 0 and sink.applied)


def test_a_publisher_that_connects_finds_a_subscriber_that_binds() -> None:
    sink = RecordingSink()
    with Subscriber([Source("w", ANY, bind=True)], sink) as subscriber:
        assert "listening" in subscriber.state("w").reason
        with ZmqPublisher(subscriber.endpoint("w")) as publisher:
            until(lambda: publisher.publish(b"x") >= 0 and sink.applied)
        until(lambda: subscriber.state("w").state is State.LOST)


def test_an_endpoint_to_bind_that_is_in_use_is_named_and_nothing_stays_open() -> None:
    with ZmqPublisher(ANY) as publisher:
        with pytest.raises(TransportError, match="in use") as caught:
            Subscriber([Source("v", "tcp://127.0.0.1:9"), Source("w", publisher.endpoint, bind=True)], RecordingSink())
        assert publisher.endpoint in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0", "*", "[::]", "[::1]"])
def test_case_19_every_way_to_write_this_machine_is_reached(host: str) -> None:
    sink = RecordingSink()
    with ZmqPublisher(f"tcp://{host}:*", replay_endpoint=f"tcp://{host}:*", bind=True) as publisher:
        publisher.publish(b"x")
        ports = [endpoint.rpartition(":")[2] for endpoint in (publisher.endpoint, publisher.replay_endpoint or "")]
        source = Source("w", f"tcp://{host}:{ports[0]}", replay_endpoint=f"tcp://{host}:{ports[1]}")
        with Subscriber([source], sink) as subscriber:
            assert subscriber.wait_live(20)
            assert sink.payloads() == [b"x"]
            publisher.publish(b"y")
            until(lambda: sink.payloads() == [b"x", b"y"])


@pytest.mark.parametrize("kind", ["ipc", "inproc"])
def test_case_19_ranks_over_ipc_and_inproc_are_carried(kind: str, tmp_path: Path) -> None:
    sink = RecordingSink()
    base = f"ipc://{tmp_path}/kv" if kind == "ipc" else f"inproc://{tmp_path}"
    with (
        ZmqPublisher(base, replay_endpoint=f"{base}-replay") as zero,
        ZmqPublisher(base, replay_endpoint=f"{base}-replay", dp_rank=1) as one,
    ):
        zero.publish(b"zero")
        one.publish(b"one")
        sources = [follow(publisher, dp_rank=rank) for rank, publisher in enumerate([zero, one])]
        assert sources[1].endpoint == f"{base}_dp1"
        with Subscriber(sources, sink) as subscriber:
            assert subscriber.wait_live(20)
            zero.publish(b"zero again")
            until(lambda: sorted(sink.payloads()) == [b"one", b"zero", b"zero again"])


def test_a_broken_batch_degrades_its_source_and_a_clear_mends_it() -> None:
    def refuse(payload: bytes) -> None:
        if payload == b"broken":
            raise WireError("expected an array", 7)

    sink = RecordingSink(refuse)
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        for payload in (b"x", b"broken", b"y"):
            publisher.publish(payload)
        with Subscriber([follow(publisher)], sink) as subscriber:
            until(lambda: subscriber.state("w").code is Reason.BATCH_REFUSED)
            assert "batch 1" in subscriber.state("w").reason
            assert "byte 7" in subscriber.state("w").reason
            until(lambda: sink.payloads() == [b"x", b"y"])
            publisher.publish(encode_batch(KVEventBatch(ts=0.0, events=[AllBlocksCleared()])))
            assert subscriber.wait_live(20)
            assert subscriber.state("w").counters.refused == 1


def test_a_sink_that_fails_is_said_and_the_thread_lives(caplog: pytest.LogCaptureFixture) -> None:
    def fail(payload: bytes) -> None:
        if payload.startswith(b"bad"):
            raise RuntimeError("the disk is full")

    sink = RecordingSink(fail)
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        for payload in (b"bad 1", b"x", b"bad 2", b"y"):
            publisher.publish(payload)
        with Subscriber([follow(publisher)], sink) as subscriber:
            until(lambda: sink.payloads() == [b"x", b"y"])
            state = until(lambda: subscriber.state("w") if subscriber.state("w").state is State.DEGRADED else None)
            assert (state.code, state.counters.failed) == (Reason.SINK_FAILED, 2)
            assert "the disk is full" in state.reason
    assert len([record for record in caplog.records if record.name.startswith("kvevents.transport")]) == 1


def test_messages_that_are_none_are_counted_and_skipped() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        source = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint)
        with Subscriber([source], sink, settings=QUICK) as subscriber:
            until(lambda: engine.publish(b"x") >= 0 and subscriber.state("w").counters.received)
            engine.send(b"kv", b"one frame short")
            engine.send(b"kv", b"short", b"x")
            engine.send(b"kv", b"\xff" * 8, b"")
            engine.send(b"kv", number(1), b"x", b"one too many")
            last = engine.publish(b"last")
            until(lambda: last in sink.sequences())
            assert subscriber.state("w").counters.malformed == 4


def test_a_message_above_the_limit_is_not_taken_and_the_stream_goes_on() -> None:
    sink = RecordingSink()
    limit = DeliverySettings(max_message_bytes=1_000, replay_timeout_s=0.2, idle_probe_s=0.1)
    with PlainEngine() as engine:
        engine.publish(b"small", live=False)
        source = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint)
        with Subscriber([source], sink, settings=limit) as subscriber:
            assert subscriber.wait_live(20)
            engine.publish(b"x" * 10_000)
            until(lambda: subscriber.state("w").counters.timeouts)
            until(lambda: engine.publish(b"y") and b"y" in sink.payloads())
            assert subscriber.state("w").state is State.DEGRADED
            assert sink.payloads()[0] == b"small"
            until(lambda: subscriber.state("w").counters.timeouts > 5)
            assert subscriber.state("w").counters.clears <= 1


def test_states_are_told_and_a_listener_that_fails_is_counted() -> None:
    told: list[tuple[str, int | None, State]] = []

    def listen(worker: str, rank: int | None, state: SourceState) -> None:
        told.append((worker, rank, state.state))
        raise RuntimeError("listener")

    publisher = ZmqPublisher(ANY, replay_endpoint=ANY)
    with Subscriber([follow(publisher, dp_rank=0)], RecordingSink(), on_state=listen) as subscriber:
        assert subscriber.wait_live(20)
        publisher.close()
        until(lambda: subscriber.state("w", 0).state is State.LOST)
        until(lambda: len(told) == 3)
        assert told == [("w", 0, state) for state in (State.RECOVERING, State.LIVE, State.LOST)]
        assert subscriber.state_errors == 3


def test_a_listener_may_remove_its_source() -> None:
    removed = threading.Event()

    def listen(worker: str, rank: int | None, state: SourceState) -> None:
        if state.state is State.LIVE:
            subscriber.remove_source(worker, rank)
            removed.set()

    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, Subscriber([], sink, on_state=listen) as subscriber:
        subscriber.add_source(follow(publisher))
        assert removed.wait(20)
        until(lambda: sink.clears)
        assert subscriber.states() == {}


def test_close_can_be_repeated_and_nothing_is_added_after_it() -> None:
    subscriber = Subscriber([], RecordingSink())
    subscriber.close()
    subscriber.close()
    with pytest.raises(TransportError, match="closed"):
        subscriber.add_source(Source("w", "tcp://127.0.0.1:9"))


def test_nothing_stays_open_behind_it() -> None:
    def once() -> None:
        sink = RecordingSink()
        with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher, Subscriber([follow(publisher)], sink) as subscriber:
            publisher.publish(b"x")
            assert subscriber.wait_live(20)
            subscriber.add_source(Source("v", "tcp://127.0.0.1:9", replay_endpoint="tcp://127.0.0.1:10"))

    once()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        once()
    until(lambda: threading.active_count() <= before[1])
    assert len(os.listdir("/proc/self/fd")) <= before[0]


def test_a_hundred_sources_share_one_thread() -> None:
    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        for n in range(10):
            publisher.publish(b"%d" % n)
        threads = threading.active_count()
        with Subscriber([follow(publisher, f"w{n}") for n in range(100)], sink) as subscriber:
            assert threading.active_count() == threads + 1
            assert subscriber.wait_live(20)
            publisher.publish(b"10")
            until(lambda: len(sink.applied) == 1_100)
        for n in range(100):
            assert sink.sequences(f"w{n}") == list(range(11))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="replay_timeout_s"):
        DeliverySettings(replay_timeout_s=0)
