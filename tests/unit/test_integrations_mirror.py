"""The index beside an engine that its snapshots are taken of."""

import msgspec

from kvevents.events import AllBlocksCleared, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.integrations.mirror import Mirror
from kvevents.wire import encode_batch


def batch(*events: KVCacheEvent) -> bytes:
    return encode_batch(KVEventBatch(0.0, list(events), 3))


def stored(block: int) -> bytes:
    return batch(BlockStored([block], None, [block, block + 1], 2, medium="GPU"))


def test_a_snapshot_is_of_the_last_batch_so_far() -> None:
    mirror = Mirror(rank=3)
    assert mirror.snapshot() == (None, [])
    for sequence in range(100):
        mirror.add(sequence, stored(sequence))
    taken = mirror.snapshot()
    mirror.close()
    assert taken is not None
    assert taken.sequence == 99
    other = PrefixIndex(16)
    for part in taken.parts:
        other.restore_worker("w", part)
    assert other.holdings("w")[3]["GPU"] == set(range(100))


def test_what_could_not_be_followed_makes_no_snapshot_before_the_next_clear() -> None:
    mirror = Mirror(rank=3)
    mirror.add(0, stored(1))
    mirror.add(1, b"no batch")
    assert mirror.snapshot() is None
    assert mirror.failed == 1
    mirror.add(2, batch(AllBlocksCleared()))
    mirror.add(3, stored(2))
    taken = mirror.snapshot()
    assert taken is not None
    assert (taken.sequence, mirror.failed) == (3, 0)
    mirror.close()
    assert mirror.snapshot() is None


def test_an_event_that_was_left_out_makes_no_snapshot_either() -> None:
    mirror = Mirror(rank=3)
    mirror.add(0, stored(1))
    mirror.add(1, msgspec.msgpack.encode([0.0, [{"type": "BlockRemoved", "block_hashes": "none"}], 3]))
    assert mirror.snapshot() is None
    mirror.add(2, msgspec.msgpack.encode([0.0, [{"type": "AllBlocksCleared"}, {"type": "Later"}], 3]))
    assert mirror.snapshot() is not None, "what nobody knows is no loss"
    mirror.close()


def test_a_closed_mirror_may_be_closed_again() -> None:
    mirror = Mirror(rank=0)
    mirror.close()
    mirror.close()
