"""Laws of the index over random streams: after every batch it says what the plain model says."""

from typing import Any

from hypothesis import Phase, assume, find, given, settings

import set_model
from index_streams import DECLARED, SPACES, Batch, Engine, Path, Stream, streams
from kvevents.events import BlockRemoved, BlockStored, KVEventBatch
from kvevents.index import GroupSpec, PrefixIndex
from set_model import TIERS, Source, tier_of

Rank = int | None


class Both:
    """The index and the model, fed alike."""

    def __init__(self, stream: Stream, **settings: Any) -> None:
        self.stream = stream
        self.index = PrefixIndex(stream.block_size, **settings)
        self.model: dict[tuple[int, Rank], Source] = {}
        for worker, engine in enumerate(stream.engines):
            register(self.index, worker, engine)

    def apply(self, batch: Batch) -> None:
        data = KVEventBatch(ts=0.0, events=batch.events, attn_dp_rank=batch.rank)
        report = self.index.apply(str(batch.worker), data)
        source = self.model.setdefault((batch.worker, batch.rank), self.source(batch.worker))
        misses = 0
        for event in batch.events:
            misses += source.apply(event)
        unknown = [tier_of(event.medium, None) for event in batch.events if isinstance(event, BlockStored)]
        assert [event.code for event in report.skipped] == ["unknown-tier"] * unknown.count(set_model.UNKNOWN)
        assert (report.removal_misses, report.dropped, report.ignored) == (misses, 0, None)
        assert report.pending + report.parked == source.waiting()

    def source(self, worker: int) -> Source:
        engine = self.stream.engines[worker]
        kinds: dict[int, tuple[str, int | None]] = dict(DECLARED) if engine.declared else {}
        return Source(block_size=engine.registered, counted=engine.counted, kinds=kinds)

    def check(self) -> None:
        self.index.check_integrity()
        for worker in range(len(self.stream.engines)):
            held = {
                rank: {name: source.held.blocks(tier, source.full_groups()) for tier, name in enumerate(TIERS)}
                for (owner, rank), source in self.model.items()
                if owner == worker
            }
            assert self.index.holdings(str(worker)) == held
        for path in self.stream.paths:
            assert answers(self.index, self.stream, path) == self.expected(path)

    def expected(self, path: Path) -> dict[tuple[str, Rank], Any]:
        found = {}
        for (worker, rank), source in self.model.items():
            match = set_model.match(
                source, self.stream.block_size, prompt(self.stream, path), *asked(self.stream, path)
            )
            if match is not None and match.total > 0:
                state = "degraded" if source.error else "live"
                found[str(worker), rank] = (*match, state)
        return found


def register(index: PrefixIndex, worker: int, engine: Engine) -> None:
    groups = {number: GroupSpec(kind, window) for number, (kind, window) in DECLARED.items()}
    index.add_worker(
        str(worker),
        block_size=engine.registered,
        residency="counted" if engine.counted else "set",
        groups=groups if engine.declared else None,
    )


def prompt(stream: Stream, path: Path) -> list[int]:
    """The path as its first worker's engine cuts it, and something after it."""
    engine = stream.engines[0]
    return [*path.tokens(engine.size, pairs=engine.pairs), 99]


def asked(stream: Stream, path: Path) -> tuple[Any, list[Any]]:
    """Namespace and images as the model takes them."""
    space = SPACES[path.space]
    images = path.images() if stream.images else []
    return (space.get("lora_name") or space.get("lora_id"), space.get("cache_salt")), images


def answers(index: PrefixIndex, stream: Stream, path: Path) -> dict[tuple[str, Rank], Any]:
    _, images = asked(stream, path)
    matches = index.match(prompt(stream, path), **SPACES[path.space], extra_keys=[entry or None for entry in images])
    order = [(-match.usable, -match.fastest["GPU"], match.worker) for match in matches]
    assert order == sorted(order)
    return {
        (match.worker, match.dp_rank): (match.total, match.tiers, match.fastest, match.usable, match.state)
        for match in matches
    }


@given(streams())
def test_the_index_says_what_the_model_says(stream: Stream) -> None:
    both = Both(stream)
    for batch in stream.batches:
        both.apply(batch)
        both.check()


class Forgetful(Both):
    """The index never hears of removals."""

    def apply(self, batch: Batch) -> None:
        heard = [event for event in batch.events if not isinstance(event, BlockRemoved)]
        self.index.apply(str(batch.worker), KVEventBatch(ts=0.0, events=[*heard], attn_dp_rank=batch.rank))
        source = self.model.setdefault((batch.worker, batch.rank), self.source(batch.worker))
        for event in batch.events:
            source.apply(event)


def is_found_out(stream: Stream) -> bool:
    both = Forgetful(stream)
    for batch in stream.batches:
        both.apply(batch)
    try:
        both.check()
    except AssertionError:
        return True
    return False


def test_an_index_that_drops_removals_is_found_out() -> None:
    find(streams(), is_found_out, settings=settings(max_examples=500, database=None, phases=[Phase.generate]))


@given(streams())
def test_a_restored_snapshot_goes_on_as_the_index_it_was_taken_of(stream: Stream) -> None:
    both = Both(stream)
    for batch in stream.batches:
        both.apply(batch)
        snapshot = both.index.snapshot()
        both.index = PrefixIndex(stream.block_size)
        both.index.restore(snapshot)
        assert both.index.snapshot() == snapshot
        both.check()


def rebuilt(both: Both) -> PrefixIndex:
    """Another index that was told what the first one dumps."""
    again = Both(both.stream).index
    for worker in range(len(both.stream.engines)):
        for dump in both.index.dump_events(str(worker)):
            assert again.apply(str(worker), dump).error is None
    again.check_integrity()
    return again


def is_told(source: Source) -> bool:
    held = {group for copies in source.held.copies.values() for _, group in copies}
    return source.kinds.keys() - source.declared.keys() <= held


@given(streams())
def test_a_dump_with_tokens_builds_an_index_that_goes_on_as_the_first(stream: Stream) -> None:
    both = Both(stream, keep_tokens=True)
    half = len(stream.batches) // 2
    for batch in stream.batches[:half]:
        both.apply(batch)
    # A dump tells the kinds of those groups only that hold something.
    assume(all(is_told(source) for source in both.model.values()))
    again = rebuilt(both)
    for batch in stream.batches[half:]:
        both.apply(batch)
        again.apply(str(batch.worker), KVEventBatch(ts=0.0, events=batch.events, attn_dp_rank=batch.rank))
    # A dump of nothing does not tell how the engine cuts, so a store that contradicts it is let in.
    assume(not any(source.error for source in both.model.values()))
    for worker in range(len(stream.engines)):
        assert again.holdings(str(worker)) == both.index.holdings(str(worker))
    for path in stream.paths:
        assert answers(again, stream, path) == answers(both.index, stream, path)


@given(streams())
def test_a_dump_without_tokens_has_the_same_holdings(stream: Stream) -> None:
    both = Both(stream)
    for batch in stream.batches:
        both.apply(batch)
    again = rebuilt(both)
    for worker in range(len(stream.engines)):
        for dump in both.index.dump_events(str(worker)):
            assert not any(isinstance(event, BlockStored) and event.token_ids for event in dump.events)
        assert again.holdings(str(worker)) == both.index.holdings(str(worker))
