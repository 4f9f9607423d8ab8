"""Snapshots from a publisher to a subscriber, with real sockets and indexes."""

from collections.abc import Iterator
from typing import Any

import pytest

from kvevents.caches import RadixCache
from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Reason, Source, State, Subscriber, ZmqPublisher
from kvevents.transport.mirror import Mirror
from kvevents.transport.replay_buffer import ReplayBuffer
from kvevents.wire import encode_batch
from reached import reached
from recording_sink import RecordingSink
from zmq_peers import PlainEngine, until

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"
PAGE = 4
QUICK = DeliverySettings(replay_timeout_s=1.0, idle_probe_s=0.1, settle_s=0.02, retry_max_s=0.2)


@pytest.fixture
def index() -> Iterator[PrefixIndex]:
    index = PrefixIndex(PAGE)
    yield index
    index.check_integrity()


def batch(sequence: int) -> KVEventBatch:
    """A prompt of one block; every third takes an earlier one away."""
    tokens = [sequence * PAGE + n for n in range(PAGE)]
    stored = BlockStored([sequence], None, tokens, PAGE, medium="GPU")
    removed = BlockRemoved([sequence - 2], medium="GPU")
    return KVEventBatch(0.0, [stored, removed] if sequence % 3 == 2 else [stored])


def expected(count: int) -> set[int]:
    return set(range(count)) - {sequence - 2 for sequence in range(2, count, 3)}


def held(index: PrefixIndex, worker: str = "w", rank: int | None = 0) -> set[int]:
    return index.holdings(worker).get(rank, {}).get("GPU", set())


def source(publisher: ZmqPublisher, **fields: Any) -> Source:
    return Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint, **fields)


@pytest.mark.parametrize("said", [None, True])
def test_a_late_joiner_is_live_though_the_buffer_is_short(index: PrefixIndex, said: bool | None) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, buffer_steps=3, snapshot="mirror") as publisher:
        for sequence in range(100):
            publisher.publish(batch(sequence))
        until(lambda: publisher.stats().published == 100, "its thread has sent and read them all")
        with Subscriber([source(publisher, snapshot=said)], index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            assert held(index) == expected(100)
            assert subscriber.state("w").counters.snapshots == 1
            tokens = [400 * PAGE // 4 - PAGE + n for n in range(PAGE)]
            assert index.match([*tokens, 0])[0].total == 1
            for sequence in range(100, 110):
                publisher.publish(batch(sequence))
            until(lambda: held(index) == expected(110))


def test_a_broken_batch_is_made_good_by_one(index: PrefixIndex) -> None:
    truth = PrefixIndex(PAGE)
    count = 0

    def taken() -> tuple[int, list[bytes]]:
        return count - 1, truth.snapshot_worker("engine")

    with (
        ZmqPublisher(ANY, replay_endpoint=ANY, snapshot=taken) as publisher,
        Subscriber([source(publisher)], index, settings=QUICK) as subscriber,
    ):
        for sequence in range(5):
            truth.apply("engine", batch(sequence), dp_rank=0)
            count += 1
            publisher.publish(batch(sequence))
        until(lambda: held(index) == expected(5))
        count += 1
        publisher.publish(b"\xc1 is no msgpack")
        until(lambda: subscriber.state("w").counters.snapshots == 1)
        reached(subscriber, State.LIVE)
        assert held(index) == expected(5)
        assert subscriber.state("w").counters.refused == 1


def test_a_sink_that_takes_no_images_goes_on_with_batches(caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY, buffer_steps=2, snapshot=lambda: (8, [b"1", b"2"])) as publisher:
        for sequence in range(10):
            publisher.publish(b"batch %d" % sequence)
        with Subscriber([source(publisher)], sink, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            assert sink.payloads() == [b"1", b"2", b"batch 9"]
            assert sink.sequences() == [None, None, 9]
    images = PrefixIndex(PAGE)
    images.apply("x", batch(0))
    parts = images.snapshot_worker("x")
    sink = RecordingSink()
    with ZmqPublisher(ANY, replay_endpoint=ANY, buffer_steps=2, snapshot=lambda: (8, parts)) as publisher:
        for sequence in range(10):
            publisher.publish(b"batch %d" % sequence)
        with Subscriber([source(publisher)], sink, settings=QUICK) as subscriber:
            reached(subscriber, State.DEGRADED, Reason.REPLAY_STARTS_LATE)
            assert sink.payloads() == [b"batch 8", b"batch 9"]
            assert subscriber.state("w").counters.snapshot_failures == 1
    assert not caplog.records, "that is no failure of ours"


def test_a_sink_that_takes_no_images_keeps_what_it_holds(index: PrefixIndex) -> None:
    class Batches:
        apply = index.apply
        clear_worker = index.clear_worker

    images = PrefixIndex(PAGE)
    images.apply("x", batch(0))
    parts = images.snapshot_worker("x")
    with (
        ZmqPublisher(ANY, replay_endpoint=ANY, snapshot=lambda: (2, parts)) as publisher,
        Subscriber([source(publisher)], Batches(), settings=QUICK) as subscriber,
    ):
        publisher.publish(batch(0))
        reached(subscriber, State.LIVE)
        publisher.publish(b"broken")
        publisher.publish(batch(2))
        until(lambda: subscriber.state("w").counters.snapshot_failures, "a snapshot that it cannot take")
        assert reached(subscriber, State.DEGRADED, Reason.BATCH_REFUSED).counters.clears == 0
        until(lambda: held(index) == {2}, "as before, and what came since")


def test_a_plain_publisher_is_asked_and_nothing_comes_of_it() -> None:
    sink = RecordingSink()
    with PlainEngine() as engine:
        for sequence in range(40, 50):
            engine.publish(b"x", sequence=sequence, live=False)
        plain = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        with Subscriber([plain], sink, settings=QUICK) as subscriber:
            state = reached(subscriber, State.DEGRADED, Reason.REPLAY_STARTS_LATE)
            until(lambda: sink.sequences() == list(range(40, 50)), "all of the buffer")
            assert (state.counters.snapshot_requests, state.counters.snapshot_failures) == (1, 1)
            until(lambda: subscriber.state("w").counters.probes > 3)
            assert len([start for start in engine.requests if start > 1 << 60]) == 1


def test_two_ranks_in_one_stream_come_in_one_snapshot(index: PrefixIndex) -> None:
    ranks = dict[str, Any](dp_rank=None, buffer_steps=1, snapshot="mirror")
    with ZmqPublisher(ANY, replay_endpoint=ANY, **ranks) as publisher:
        for rank in (0, 1, 1):
            cache = RadixCache(page_size=PAGE, capacity=64)
            cache.insert([rank * 100 + n for n in range(8 + rank * PAGE)])
            payload = cache.take_batch(dp_rank=rank)
            assert payload is not None
            publisher.publish(payload)
        with Subscriber([source(publisher)], index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            assert {rank: len(tiers["GPU"]) for rank, tiers in index.holdings("w").items()} == {0: 2, 1: 3}


def test_a_worker_that_is_gone_for_good_leaves_the_index(index: PrefixIndex) -> None:
    settings = DeliverySettings(lost_grace_s=0.2)
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(batch(0))
        with Subscriber([source(publisher, dp_rank=0)], index, settings=settings) as subscriber:
            assert subscriber.wait_live(20)
            publisher.close()
            until(lambda: subscriber.state("w").code is Reason.LEASE_EXPIRED)
            assert held(index) == set()
            assert subscriber.state("w").state is State.LOST
            assert not index.match([0, 1, 2, 3, 4])


def test_a_clear_of_one_rank_does_not_make_up_for_what_another_one_lost(index: PrefixIndex) -> None:
    clear = KVEventBatch(0.0, [AllBlocksCleared()], attn_dp_rank=1)
    with PlainEngine() as engine:
        engine.publish(encode_batch(KVEventBatch(0.0, batch(5).events, attn_dp_rank=0)), sequence=40, live=False)
        engine.publish(encode_batch(clear), live=False)
        plain = Source("w", engine.endpoint, replay_endpoint=engine.replay_endpoint, topic="kv")
        with Subscriber([plain], index, settings=QUICK) as subscriber:
            until(lambda: subscriber.state("w").last_sequence == 41)
            reached(subscriber, State.DEGRADED, Reason.REPLAY_STARTS_LATE)
            until(lambda: subscriber.state("w").counters.probes > 2)
            assert subscriber.state("w").state is State.DEGRADED
            engine.publish(encode_batch(KVEventBatch(0.0, [AllBlocksCleared()], attn_dp_rank=0)))
            reached(subscriber, State.LIVE)


class TestMirror:
    def follow(self, mirror: Mirror, buffer: ReplayBuffer, *batches: KVEventBatch) -> None:
        for one in batches:
            payload = encode_batch(one)
            mirror.follow(buffer.append(payload), payload)

    def test_what_was_not_handed_over_is_read_from_the_buffer(self) -> None:
        buffer = ReplayBuffer(3)
        mirror = Mirror(buffer)
        assert mirror() == (None, [])
        for sequence in range(3):
            buffer.append(encode_batch(batch(sequence)))
        self.follow(mirror, buffer, batch(3))
        assert not mirror.is_complete
        assert mirror() is None
        buffer = ReplayBuffer(10)
        mirror = Mirror(buffer)
        for sequence in range(3):
            buffer.append(encode_batch(batch(sequence)))
        self.follow(mirror, buffer, batch(3))
        taken = mirror()
        assert taken is not None
        assert taken.sequence == 3
        index = PrefixIndex(PAGE)
        index.restore_worker("w", taken.parts[0])  # type: ignore[index]
        assert held(index, rank=None) == expected(4)

    def test_one_that_missed_something_waits_for_a_clear_of_every_rank(self) -> None:
        buffer = ReplayBuffer(1)
        mirror = Mirror(buffer)
        for rank in (0, 1):
            self.follow(mirror, buffer, KVEventBatch(0.0, [], attn_dp_rank=rank))
        buffer.append(b"missed")
        self.follow(mirror, buffer, KVEventBatch(0.0, [AllBlocksCleared()], attn_dp_rank=0))
        assert not mirror.is_complete
        self.follow(mirror, buffer, KVEventBatch(0.0, [AllBlocksCleared()], attn_dp_rank=1))
        assert mirror.is_complete

    @pytest.mark.parametrize("broken", [b"\xc1", encode_batch(KVEventBatch(0.0, [BlockStored([1], None, [], 0)]))[:-1]])
    def test_one_that_cannot_use_a_batch_has_no_snapshot(self, broken: bytes) -> None:
        buffer = ReplayBuffer(4)
        mirror = Mirror(buffer)
        mirror.follow(buffer.append(broken), broken)
        assert mirror() is None
        self.follow(mirror, buffer, KVEventBatch(0.0, [AllBlocksCleared()]))
        assert mirror() is not None

    def test_a_publisher_knows_no_other_word(self) -> None:
        with pytest.raises(ConfigError, match="expected None, 'mirror' or a callable"):
            ZmqPublisher(ANY, replay_endpoint=ANY, snapshot="own")  # type: ignore[arg-type]
