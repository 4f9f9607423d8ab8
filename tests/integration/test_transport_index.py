"""Publisher, subscriber and index together: what an engine holds is what the index says it holds."""

from collections.abc import Iterator

import pytest

from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport import DeliverySettings, Reason, Source, SourceState, State, Subscriber, ZmqPublisher
from kvevents.wire import encode_batch
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
    def tell(worker: str, rank: int | None, state: SourceState) -> None:
        index.set_state(worker, rank, state.state)

    with ZmqPublisher(ANY, replay_endpoint=ANY, dp_rank=0) as publisher:
        publisher.publish(batch(stored(10)))
        source = Source("w", publisher.endpoint, replay_endpoint=publisher.replay_endpoint, dp_rank=0)
        with Subscriber([source], index, on_state=tell) as subscriber:
            assert subscriber.wait_live(20)
            (match,) = index.match([10, 11, 12, 13, 14])
            assert (match.total, match.state) == (1, "live")
            publisher.close()
            until(lambda: subscriber.state("w", 0).state is State.LOST)
            until(lambda: index.match([10, 11, 12, 13, 14])[0].state == "lost")
