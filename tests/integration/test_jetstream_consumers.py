"""Consumers of a fleet's log that come late, are started again, and workers that go away."""

import asyncio
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvevents.errors import CapacityError, ConfigError, TransportError
from kvevents.events import AllBlocksCleared, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import Reason, State
from nats_server import NatsServer, running_nats, wait_until
from recording_sink import RecordingSink

pytest.importorskip("nats", reason="nats-py is not installed: the extra `nats`")

from jetstream_fleet import PAGE, expect, expect_live, settings_for, store
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings, JetStreamSubscriber
from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.snapshots import SnapshotStore

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats(tmp_path / "nats") as running:
        yield running


@pytest.fixture
def settings(server: NatsServer) -> JetStreamSettings:
    return settings_for(server)


def follow(settings: JetStreamSettings, index: PrefixIndex, grace_s: float = 30.0) -> JetStreamSubscriber:
    return JetStreamSubscriber(settings, index, snapshots=index, grace_s=grace_s)


def gpu(index: PrefixIndex, worker: str = "w") -> set[int]:
    """What a worker's rank 0 holds."""
    return index.holdings(worker).get(0, {}).get("GPU", set())


def has_read(subscriber: JetStreamSubscriber, position: int) -> bool:
    return subscriber.position >= position


# Snapshots.


def test_a_new_consumer_begins_with_the_snapshot_and_the_log_after_it(settings: JetStreamSettings) -> None:
    index, late = PrefixIndex(PAGE), PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "w") as publisher, follow(settings, index) as subscriber:
        for number in range(100):
            publisher.publish(store(number, blocks=2))
        publisher.wait_ready(20.0)
        wait_until(lambda: subscriber.position == 100, subscriber.states)
        subscriber.save_snapshot()
        for number in range(100, 130):
            publisher.publish(store(number, blocks=2))
        publisher.wait_ready(20.0)
        with follow(settings, late) as newcomer:
            expect_live(newcomer)
            assert newcomer.snapshot_problem is None
            assert newcomer.state("w").counters.applied == 30  # the rest was in the snapshot
            assert newcomer.state("w").last_sequence == 129
            publisher.publish(store(130))
            wait_until(lambda: newcomer.position == subscriber.position == 131, newcomer.states)
            assert late.holdings("w") == index.holdings("w")
            assert late.match([5 * 100_000 + token for token in range(8)])[0].total == 2
            late.check_integrity()


def test_a_snapshot_saves_what_the_log_has_lost_by_its_limits(server: NatsServer) -> None:
    settings = settings_for(server, max_bytes=64 << 10)
    index, late, lost = PrefixIndex(PAGE), PrefixIndex(PAGE), PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "w") as publisher, follow(settings, index) as subscriber:
        for start in range(0, 600, 20):  # no faster than it is read: the log has room for about 190
            for number in range(start, start + 20):
                publisher.publish(store(number, blocks=8))
            wait_until(functools.partial(has_read, subscriber, start + 20), subscriber.states)
        with JetStreamSubscriber(settings, lost) as without:
            without.wait_caught_up(20.0)
            expect(without, State.DEGRADED, Reason.LATE_JOIN)
            assert without.state("w").counters.missing > 100
        subscriber.save_snapshot()
        with follow(settings, late) as newcomer:
            expect_live(newcomer)
        assert late.holdings("w") == index.holdings("w")


def test_what_was_missing_is_missing_in_the_snapshot(server: NatsServer) -> None:
    settings = settings_for(server, max_bytes=64 << 10)
    index, late = PrefixIndex(PAGE), PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "w") as publisher:
        for number in range(600):
            publisher.publish(store(number, blocks=8))
        publisher.wait_ready(20.0)
        with follow(settings, index) as subscriber:
            expect(subscriber, State.DEGRADED, Reason.LATE_JOIN)
            subscriber.wait_caught_up(20.0)
            subscriber.save_snapshot()
        with follow(settings, late) as newcomer:
            expect(newcomer, State.DEGRADED, Reason.LATE_JOIN)
            publisher.publish(KVEventBatch(0.0, [AllBlocksCleared()]))
            expect_live(newcomer)


def test_a_snapshot_that_is_no_use_is_passed_over_and_that_is_said(
    server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(server)

    async def spoil() -> None:
        connection = await Connection.open(server.url, settings, "test")
        await SnapshotStore(connection, settings, PAGE).save(b"no snapshot")
        await connection.close()

    index = PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "w") as publisher:
        publisher.publish(store(1))
        publisher.wait_ready(20.0)
        asyncio.run(spoil())
        with follow(settings, index) as subscriber:
            expect_live(subscriber)
            assert "expected a snapshot that begins with" in (subscriber.snapshot_problem or "")
            assert "is not used" in caplog.text
            assert gpu(index) == {1_000}
            subscriber.save_snapshot()
            assert subscriber.snapshot_problem is None


def test_snapshots_are_saved_by_themselves_by_one_of_many(settings: JetStreamSettings) -> None:
    indexes = [PrefixIndex(PAGE) for _ in range(2)]
    with JetStreamPublisher(settings, "w") as publisher:
        publisher.publish(store(0))
        subscribers = [JetStreamSubscriber(settings, index, snapshots=index, snapshot_every_s=0.4) for index in indexes]
        try:
            wait_until(lambda: sum(subscriber.snapshots_saved for subscriber in subscribers) >= 1, "no snapshot")
            publisher.publish(store(1))
            wait_until(
                lambda: 2 in [subscriber._keeper.saved_position for subscriber in subscribers if subscriber._keeper],
                "no second snapshot",
            )
        finally:
            for subscriber in subscribers:
                subscriber.close()
        late = PrefixIndex(PAGE)
        with follow(settings, late) as newcomer:
            expect_live(newcomer)
            assert newcomer.state("w").counters.applied == 0
            assert gpu(late) == {0, 1_000}


def test_a_snapshot_needs_an_index_a_broker_and_room(server: NatsServer, tmp_path: Path) -> None:
    settings = settings_for(server, max_snapshot_bytes=64)
    with JetStreamSubscriber(settings, RecordingSink()) as bare, pytest.raises(ConfigError, match="no index was given"):
        bare.save_snapshot()
    index = PrefixIndex(PAGE)
    with follow(settings, index) as subscriber:
        subscriber.wait_caught_up(20.0)
        with pytest.raises(CapacityError, match="max_snapshot_bytes"):
            subscriber.save_snapshot()
    with pytest.raises(TransportError, match="no connection"):
        subscriber.save_snapshot()
    with pytest.raises(ConfigError, match="snapshot_every_s"):
        JetStreamSubscriber(settings, RecordingSink(), snapshot_every_s=1.0)


def test_a_consumer_that_is_started_again_has_what_it_had(settings: JetStreamSettings) -> None:
    with JetStreamPublisher(settings, "w") as publisher:
        held: dict[int | None, dict[str, set[int]]] = {}
        for start in range(3):
            index = PrefixIndex(PAGE)  # a new process begins with nothing
            with follow(settings, index) as subscriber:
                expect_live(subscriber)
                assert not held or index.holdings("w") == held
                for number in range(start * 50, start * 50 + 50):
                    publisher.publish(store(number))
                publisher.wait_ready(20.0)
                wait_until(functools.partial(has_read, subscriber, start * 50 + 50), subscriber.states)
                subscriber.save_snapshot()
                held = index.holdings("w")
        assert len(held[0]["GPU"]) == 150


# Leases.


def test_a_worker_whose_lease_runs_out_is_lost_and_its_blocks_leave_after_the_grace_time(
    settings: JetStreamSettings,
) -> None:
    index = PrefixIndex(PAGE)
    with (
        JetStreamPublisher(settings, "stays") as stays,
        JetStreamSubscriber(settings, index, grace_s=0.5) as subscriber,
    ):
        goes = JetStreamPublisher(settings, "goes")
        for publisher in (stays, goes):
            publisher.publish(store(1))
            publisher.wait_ready(20.0)
        expect_live(subscriber, workers=2)
        die(goes)
        expect(subscriber, State.LOST, Reason.LEASE_EXPIRED, worker="goes")
        assert [match.state for match in index.match([100_000, 100_001, 100_002, 100_003])] in (
            ["live", "lost"],
            ["lost", "live"],
        )
        wait_until(lambda: not gpu(index, "goes"), lambda: index.holdings("goes"))
        assert gpu(index, "stays") == {1_000}
        assert [record.worker for record in subscriber.workers()] == ["stays"]
        expect_live(subscriber)


def test_a_worker_that_ends_in_good_order_leaves_at_once(settings: JetStreamSettings) -> None:
    index = PrefixIndex(PAGE)
    with JetStreamSubscriber(settings, index, grace_s=3_600.0) as subscriber:
        with JetStreamPublisher(settings, "w") as publisher:
            publisher.publish(store(1))
            expect_live(subscriber)
            wait_until(lambda: gpu(index), subscriber.states)
        expect(subscriber, State.LOST, Reason.LEFT)
        wait_until(lambda: not gpu(index), lambda: index.holdings("w"))


def test_a_worker_that_was_away_for_long_is_read_again(server: NatsServer, settings: JetStreamSettings) -> None:
    """Its connection was cut, not its engine: the same incarnation comes back with what it held."""
    index = PrefixIndex(PAGE)
    with (
        JetStreamSubscriber(settings, index, grace_s=0.2) as subscriber,
        JetStreamPublisher(settings, "w") as publisher,
    ):
        for number in range(20):
            publisher.publish(store(number))
        publisher.wait_ready(20.0)
        expect_live(subscriber)
        with silenced(publisher):
            expect(subscriber, State.LOST, Reason.LEASE_EXPIRED)
            wait_until(lambda: not gpu(index), lambda: index.holdings("w"))
            publisher.publish(store(20))
        expect_live(subscriber)
        wait_until(lambda: subscriber.state("w").last_sequence == 20, subscriber.states)
        assert gpu(index) == {number * 1_000 for number in range(21)}
        assert subscriber.state("w").counters.restarts == 0


def test_workers_of_the_past_are_lost_for_a_new_consumer(settings: JetStreamSettings) -> None:
    old = JetStreamPublisher(settings, "old")
    old.publish(store(1))
    old.wait_ready(20.0)
    die(old)
    index = PrefixIndex(PAGE)
    with JetStreamPublisher(settings, "new") as publisher:
        publisher.publish(store(2))
        publisher.wait_ready(20.0)
        with JetStreamSubscriber(settings, index, grace_s=0.1) as subscriber:
            expect(subscriber, State.LOST, Reason.LEASE_EXPIRED, worker="old")
            expect_live(subscriber)
            wait_until(lambda: not gpu(index, "old"), lambda: index.holdings("old"))
            assert gpu(index, "new") == {2_000}


def die(publisher: JetStreamPublisher) -> None:
    """Ends a publisher as a killed process would: without a word to the registry."""
    publisher._broker.stop()


class silenced:  # noqa: N801 - reads like a phrase
    """Keeps a publisher from the broker, as a cut cable would."""

    def __init__(self, publisher: JetStreamPublisher) -> None:
        self._broker = publisher._broker
        self._settings = self._broker._settings

    def __enter__(self) -> None:
        self._broker._settings = settings_for_nowhere(self._settings)
        connection = self._broker._connection
        assert connection is not None
        self._broker.call_soon(lambda: connection.fail("cut"))

    def __exit__(self, *_: object) -> None:
        self._broker._settings = self._settings


def settings_for_nowhere(settings: JetStreamSettings) -> JetStreamSettings:
    return dataclasses.replace(settings, servers=("nats://127.0.0.1:1",))
