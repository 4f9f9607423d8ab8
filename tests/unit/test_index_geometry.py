"""How engines cut prompts, and what hybrid models can reuse."""

from typing import Any, ClassVar

import pytest

from index_feed import Fleet, bare, remove, store
from kvevents.errors import ConfigError
from kvevents.events import AllBlocksCleared, BlockStored


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestGeometry:
    TOKENS: ClassVar[list[int]] = list(range(128))

    def test_four_pages_make_an_index_block_and_three_make_none(self) -> None:
        fleet = Fleet(64)
        fleet.apply(store(1, 2, 3, tokens=self.TOKENS[:48], block_size=16))
        assert fleet.total(self.TOKENS) == 0
        fleet.apply(store(4, parent=3, tokens=self.TOKENS[48:64], block_size=16))
        assert fleet.total(self.TOKENS) == 1
        for page in (1, 2, 3, 4):
            fleet.apply(remove(page))
            assert fleet.total(self.TOKENS) == 0
            parent = page - 1 or None
            tokens = self.TOKENS[16 * page - 16 : 16 * page]
            fleet.apply(store(page, parent=parent, tokens=tokens, block_size=16))
            assert fleet.total(self.TOKENS) == 1

    def test_an_index_block_has_the_slowest_of_its_pages_fastest_tiers(self) -> None:
        fleet = Fleet(64)
        fleet.apply(store(*range(8), tokens=self.TOKENS, block_size=16), bare(3, 4, 5, 6, 7, medium="CPU"), remove(3))
        match = fleet.match(self.TOKENS)
        assert match is not None
        assert (match.total, match.fastest["GPU"], match.fastest["CPU_PINNED"]) == (2, 1, 1)

    def test_a_page_larger_than_the_index_block_makes_several(self) -> None:
        fleet = Fleet(16)
        fleet.apply(store(1, 2, tokens=self.TOKENS, block_size=64))
        assert (fleet.total(self.TOKENS), fleet.total(self.TOKENS[:127])) == (8, 4)

    def test_a_registered_block_size_that_events_contradict_is_loud(self) -> None:
        fleet = Fleet(64)
        handle = fleet.index.add_worker("w", block_size=64)
        report = fleet.apply(store(1, tokens=self.TOKENS[:16], block_size=16), worker=handle)
        assert isinstance(report.error, ConfigError)
        assert "64" in str(report.error)
        assert "16" in str(report.error)
        assert (report.events, report.stored, fleet.total(self.TOKENS[:16] * 4)) == (0, 0, 0)
        source = fleet.index.stats().sources[0]
        assert (source.state, source.refused, source.error) == ("degraded", 1, str(report.error))

    def test_a_learned_block_size_that_events_contradict_is_loud_until_a_clear(self) -> None:
        fleet = Fleet(16)
        fleet.apply(store(1, tokens=self.TOKENS[:16], block_size=16))
        assert fleet.apply(store(2, parent=1, tokens=self.TOKENS[16:48], block_size=32)).error is not None
        match = fleet.match(self.TOKENS)
        assert match is not None
        assert (match.total, match.state) == (1, "degraded")
        fleet.apply(AllBlocksCleared(), store(2, tokens=self.TOKENS[:32], block_size=32))
        match = fleet.match(self.TOKENS)
        assert match is not None
        assert (match.total, match.state) == (2, "live")


class TestHybridGroups:
    BLOCKS: ClassVar[list[int]] = list(range(200, 208))
    TOKENS: ClassVar[list[int]] = list(range(16))
    FULL: ClassVar[dict[str, Any]] = {"group_idx": 1, "kv_cache_spec_kind": "full_attention"}
    # A window of 4 tokens needs the last 3 before the next one: 2 blocks.
    WINDOW: ClassVar[dict[str, Any]] = {
        "group_idx": 0,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 4,
    }

    def full(self) -> BlockStored:
        return store(*self.BLOCKS, tokens=self.TOKENS, **self.FULL)

    def masked(self, *places: int, **group: Any) -> BlockStored:
        """Only these blocks of the range are kept."""
        return store(*(self.BLOCKS[place] for place in places), tokens=self.TOKENS, **group)

    def usable(self, fleet: Fleet) -> tuple[int, int]:
        match = fleet.match(self.TOKENS)
        assert match is not None
        return match.total, match.usable

    def test_the_usable_prefix_ends_where_the_window_is_whole(self, fleet: Fleet) -> None:
        fleet.apply(self.masked(3, 4, 5, 7, **self.WINDOW), self.full())
        assert self.usable(fleet) == (8, 6)
        fleet.apply(remove(self.BLOCKS[5], group_idx=0))
        assert self.usable(fleet) == (8, 5)

    def test_the_usable_prefix_ends_at_the_deepest_state_checkpoint(self, fleet: Fleet) -> None:
        state: dict[str, Any] = {"group_idx": 2, "kv_cache_spec_kind": "mamba"}
        fleet.apply(self.full(), self.masked(1, 6, **state))
        assert self.usable(fleet) == (8, 7)
        fleet.apply(remove(self.BLOCKS[6], group_idx=2))
        assert self.usable(fleet) == (8, 2)

    def test_a_group_of_unknown_kind_never_counts_as_full_attention(self, fleet: Fleet) -> None:
        fleet.apply(store(*self.BLOCKS, tokens=self.TOKENS, group_idx=0, kv_cache_spec_kind="chunked_local_attention"))
        fleet.apply(store(*self.BLOCKS, tokens=self.TOKENS, group_idx=1))
        assert fleet.match(self.TOKENS) is None

    def test_group_zero_without_a_kind_is_full_attention(self, fleet: Fleet) -> None:
        fleet.apply(store(*self.BLOCKS, tokens=self.TOKENS, group_idx=0))
        assert self.usable(fleet) == (8, 8)

    def test_a_short_prefix_needs_the_window_from_its_start_only(self, fleet: Fleet) -> None:
        fleet.apply(self.full(), self.masked(0, **self.WINDOW))
        assert self.usable(fleet) == (8, 1)
