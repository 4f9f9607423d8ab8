"""Publisher, subscriber and index together: what an engine holds is what the index says it holds."""

from collections.abc import Iterator

import pytest

from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Reason, Source, State, Subscriber, ZmqPublisher
from kvevents.wire import encode_batch
from recording_sink import RecordingSink
from zmq_peers import PlainEngine, until

pytestmark = pytest.mark.integration
ANY = "tcp://127.0.0.1:*"
QUICK = DeliverySettings(replay_timeout_s=0.5, idle_probe_s=0.1, settle_s=0.02)


def stored(block: int, parent: int | None = None, *, medium: str = "GPU") -> BlockStored:
    """A block of four tokens that are told by its hash."""
    return BlockStored([block], parent, [block, block + 1, block + 2, block + 3], 4, medium=medium)


def batch(*events: KVCacheEvent, rank: int | None = None) -> bytes:
    return encode_batch(KVEventBatch(ts=0.0, events=list(events), attn_dp_rank=rank))


def gpu(index: PrefixIndex, rank: int | None = None, worker: str = "w") -> set[int]:
    return index.holdings(worker).get(rank, {}).get("GPU", set())


@pytest.fixture
def index() -> Iterator[PrefixIndex]:
    index = PrefixIndex(4)
    yield index
    index.check_integrity()


def test_a_late_joiner_knows_what_the_engine_holds(index: PrefixIndex) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(KVEventBatch(ts=0.0, events=[stored(10), stored(20, 10)]))
        publisher.publish(KVEventBatch(ts=0.0, events=[BlockRemoved([20], medium="GPU"), stored(30, 10)]))
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([source], index) as subscriber:
            assert subscriber.wait_live(20)
            assert gpu(index, 0) == {10, 30}
            publisher.publish(KVEventBatch(ts=0.0, events=[stored(40, 30)]))
            until(lambda: gpu(index, 0) == {10, 30, 40})


def test_a_restarted_engine_replaces_what_it_held_and_other_ranks_keep_theirs(index: PrefixIndex) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, dp_rank=0) as other, PlainEngine() as old:
        other.publish(batch(stored(10), rank=0))
        for block in (10, 20, 30):
            old.publish(batch(stored(block), rank=1), live=False)
        sources = [
            Source("w", other.endpoint, replay_endpoint=other.replay_endpoint, dp_rank=0),
            Source("w", old.endpoint, replay_endpoint=old.replay_endpoint, dp_rank=1),
        ]
        with Subscriber(sources, index, settings=QUICK) as subscriber:
            assert subscriber.wait_live(20)
            assert gpu(index, 1) == {10, 20, 30}
            old.close()
            with PlainEngine(endpoint=old.endpoint, replay_endpoint=old.replay_endpoint) as new:
                new.publish(batch(stored(50), rank=1), live=False)
                until(lambda: gpu(index, 1) == {50})
                assert subscriber.wait_live(20)
                new.publish(batch(stored(60, 50), rank=1))
                until(lambda: gpu(index, 1) == {50, 60})
            assert gpu(index, 0) == {10}


def test_an_index_that_remembers_an_earlier_life_is_brought_up_to_date(index: PrefixIndex) -> None:
    for blocks in ([10, 20, 30], [50]):
        with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
            for block in blocks:
                publisher.publish(batch(stored(block)))
            source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
            with Subscriber([source], index) as subscriber:
                assert subscriber.wait_live(20)
                assert gpu(index) == set(blocks)


def test_a_source_that_is_removed_leaves_nothing_in_the_index(index: PrefixIndex) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(batch(stored(10)))
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([source], index) as subscriber:
            assert subscriber.wait_live(20)
            subscriber.remove_source("w")
            assert gpu(index) == set()
            subscriber.add_source(source)
            assert subscriber.wait_live(20)
            assert gpu(index) == {10}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xc1", Reason.BATCH_REFUSED),
        (batch(stored(20)).replace(b"\xa3GPU", b"\xa3???"), Reason.EVENT_SKIPPED),
    ],
)
def test_what_cannot_be_used_is_said_and_a_clear_ends_it(index: PrefixIndex, payload: bytes, reason: Reason) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(batch(stored(10)))
        publisher.publish(payload)
        publisher.publish(batch(stored(30, 10)))
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([source], index) as subscriber:
            until(lambda: subscriber.state("w").code is reason)
            until(lambda: gpu(index) == {10, 30})
            publisher.publish(batch(AllBlocksCleared(), stored(40)))
            assert subscriber.wait_live(20)
            assert gpu(index) == {40}


def test_the_state_of_a_source_reaches_the_matches(index: PrefixIndex) -> None:
    with ZmqPublisher(ANY, replay_endpoint=ANY, dp_rank=0) as publisher:
        publisher.publish(batch(stored(10)))
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint, dp_rank=0)
        with Subscriber([source], index) as subscriber:
            assert subscriber.wait_live(20)
            (match,) = index.match([10, 11, 12, 13, 14])
            assert (match.total, match.state) == (1, "live")
            publisher.close()
            until(lambda: subscriber.state("w", 0).state is State.LOST)
            until(lambda: index.match([10, 11, 12, 13, 14])[0].state == "lost")


def test_what_a_source_says_of_its_worker_is_registered(index: PrefixIndex) -> None:
    """As `discover` gives it: a block size that events contradict is loud, a set counts no copies."""
    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        publisher.publish(batch(stored(10), stored(10), stored(20), BlockRemoved([10], medium="GPU")))
        replay = publisher.replay_endpoint
        sources = [
            Source("counted", publisher.endpoint, replay_endpoint=replay, dp_rank=0, block_size=4),
            Source("set", publisher.endpoint, replay_endpoint=replay, residency="set"),
            Source("other", publisher.endpoint, replay_endpoint=replay, block_size=64),
            Source("silent", publisher.endpoint, replay_endpoint=replay),
        ]
        index.add_worker("silent", residency="set")
        with Subscriber(sources, index) as subscriber:
            until(lambda: subscriber.state("other").code is Reason.SETTING_CONTRADICTED)
            held = {("counted", 0): {10, 20}, ("set", None): {20}, ("silent", None): {20}, ("other", None): set[int]()}
            until(lambda: {(worker, rank): gpu(index, rank, worker) for worker, rank in held} == held)
            with pytest.raises(ConfigError, match="expected the settings it was added with"):
                subscriber.add_source(Source("counted", publisher.endpoint, dp_rank=1, block_size=8))


def test_a_sink_that_cannot_be_told_a_state_is_counted(index: PrefixIndex, caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(RecordingSink):
        def set_state(self, worker: str, dp_rank: int | None, state: str) -> None:
            raise RuntimeError(state)

    with ZmqPublisher(ANY, replay_endpoint=ANY) as publisher:
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
        with Subscriber([source], Deaf()) as subscriber:
            assert subscriber.wait_live(20)
            assert subscriber.state_errors > 1
    assert [record.getMessage() for record in caplog.records] == [
        "the sink's set_state failed; later failures are only counted"
    ]
