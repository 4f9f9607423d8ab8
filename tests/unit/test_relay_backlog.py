"""What a relay keeps of batches that are repeated no more as they were sent."""

from kvevents._core.relay import CompactedLog
from kvevents.events import BlockStored, KVCacheEvent, KVEventBatch
from kvevents.transport.relay.backlog import compacted_batches
from kvevents.wire import encode_batch

MOST_EVENTS_OF_A_BATCH = 1 << 16


def test_a_log_of_more_events_than_a_batch_takes_is_given_in_the_fewest_batches_there_are() -> None:
    log = CompactedLog()
    stores: list[KVCacheEvent] = [
        BlockStored([n], None, [n], 1, medium="GPU") for n in range(MOST_EVENTS_OF_A_BATCH + 100)
    ]
    log.add(encode_batch(KVEventBatch(0.0, stores)))
    batches = compacted_batches({0: log}, "sglang", room=1)
    assert [rank for rank, _ in batches] == [0, 0]
