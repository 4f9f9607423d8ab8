"""The harness at work: an index that gets one thing wrong is found out, by what it answers alone.

A mutant is the real index, told otherwise than it should be: what it answers is what an index with that fault would.
"""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from msgspec.structs import replace

from index_and_model import Both
from index_deliveries import Delivery, Run, runs
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from set_model import Source, key

EXAMPLES = 2000
"""In which every mutant must be found."""


class Mutant(Both):
    """An index that hears of each event what `hear` makes of it, knowing what its source holds before."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.stream)
        self.removals = itertools.count(1)

    def deliver(self, delivery: Delivery) -> None:
        if delivery.fate == "lost":
            return
        source = self.source(delivery.worker, delivery.rank)
        for event in delivery.events:
            heard = KVEventBatch(0.0, [*self.hear(event, source)], self.rank(delivery))
            self.index.apply(str(delivery.worker), heard)
            source.apply(event)

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        yield event

    def rank(self, delivery: Delivery) -> int | None:
        return delivery.rank


class ForgetsARemoval(Mutant):
    """Every second block that is removed is still there."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        if isinstance(event, BlockRemoved):
            event = replace(event, block_hashes=[block for block in event.block_hashes if next(self.removals) % 2])
        yield event


class MissesAHole(Mutant):
    """A block stays as long as there is one below it."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        if isinstance(event, BlockRemoved):
            above = {link.parent for link in source.links.values()}
            event = replace(event, block_hashes=[block for block in event.block_hashes if key(block) not in above])
        yield event


class TakesOrphansForRoots(Mutant):
    """A store below a block that is not known begins a prompt."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        parent = event.parent_block_hash if isinstance(event, BlockStored) else None
        is_orphan = parent is not None and source.content(key(parent)) is None
        yield replace(event, parent_block_hash=None) if is_orphan else event


class IgnoresClears(Mutant):
    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        if not isinstance(event, AllBlocksCleared):
            yield event


class CountsTwice(Mutant):
    """Each copy on the GPU is two."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        yield event
        if isinstance(event, BlockStored):
            yield event


class MixesTenants(Mutant):
    """A salt means nothing."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        yield replace(event, cache_salt=None) if isinstance(event, BlockStored) else event


class SeesNoImages(Mutant):
    """Placeholder tokens are all there is to an image."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        if isinstance(event, BlockStored) and event.extra_keys:
            texts = [[item for item in entry or [] if isinstance(item, str)] for entry in event.extra_keys]
            event = replace(event, extra_keys=[entry or None for entry in texts])
        yield event


class KnowsOneTier(Mutant):
    """Everything is on the GPU."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        yield event if isinstance(event, AllBlocksCleared) else replace(event, medium="GPU")


class KnowsOneGroup(Mutant):
    """Every group has full attention."""

    def hear(self, event: KVCacheEvent, source: Source) -> Iterator[KVCacheEvent]:
        if isinstance(event, BlockStored):
            event = replace(event, group_idx=None, kv_cache_spec_kind=None, kv_cache_spec_sliding_window=None)
        elif isinstance(event, BlockRemoved):
            event = replace(event, group_idx=None)
        yield event


class MixesRanks(Mutant):
    """No rank is rank 0."""

    def rank(self, delivery: Delivery) -> int | None:
        return delivery.rank or 0


MUTANTS = Mutant.__subclasses__()


def answers_wrong(kind: type[Mutant], run: Run) -> bool:
    mutant = kind(run)
    try:
        for delivery in run.deliveries:
            mutant.deliver(delivery)
            mutant.check_answers()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("kind", MUTANTS)
def test_a_mutant_is_found_out(kind: type[Mutant]) -> None:
    budget = settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    find(runs(), lambda run: answers_wrong(kind, run), settings=budget)


@given(runs())
def test_nothing_is_found_where_nothing_is_changed(run: Run) -> None:
    assert not answers_wrong(Mutant, run)
