"""Laws of the index over random streams and deliveries: after every batch it says what the plain model says."""

from hypothesis import assume, given

from index_and_model import Both, answers
from index_deliveries import Run, runs
from kvevents.events import BlockStored
from kvevents.index import PrefixIndex
from set_model import Source


@given(runs())
def test_the_index_says_what_the_model_says(run: Run) -> None:
    both = Both(run.stream)
    for delivery in run.deliveries:
        both.deliver(delivery)
        both.check()
    both.check_figures()


@given(runs())
def test_clearing_every_source_leaves_nothing(run: Run) -> None:
    both = Both(run.stream)
    for delivery in run.deliveries:
        both.deliver(delivery)
    for worker in range(len(run.stream.engines)):
        both.clear(worker, None)
    both.check()
    both.check_figures()
    assert both.index.stats().blocks == 0


@given(runs())
def test_a_restored_snapshot_goes_on_as_the_index_it_was_taken_of(run: Run) -> None:
    both = Both(run.stream)
    for delivery in run.deliveries:
        both.deliver(delivery)
        snapshot = both.index.snapshot()
        both.adopt(PrefixIndex(run.stream.block_size))
        both.index.restore(snapshot)
        assert both.index.snapshot() == snapshot
        both.check()


def rebuilt(both: Both) -> Both:
    """Another index that was told what the first one dumps."""
    again = Both(both.stream)
    for worker in range(len(both.stream.engines)):
        for dump in both.index.dump_events(str(worker)):
            assert again.index.apply(str(worker), dump).error is None
    again.index.check_integrity()
    return again


def is_told(source: Source) -> bool:
    held = {group for copies in source.held.copies.values() for _, group in copies}
    return source.kinds.keys() - source.declared.keys() <= held


@given(runs())
def test_a_dump_with_tokens_builds_an_index_that_goes_on_as_the_first(run: Run) -> None:
    both = Both(run.stream, keep_tokens=True)
    told = [delivery for delivery in run.deliveries if delivery.fate == "told"]
    half = len(told) // 2
    for delivery in told[:half]:
        both.deliver(delivery)
    # A dump tells the kinds of those groups only that hold something.
    assume(all(is_told(source) for source in both.model.values()))
    again = rebuilt(both)
    for delivery in told[half:]:
        both.deliver(delivery)
        again.tell(delivery)
    # A dump of nothing does not tell how the engine cuts, so a store that contradicts it is let in.
    assume(not any(source.error for source in both.model.values()))
    for worker in range(len(run.stream.engines)):
        assert again.index.holdings(str(worker)) == both.index.holdings(str(worker))
    for path in run.stream.paths:
        assert answers(again.index, run.stream, path) == answers(both.index, run.stream, path)


@given(runs())
def test_a_dump_without_tokens_has_the_same_holdings(run: Run) -> None:
    both = Both(run.stream)
    for delivery in run.deliveries:
        both.deliver(delivery)
    again = rebuilt(both)
    for worker in range(len(run.stream.engines)):
        for dump in both.index.dump_events(str(worker)):
            assert not any(isinstance(event, BlockStored) and event.token_ids for event in dump.events)
        assert again.index.holdings(str(worker)) == both.index.holdings(str(worker))
