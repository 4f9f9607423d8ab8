"""Pages that are not full: one hash with its own, shorter length as block size."""

import pytest

from index_feed import Fleet, bare, remove, store
from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockStored
from kvevents.index import PrefixIndex

TOKENS = list(range(100, 228))


def pages(*blocks: int, parent: int | None = None, at: int = 0, size: int = 16) -> BlockStored:
    """Whole pages of the prompt from a token on."""
    return store(*blocks, parent=parent, tokens=TOKENS[at : at + size * len(blocks)], block_size=size)


def partial(block: int, length: int, *, parent: int | None = None, at: int = 0) -> BlockStored:
    return store(block, parent=parent, tokens=TOKENS[at : at + length], block_size=length)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(16)


class TestHeldByHash:
    def test_a_partial_last_page_is_counted_and_in_no_match(self, fleet: Fleet) -> None:
        report = fleet.apply(pages(1, 2), partial(3, 5, parent=2, at=32))
        assert (report.error, report.partial, report.stored, report.parked, report.pending) == (None, 1, 3, 0, 0)
        match = fleet.match(TOKENS)
        assert match is not None
        assert (match.total, match.state) == (2, "live")
        source = fleet.index.stats().sources[0]
        assert (source.partial, source.block_size, source.refused) == (1, 16, 0)

    def test_it_is_among_the_holdings_until_it_is_removed(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16), bare(2, medium="CPU"))
        assert fleet.index.holdings("w")[None]["GPU"] == {1, 2}
        assert fleet.index.holdings("w")[None]["CPU_PINNED"] == {2}
        report = fleet.apply(remove(2), remove(2, medium="CPU"))
        assert (report.removed, report.removal_misses) == (2, 0)
        assert fleet.index.stats().sources[0].blocks == 1

    def test_it_is_not_dropped_for_being_old_or_one_of_many(self) -> None:
        fleet = Fleet(16, max_parked_blocks=1, max_parked_age_s=0.0)
        fleet.apply(pages(1), *(partial(block, 5, parent=1, at=16) for block in range(2, 12)))
        assert fleet.apply().dropped == 0
        assert len(fleet.index.holdings("w")[None]["GPU"]) == 11

    def test_the_whole_page_that_it_grows_into_counts(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16), pages(3, parent=1, at=16))
        assert fleet.total(TOKENS) == 2

    def test_a_whole_page_under_its_hash_takes_its_place(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16), pages(2, parent=1, at=16))
        assert (fleet.total(TOKENS), len(fleet.index.holdings("w")[None]["GPU"])) == (2, 2)

    def test_a_page_of_pairs_may_be_partial_too(self) -> None:
        fleet = Fleet(2)
        fleet.apply(store(1, tokens=[(1, 2), (2, 3)]), store(2, parent=1, tokens=[(3, 4)], block_size=1))
        assert fleet.total([1, 2, 3, 4]) == 1
        assert fleet.apply(store(3, parent=1, tokens=[3], block_size=1)).error is not None, "no pair"

    def test_snapshots_keep_it(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16))
        other = Fleet(16)
        other.index.restore(fleet.index.snapshot())
        other.index.check_integrity()
        assert other.index.holdings("w") == fleet.index.holdings("w")
        assert isinstance(other.apply(pages(3, parent=2, at=21)).error, ConfigError)

    def test_images_of_one_worker_keep_it(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16))
        (image,) = fleet.index.snapshot_worker("w")
        other = Fleet(16)
        other.index.restore_worker("w", image)
        other.index.check_integrity()
        assert other.index.holdings("w") == fleet.index.holdings("w")
        assert other.index.stats().sources[0].parked == 0
        assert isinstance(other.apply(pages(3, parent=2, at=21)).error, ConfigError)


class TestContradictions:
    def test_what_is_stored_below_it_contradicts_the_block_size(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), partial(2, 5, parent=1, at=16))
        report = fleet.apply(partial(3, 5, parent=2, at=21))
        assert isinstance(report.error, ConfigError)
        assert "blocks of 16" in str(report.error)
        assert "none below a shorter one" in str(report.error)
        assert fleet.index.stats().sources[0].state == "degraded"
        fleet.apply(AllBlocksCleared())
        assert fleet.index.stats().sources[0].state == "live"

    def test_so_does_one_that_others_wait_for(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), pages(3, parent=2, at=21))
        assert isinstance(fleet.apply(partial(2, 5, parent=1, at=16)).error, ConfigError)

    @pytest.mark.parametrize("declared", [64, 20])
    def test_an_engine_with_another_block_size_than_declared_is_found(self, declared: int) -> None:
        fleet = Fleet(16)
        fleet.index.add_worker("w", block_size=declared)
        reports = [fleet.apply(pages(1)), fleet.apply(pages(2, parent=1, at=16))]
        assert isinstance(reports[-1].error, ConfigError)
        assert fleet.index.stats().sources[0].state == "degraded"

    def test_several_blocks_in_one_store_are_no_partial_page(self, fleet: Fleet) -> None:
        fleet.index.add_worker("w", block_size=20)
        assert isinstance(fleet.apply(pages(1, 2)).error, ConfigError)

    def test_larger_blocks_than_declared_are_none_either(self, fleet: Fleet) -> None:
        fleet.index.add_worker("w", block_size=8)
        assert isinstance(fleet.apply(pages(1)).error, ConfigError)


class TestLearning:
    def test_a_size_learned_from_a_partial_page_is_corrected(self, fleet: Fleet) -> None:
        fleet.apply(partial(9, 5), partial(8, 7, at=5), store(7, parent=6, tokens=TOKENS[:7], block_size=7))
        report = fleet.apply(pages(1, 2))
        assert report.error is None
        assert (fleet.total(TOKENS), fleet.index.stats().sources[0].block_size) == (2, 16)
        assert fleet.index.holdings("w")[None]["GPU"] == {1, 2, 7, 8, 9}
        assert fleet.apply().pending == 0

    def test_until_then_it_counts(self) -> None:
        fleet = Fleet(5)
        fleet.apply(partial(9, 5))
        assert fleet.total(TOKENS) == 1

    def test_a_size_that_a_chain_bears_out_is_not(self, fleet: Fleet) -> None:
        fleet.apply(pages(1), pages(2, parent=1, at=16))
        assert isinstance(fleet.apply(store(3, tokens=TOKENS[:32], block_size=32)).error, ConfigError)
        assert fleet.total(TOKENS) == 2

    def test_nor_one_that_a_child_before_its_parent_bears_out(self, fleet: Fleet) -> None:
        fleet.apply(pages(2, parent=1, at=16), pages(1))
        assert isinstance(fleet.apply(store(3, tokens=TOKENS[:32], block_size=32)).error, ConfigError)

    def test_nor_one_that_many_lone_blocks_have(self, fleet: Fleet) -> None:
        stores = [store(block, tokens=[block] * 16, block_size=16) for block in range(1, 66)]
        fleet.apply(*stores)
        assert isinstance(fleet.apply(store(99, tokens=TOKENS[:32], block_size=32)).error, ConfigError)

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_restored_index_goes_on_learning(self, fleet: Fleet, *, whole: bool) -> None:
        fleet.apply(partial(9, 5))
        other = PrefixIndex(16)
        if whole:
            other.restore(fleet.index.snapshot())
        else:
            other.restore_worker("w", *fleet.index.snapshot_worker("w"))
        fleet.index = other
        assert fleet.apply(pages(1)).error is None
        assert fleet.total(TOKENS) == 1
