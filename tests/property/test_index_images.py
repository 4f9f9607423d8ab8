"""A law of moving one worker from index to index."""

from hypothesis import given
from hypothesis import strategies as st

from index_and_model import answers, register
from index_streams import Batch, Stream, streams
from kvevents.events import KVEventBatch
from kvevents.index import PrefixIndex


def made(stream: Stream) -> PrefixIndex:
    index = PrefixIndex(stream.block_size)
    for worker, engine in enumerate(stream.engines):
        register(index, worker, engine)
    return index


def feed(index: PrefixIndex, batches: list[Batch], *workers: int) -> None:
    for batch in batches:
        if batch.worker in workers:
            index.apply(str(batch.worker), KVEventBatch(ts=0.0, events=batch.events, attn_dp_rank=batch.rank))


def held(index: PrefixIndex) -> dict[int | None, dict[str, set[int]]]:
    return {rank: tiers for rank, tiers in index.holdings("0").items() if any(tiers.values())}


@given(streams(), st.integers(0, 100), st.integers(0, 100))
def test_a_worker_that_was_moved_goes_on_as_where_it_came_from(stream: Stream, percent: int, stale: int) -> None:
    """Beside another worker, which is ahead, and in place of what the index knew of this one before."""
    cut = len(stream.batches) * percent // 100
    whole, origin, target = made(stream), made(stream), made(stream)
    feed(whole, stream.batches, 0, 1)
    feed(origin, stream.batches[:cut], 0)
    feed(target, stream.batches[: cut * stale // 100], 0)
    feed(target, stream.batches, 1)
    target.clear_worker("0")
    for image in origin.snapshot_worker("0"):
        report = target.restore_worker("0", image)
        assert (report.ignored, report.dropped) == (None, 0)
        target.check_integrity()
    assert held(target) == held(origin)
    feed(target, stream.batches[cut:], 0)
    target.check_integrity()
    assert held(target) == held(whole)
    for path in stream.paths:
        assert answers(target, stream, path) == answers(whole, stream, path)
    target.remove_worker("1")
    target.check_integrity()
