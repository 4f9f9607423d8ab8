"""Batches through a real broker: in order, each once, also over the death of either side."""

import contextlib
import functools
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvevents.errors import TransportError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import GroupSpec, PrefixIndex
from kvevents.transport import Reason, State
from kvevents.wire import encode_batch
from nats_server import NatsServer, running_nats, wait_until
from recording_sink import RecordingSink

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from jetstream_fleet import PAGE, expect, expect_live, has_published, settings_for, store
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def settings(server: NatsServer) -> JetStreamSettings:
    return settings_for(server)


def test_batches_arrive_in_order_each_once(settings: JetStreamSettings) -> None:
    sink = RecordingSink()
    with JetStreamSubscriber(settings, sink) as subscriber, JetStreamPublisher(settings, "w") as publisher:
        sent = [store(number) for number in range(200)]
        assert [publisher.publish(batch) for batch in sent] == list(range(200))
        publisher.wait_ready(20.0)
        wait_until(lambda: len(sink.applied) == 200, sink.sequences)
        expect_live(subscriber)
        assert sink.payloads() == sent
        assert sink.sequences() == list(range(200))
        stats, state = publisher.stats(), subscriber.state("w", 0)
    assert (stats.published, stats.dropped, stats.queued, stats.in_flight) == (200, 0, 0, 0)
    assert (state.last_sequence, state.counters.applied, state.counters.duplicates) == (199, 200, 0)


def test_two_workers_with_two_ranks_each_keep_apart(settings: JetStreamSettings) -> None:
    index = PrefixIndex(PAGE)
    keys = [(name, rank) for name in ("http://10.0.0.1:30000", "worker.two") for rank in (0, 1)]
    with contextlib.ExitStack() as stack:
        subscriber = stack.enter_context(JetStreamSubscriber(settings, index))
        for number, (name, rank) in enumerate(keys, start=1):
            publisher = JetStreamPublisher(settings, name, dp_rank=rank, block_size=PAGE, url=name)
            stack.enter_context(publisher).publish(store(number, rank=None))
            publisher.wait_ready(20.0)
        expect_live(subscriber, workers=4)
        assert set(subscriber.states()) == set(keys)
        assert {(record.worker, record.rank, record.url) for record in subscriber.workers()} == {
            (name, rank, name) for name, rank in keys
        }
        assert {record.block_size for record in subscriber.workers()} == {PAGE}
        wait_until(lambda: subscriber.position == 4, subscriber.states)
        held = [index.holdings(name)[rank]["GPU"] for name, rank in keys]
    assert held == [{1_000}, {2_000}, {3_000}, {4_000}]


def test_a_late_consumer_reads_the_whole_log(settings: JetStreamSettings) -> None:
    index, late = PrefixIndex(PAGE), PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "w", block_size=PAGE) as publisher:
        for number in range(50):
            publisher.publish(store(number, blocks=3))
        publisher.publish(encode_batch(KVEventBatch(0.0, [BlockRemoved([0, 1, 2], medium="GPU")], 0)))
        with JetStreamSubscriber(settings, index) as subscriber:
            publisher.wait_ready(20.0)
            expect_live(subscriber)
            wait_until(lambda: subscriber.state("w").last_sequence == 50, subscriber.states)
        with JetStreamSubscriber(settings, late) as subscriber:
            expect_live(subscriber)
            assert subscriber.state("w").counters.replayed == 51
            assert late.match([1 * 100_000 + token for token in range(12)])[0].state == "live"
    assert late.holdings("w") == index.holdings("w")
    assert len(late.holdings("w")[0]["GPU"]) == 49 * 3


def test_a_batch_above_the_brokers_limit_travels_in_parts(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", "max_payload: 8192") as server:
        settings = settings_for(server)
        sink = RecordingSink()
        large = store(1, blocks=6_000)
        assert len(large) > 4 * 8_192
        with JetStreamSubscriber(settings, sink) as subscriber, JetStreamPublisher(settings, "w") as publisher:
            for batch in (store(0), large, store(2)):
                publisher.publish(batch)
            wait_until(lambda: len(sink.applied) == 3, subscriber.states)
            expect_live(subscriber)
            assert sink.payloads() == [store(0), large, store(2)]


def test_the_broker_drops_what_is_sent_twice(settings: JetStreamSettings) -> None:
    sink = RecordingSink()
    with JetStreamSubscriber(settings, sink) as subscriber, JetStreamPublisher(settings, "w") as publisher:
        for number in range(20):
            publisher.publish(store(number))
        publisher.wait_ready(20.0)
        # as if the broker had not said that it has the last ten
        publisher._broker.call_soon(lambda: publisher._outbox.rewind(9))
        publisher._broker.call_soon(publisher._wake.set)
        publisher.publish(store(20))
        wait_until(lambda: publisher.stats().duplicates == 10, publisher.stats)
        wait_until(lambda: len(sink.applied) == 21, sink.sequences)
        expect_live(subscriber)
        assert sink.sequences() == list(range(21))
        assert subscriber.position == 21  # ten messages less than were sent


def test_a_killed_broker_loses_nothing(server: NatsServer, settings: JetStreamSettings) -> None:
    sink = RecordingSink()
    states: list[tuple[State, Reason]] = []
    with (
        JetStreamSubscriber(
            settings, sink, on_state=lambda *said: states.append((said[2].state, said[2].code))
        ) as subscriber,
        JetStreamPublisher(settings, "w") as publisher,
    ):
        for start in (0, 400):
            for number in range(start, start + 300):
                publisher.publish(store(number))
            wait_until(functools.partial(has_published, publisher, start + 100), publisher.stats)
            wait_until(subscriber.states, "nothing was read")
            server.kill()  # with batches under way
            for number in range(start + 300, start + 400):
                publisher.publish(store(number))
            expect(subscriber, State.LOST, Reason.CONNECTION_LOST)
            server.start()
        publisher.wait_ready(20.0)
        wait_until(lambda: subscriber.state("w").last_sequence == 799, lambda: (subscriber.states(), publisher.stats()))
        expect_live(subscriber)
        assert sink.sequences() == list(range(800))
        assert sink.payloads() == [store(number) for number in range(800)]
        assert publisher.stats().broker.sessions == 3
        assert publisher.stats().dropped == 0
    assert (State.DEGRADED, Reason.GAP_UNREPAIRED) not in states


def test_a_broker_that_forgets_its_last_messages_gets_them_again(tmp_path: Path) -> None:
    """As after a power failure: it comes back as it was some messages ago, though it had acknowledged them."""
    with running_nats(tmp_path / "nats") as server:
        settings = settings_for(server)
        sink, index = RecordingSink(), PrefixIndex(PAGE)
        with (
            JetStreamSubscriber(settings, sink) as subscriber,
            JetStreamPublisher(settings, "w") as publisher,
            JetStreamPublisher(settings, "v") as other,
        ):
            for number in range(100):
                publisher.publish(store(number))
            other.publish(store(1_000))
            publisher.wait_ready(20.0)
            other.wait_ready(20.0)
            server.kill()
            shutil.copytree(tmp_path / "nats" / "store", tmp_path / "kept")
            server.start()
            for number in range(100, 150):
                other.publish(store(2_000 + number))
                publisher.publish(store(number))
            wait_until(lambda: publisher.stats().published == 150, publisher.stats)
            wait_until(lambda: len(sink.applied) == 201, subscriber.states)
            server.kill()
            shutil.rmtree(tmp_path / "nats" / "store")
            (tmp_path / "kept").rename(tmp_path / "nats" / "store")
            server.start()
            publisher.publish(store(150))
            wait_until(
                lambda: subscriber.state("w").last_sequence == 150, lambda: (subscriber.states(), publisher.stats())
            )
            expect_live(subscriber, workers=2)
            assert sink.sequences() == list(range(151))
            assert sink.sequences("v") == list(range(51))
            with JetStreamSubscriber(settings, index) as late:
                expect_live(late, workers=2)
                assert late.state("w").last_sequence == 150
                assert late.state("v").last_sequence == 50


def test_a_full_queue_leaves_a_gap_that_is_seen_and_ends_with_a_clear(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")  # not started yet: nobody takes anything
    settings = settings_for(server)
    sink = RecordingSink()
    with JetStreamPublisher(settings, "w", max_queue_size=5) as publisher:
        for number in range(9):
            publisher.publish(store(number))
        assert publisher.stats().dropped == 4
        with server, JetStreamSubscriber(settings, sink) as subscriber:
            # nothing follows the dropped ones: the publisher's record tells
            expect(subscriber, State.DEGRADED, Reason.GAP_UNREPAIRED)
            assert subscriber.state("w").counters.missing == 4
            assert sink.sequences() == list(range(5))
            publisher.publish(KVEventBatch(0.0, [AllBlocksCleared()]))
            expect_live(subscriber)
            assert sink.sequences() == [0, 1, 2, 3, 4, 9]


def test_a_publisher_without_a_broker_never_waits_and_says_why(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    with JetStreamPublisher(settings_for(server), "w", linger_s=0.1) as publisher:
        publisher.publish(store(0))
        with pytest.raises(TransportError, match=r"not ready within .*127\.0\.0\.1.*cannot be reached"):
            publisher.wait_ready(0.5)
    with pytest.raises(TransportError, match="closed"):
        publisher.publish(store(1))


def test_a_broker_that_hangs_is_noticed_and_loses_nothing(server: NatsServer) -> None:
    settings = settings_for(server, heartbeat_s=0.2, connect_timeout_s=0.5)
    sink = RecordingSink()
    with JetStreamSubscriber(settings, sink) as subscriber, JetStreamPublisher(settings, "w") as publisher:
        publisher.publish(store(0))
        publisher.wait_ready(20.0)
        expect_live(subscriber)
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        publisher.publish(store(1))
        expect(subscriber, State.LOST, Reason.CONNECTION_LOST)
        wait_until(lambda: not publisher.stats().broker.connected, publisher.stats)
        server.process.send_signal(signal.SIGCONT)
        publisher.wait_ready(20.0)
        wait_until(lambda: sink.sequences() == [0, 1], subscriber.states)
        expect_live(subscriber)


def test_what_the_registry_says_of_a_worker_reaches_the_index(settings: JetStreamSettings) -> None:
    """A hybrid model whose engine announces groups without their kind, and a source that announces blocks again."""
    index = PrefixIndex(PAGE)
    groups = (GroupSpec("full_attention"), GroupSpec("sliding_window", window=2 * PAGE))
    tokens = list(range(4 * PAGE))
    hashes = [1, 2, 3, 4]
    both = [BlockStored(hashes, None, tokens, PAGE, medium="GPU", group_idx=group) for group in (0, 1)]
    gone = BlockRemoved([1, 2, 3], medium="GPU", group_idx=1)
    with (
        JetStreamSubscriber(settings, index) as subscriber,
        JetStreamPublisher(settings, "w", block_size=PAGE, residency="set", groups=groups) as publisher,
    ):
        publisher.publish(KVEventBatch(0.0, [*both, *both, gone]))
        wait_until(lambda: subscriber.position == 1, subscriber.states)
        expect_live(subscriber)
        assert subscriber.callback_errors == 0
        [match] = index.match(tokens)
    assert (match.total, match.usable) == (4, 0)  # the window has no whole stretch left


def test_an_engine_that_starts_again_replaces_what_it_held(settings: JetStreamSettings) -> None:
    index = PrefixIndex(PAGE)
    with JetStreamSubscriber(settings, index) as subscriber:
        with JetStreamPublisher(settings, "w") as first:
            first.publish(store(1))
            first.wait_ready(20.0)
            expect_live(subscriber)
        with JetStreamPublisher(settings, "w") as second:
            # the registry tells, before its first batch
            wait_until(lambda: not index.holdings("w").get(0, {}).get("GPU"), lambda: index.holdings("w"))
            second.publish(store(2))
            wait_until(lambda: index.holdings("w")[0]["GPU"] == {2_000}, lambda: index.holdings("w"))
            expect_live(subscriber)
            assert subscriber.state("w").counters.restarts == 1
