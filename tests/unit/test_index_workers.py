"""Workers, their ranks, and what churn leaves behind."""

import pytest

from index_feed import AB, PROMPT, Fleet, bare, batch, remove, store
from kvevents.events import AllBlocksCleared, KVCacheEvent


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestRanks:
    def test_a_clear_of_one_rank_leaves_the_other(self, fleet: Fleet) -> None:
        fleet.apply(AB, rank=0)
        fleet.apply(AB, rank=1)
        assert fleet.apply(AllBlocksCleared(), rank=0).cleared == 1
        assert [(match.dp_rank, match.total) for match in fleet.index.match(PROMPT)] == [(1, 2)]

    def test_rank_zero_is_not_no_rank(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        fleet.apply(AllBlocksCleared(), rank=0)
        assert [(match.dp_rank, match.total) for match in fleet.index.match(PROMPT)] == [(None, 2)]

    def test_the_rank_in_the_batch_beats_that_of_the_connection(self, fleet: Fleet) -> None:
        assert fleet.apply(AB, rank=3, dp_rank=1).dp_rank == 3
        assert fleet.apply(AB, dp_rank=1).dp_rank == 1
        assert [match.dp_rank for match in fleet.index.match(PROMPT)] == [1, 3]

    def test_removing_a_worker_removes_ranks_seen_only_in_batches(self, fleet: Fleet) -> None:
        handle = fleet.index.add_worker("w")
        for rank in (None, 0, 5):
            fleet.apply(AB, worker=handle, rank=rank)
        assert fleet.index.remove_worker("w")
        assert not fleet.index.match(PROMPT)
        assert not fleet.index.stats().sources


class TestChurn:
    def test_a_hundred_thousand_suffixes_leave_nothing_behind(self, fleet: Fleet) -> None:
        tokens = list(range(200))
        kept = list(range(1, 101))
        fleet.apply(store(*kept, tokens=tokens))
        before = fleet.index.stats()
        memory = []
        for round_ in range(100):
            events: list[KVCacheEvent] = []
            for number in range(500):
                block = 1000 + round_ * 500 + number
                events += [
                    store(block, -block, parent=100, tokens=[block, 1, block, 2]),
                    remove(block) if number % 2 else remove(-block),
                    remove(-block) if number % 2 else remove(block),
                ]
            fleet.index.apply("w", batch(*events))
            memory.append(fleet.index.stats().memory_bytes)
        fleet.index.check_integrity()
        after = fleet.index.stats()
        assert (after.blocks, after.sources[0].blocks) == (before.blocks, before.sources[0].blocks) == (100, 100)
        assert max(memory) <= 3 * before.memory_bytes
        assert fleet.total(tokens) == 100

    def test_pending_and_parked_churn_leaves_nothing_behind(self, fleet: Fleet) -> None:
        fleet.apply(AB)
        before = fleet.index.stats().sources[0]
        for number in range(1000, 1100):
            fleet.apply(
                store(number, parent=-number, tokens=[1, 2]),
                store(number + 1000, parent=number, tokens=[1, 2]),
                bare(number + 5000, medium="CPU"),
                remove(number),
                remove(number + 1000),
                remove(number + 5000, medium="CPU"),
            )
        after = fleet.index.stats().sources[0]
        assert (after.blocks, after.pending, after.parked) == (before.blocks, 0, 0)

    def test_a_handle_from_before_a_removal_does_not_bring_the_worker_back(self, fleet: Fleet) -> None:
        old = fleet.index.add_worker("w")
        fleet.apply(AB, worker=old)
        fleet.index.remove_worker("w")
        assert fleet.apply(AB, worker=old).ignored == "worker-removed"
        assert fleet.apply(AB, worker="w").ignored == "worker-removed"
        assert (fleet.total(), fleet.index.stats().ignored_batches) == (0, 2)
        new = fleet.index.add_worker("w")
        assert fleet.apply(AB, worker=old).ignored == "worker-removed"
        assert fleet.total() == 0
        fleet.apply(AB, worker=new)
        assert fleet.total() == 2
