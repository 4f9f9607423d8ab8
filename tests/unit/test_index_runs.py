"""Batches that come together: `apply_run` does what `apply` does with each, and stops where one says something."""

from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.wire import encode_batch


def batch(*events: KVCacheEvent, rank: int | None = 0) -> bytes:
    return encode_batch(KVEventBatch(0.0, list(events), attn_dp_rank=rank))


def store(block: int, parent: int | None = None) -> BlockStored:
    return BlockStored([block], parent, [block], 1, medium="GPU")


PLAIN = [batch(store(1)), batch(store(2, 1)), batch(BlockRemoved([2], medium="GPU")), batch(store(3, 1), rank=1)]


def test_a_run_is_its_batches_one_by_one() -> None:
    single, runs = PrefixIndex(1), PrefixIndex(1)
    for number, data in enumerate(PLAIN):
        single.apply("w", data, seq=number)
    assert runs.apply_run("w", list(enumerate(PLAIN))) == (4, None, [0, 1])
    assert runs.holdings("w") == single.holdings("w")
    assert runs.holdings("w")[0]["GPU"] == {1}
    assert runs.stats().sources == single.stats().sources


def test_it_ends_with_the_batch_about_which_there_is_something_to_say() -> None:
    cleared = PrefixIndex(1)
    taken, report, ranks = cleared.apply_run("w", [(0, PLAIN[0]), (1, batch(AllBlocksCleared())), (2, PLAIN[0])])
    assert (taken, ranks) == (2, [0])
    assert report is not None
    assert report.cleared == 1
    assert cleared.holdings("w")[0]["GPU"] == set()

    taken, report, _ = cleared.apply_run("w", [(2, PLAIN[0]), (2, PLAIN[1]), (3, PLAIN[1])])
    assert taken == 2
    assert report is not None
    assert report.ignored == "duplicate"
    assert cleared.holdings("w")[0]["GPU"] == {1}


def test_what_cannot_be_applied_ends_it_and_is_left() -> None:
    index = PrefixIndex(1)
    assert index.apply_run("w", [(0, PLAIN[0]), (1, b"\xc1"), (2, PLAIN[1])]) == (1, None, [0])
    assert index.apply_run("w", [(1, b"\xc1")]) == (0, None, [])
    assert index.stats().sources[0].last_seq == 0


def test_no_batches_are_no_run() -> None:
    assert PrefixIndex(1).apply_run("w", []) == (0, None, [])
