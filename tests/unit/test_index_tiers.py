"""Where blocks are held: tiers, copies, stores without tokens."""

import pytest

from index_feed import AB, PROMPT, A, B, C, D, Fleet, bare, remove, store
from kvevents.events import AllBlocksCleared


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestTiersAreApart:
    def test_a_block_gone_from_the_gpu_is_still_on_the_cpu(self, fleet: Fleet) -> None:
        fleet.apply(AB, store(A, B, tokens=PROMPT[:4], medium="CPU_PINNED"), remove(B))
        assert fleet.tiers() == (2, 1, 2)
        match = fleet.match()
        assert match is not None
        assert match.fastest == {"GPU": 1, "CPU_PINNED": 1, "DISK": 0, "EXTERNAL": 0}

    def test_the_end_is_the_same_when_the_removal_comes_before_the_copy(self, fleet: Fleet) -> None:
        fleet.apply(AB, remove(B), store(A, B, tokens=PROMPT[:4], medium="cpu"))
        assert fleet.tiers() == (2, 1, 2)

    def test_a_removal_of_what_a_tier_never_held_changes_nothing_and_is_counted(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        report = fleet.apply(remove(B, medium="CPU_PINNED"), remove(D))
        assert (report.removal_misses, report.removed) == (2, 0)
        assert fleet.tiers() == (2, 2, 0)
        assert fleet.index.stats().sources[0].removal_misses == 2

    def test_a_removal_without_a_tier_clears_all_tiers(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(B, medium="CPU"), bare(B, medium="DISK"), remove(B, medium=None))
        assert fleet.total() == 1

    def test_a_removal_without_a_tier_takes_one_copy_on_the_gpu(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB, bare(B, medium="CPU"), remove(B, medium=None))
        assert fleet.tiers() == (2, 2, 0)
        fleet.apply(remove(B, medium=None))
        assert fleet.total() == 1

    def test_a_store_with_an_unknown_tier_never_counts_as_gpu(self, fleet: Fleet) -> None:
        report = fleet.apply(store(A, tokens=[1, 2], medium="HOLOGRAM"))
        assert [(event.code, report.stored) for event in report.skipped] == [("unknown-tier", 0)]
        assert "HOLOGRAM" in report.skipped[0].reason
        assert fleet.total() == 0
        assert fleet.index.stats().sources[0].skipped == {"unknown-tier": 1}

    def test_a_removal_with_an_unknown_tier_name_clears_all_tiers(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB, bare(B, medium="CPU"), remove(B, medium="HOLOGRAM"))
        assert fleet.total() == 1

    @pytest.mark.parametrize(
        ("medium", "locality", "tier"),
        [
            ("gpu", None, "GPU"),
            (None, None, "GPU"),
            ("cpu", None, "CPU_PINNED"),
            ("CPU_PINNED", "LOCAL", "CPU_PINNED"),
            ("STORAGE", None, "DISK"),
            ("fs", None, "DISK"),
            ("OBJ", None, "EXTERNAL"),
            ("CPU", "REMOTE", "EXTERNAL"),
        ],
    )
    def test_names_of_tiers_are_read_without_case(
        self, fleet: Fleet, medium: str | None, locality: str | None, tier: str
    ) -> None:
        fleet.apply(AB, bare(A, medium=medium, locality=locality), remove(A, B))
        held = {"GPU": 1} if tier == "GPU" else {tier: 1}
        match = fleet.match()
        assert match is not None
        assert match.tiers == dict.fromkeys(match.tiers, 0) | held


class TestStoresWithoutTokens:
    def test_they_add_a_tier_to_a_block_that_is_known(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(A, medium="CPU"))
        assert fleet.tiers() == (2, 2, 1)

    def test_a_cpu_run_from_the_root_is_placed_by_its_first_block_once_that_is_known(self, fleet: Fleet) -> None:
        assert fleet.apply(store(A, B, C, tokens=PROMPT[:6], medium="CPU")).parked == 3
        assert fleet.total() == 0
        assert fleet.apply(store(A, tokens=[1, 2])).parked == 0
        assert fleet.tiers() == (3, 1, 3)

    def test_what_the_gpu_says_of_a_block_goes_before_what_waits(self, fleet: Fleet) -> None:
        fleet.apply(store(A, B, tokens=PROMPT[:4], medium="CPU"))
        fleet.apply(store(A, B, tokens=PROMPT[:4], extra_keys=[None, [["p", 0]]]))
        assert (fleet.total(), fleet.total(extra_keys=[None, [["p", 0]]])) == (1, 2)

    def test_before_the_block_is_known_they_are_parked_and_count_later(self, fleet: Fleet) -> None:
        assert fleet.apply(bare(A, medium="CPU")).parked == 1
        assert fleet.total() == 0
        assert fleet.apply(AB).parked == 0
        assert fleet.tiers() == (2, 2, 1)

    def test_parked_blocks_are_bounded_and_what_overflows_is_told(self) -> None:
        fleet = Fleet(max_parked_blocks=2)
        report = fleet.apply(*(bare(block, medium="CPU") for block in (A, B, C)))
        assert (report.parked, report.dropped) == (2, 1)
        fleet.apply(store(A, B, C, tokens=PROMPT[:6]), remove(A, B, C))
        assert fleet.total() == 0, "the oldest was dropped"
        assert fleet.index.stats().sources[0].dropped == 1

    def test_parked_blocks_are_bounded_by_age(self) -> None:
        fleet = Fleet(max_parked_age_s=0.0)
        fleet.apply(bare(A, medium="CPU"), store(B, C, tokens=PROMPT[2:6], medium="CPU"))
        report = fleet.apply()
        assert (report.parked, report.dropped) == (0, 3)
        assert fleet.index.stats().sources[0].blocks == 0


class TestResidency:
    def test_gpu_copies_are_counted(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB, remove(A))
        assert fleet.total() == 2
        fleet.apply(remove(A))
        assert fleet.total() == 0

    def test_other_tiers_are_sets(self, fleet: Fleet) -> None:
        fleet.apply(AB, bare(A, medium="CPU"), bare(A, medium="CPU"), remove(A, medium="CPU"))
        assert fleet.tiers() == (2, 2, 0)

    def test_a_source_declared_as_a_set_loses_a_block_at_the_first_removal(self, fleet: Fleet) -> None:
        fleet.index.add_worker("w", residency="set")
        fleet.apply(AB, AB, remove(A))
        assert fleet.total() == 0

    def test_a_clear_resets_counts(self, fleet: Fleet) -> None:
        fleet.apply(AB, AB, AllBlocksCleared(), AB, remove(B))
        assert fleet.total() == 1

    def test_replayed_overlap_does_not_raise_them(self, fleet: Fleet) -> None:
        fleet.apply(AB, seq=4)
        report = fleet.apply(AB, seq=4)
        assert (report.ignored, report.stored) == ("duplicate", 0)
        fleet.apply(remove(A, B), seq=5)
        assert fleet.total() == 0
        assert fleet.index.stats().sources[0].duplicates == 1
        fleet.index.clear_worker("w")
        assert fleet.apply(AB, seq=0).ignored is None
