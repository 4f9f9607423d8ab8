"""Blocks that several workers hold are kept once; what each of them holds stays its own."""

import random

import pytest

from index_feed import AB, PROMPT, A, B, C, D, Fleet, batch, remove, store
from kvevents.events import AllBlocksCleared
from kvevents.index import PrefixIndex

LENGTH = 300
TOKENS = list(range(2 * LENGTH))


def hashes(name: int) -> list[int]:
    """What an engine calls the blocks of the long prompt; engines with one name (hash seed) call them alike."""
    return [1000 * name + number for number in range(LENGTH)]


def leading(held: set[int]) -> int:
    return next(number for number in range(LENGTH + 1) if number not in held)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class TestNames:
    def test_engines_that_name_blocks_alike_or_not_are_matched_alike(self) -> None:
        draw = random.Random(5)
        index = PrefixIndex(2)
        names = {"a": 1, "b": 1, "c": 2, "d": 3, "e": 3}
        held: dict[str, set[int]] = {worker: set() for worker in names}
        for _ in range(300):
            worker = draw.choice(list(names))
            blocks = hashes(names[worker])
            start = draw.choice([0, leading(held[worker])])
            end = min(LENGTH, start + draw.randrange(1, 100))
            if draw.random() < 0.6 and start < end:
                parent = blocks[start - 1] if start else None
                event = store(*blocks[start:end], parent=parent, tokens=TOKENS[2 * start : 2 * end])
                index.add_worker(worker, residency="set")
                index.apply(worker, batch(event))
                held[worker].update(range(start, end))
            elif held[worker]:
                gone = draw.sample(sorted(held[worker]), k=draw.randrange(1, 1 + len(held[worker]) // 3 + 1))
                gone.sort(reverse=draw.random() < 0.5)
                assert index.apply(worker, batch(remove(*(blocks[block] for block in gone)))).removal_misses == 0
                held[worker].difference_update(gone)
            expected = {worker: leading(blocks) for worker, blocks in held.items() if leading(blocks)}
            assert {match.worker: match.total for match in index.match(TOKENS)} == expected
        index.check_integrity()

    def test_a_removal_by_one_leaves_those_who_call_the_block_the_same(self, fleet: Fleet) -> None:
        for worker in ("a", "b", "c"):
            fleet.apply(AB, worker=worker)
        fleet.apply(remove(B, A), worker="b")
        assert [(match.worker, match.total) for match in fleet.index.match(PROMPT)] == [("a", 2), ("c", 2)]
        assert fleet.index.stats().blocks == 2

    def test_one_name_for_two_blocks_of_two_workers_confuses_nobody(self, fleet: Fleet) -> None:
        fleet.apply(AB, worker="a")
        fleet.apply(store(A, B, tokens=PROMPT[4:]), worker="b")
        fleet.apply(store(C, parent=B, tokens=[5, 6]), worker="a")
        fleet.apply(remove(B), worker="b")
        assert [(match.worker, match.total) for match in fleet.index.match(PROMPT)] == [("a", 3)]
        assert [(match.worker, match.total) for match in fleet.index.match(PROMPT[4:])] == [("b", 1)]


class TestHoles:
    def test_a_hole_stays_for_the_worker_that_holds_blocks_below_it(self, fleet: Fleet) -> None:
        fleet.apply(AB, store(C, parent=B, tokens=[5, 6]), remove(A, B), worker="a")
        assert fleet.apply(store(D, parent=B, tokens=[7, 8]), worker="a").pending == 0
        assert fleet.index.stats().sources[0].blocks == 4
        fleet.apply(AB, worker="a")
        assert [match.total for match in fleet.index.match([*PROMPT[:4], 7, 8])] == [3]

    def test_what_one_worker_knows_another_one_does_not(self, fleet: Fleet) -> None:
        fleet.apply(AB, worker="a")
        fleet.apply(AB, remove(B, A), worker="b")
        assert fleet.apply(store(C, parent=B, tokens=[5, 6]), worker="b").pending == 1
        assert [(match.worker, match.total) for match in fleet.index.match(PROMPT)] == [("a", 2)]

    @pytest.mark.parametrize("order", [(A, B, C, D), (D, C, B, A), (B, D, A, C)])
    def test_holes_go_with_the_last_block_below_them(self, fleet: Fleet, order: tuple[int, ...]) -> None:
        fleet.apply(store(A, B, C, D, tokens=PROMPT), store(9, parent=B, tokens=[9, 9]), worker="a")
        fleet.apply(*(remove(block) for block in order), worker="a")
        assert fleet.index.stats().sources[0].blocks == 3, "A and B above block 9"
        fleet.apply(remove(9), worker="a")
        assert fleet.index.stats().sources[0].blocks == 0


class TestMemory:
    def test_a_stored_block_costs_little_and_nothing_once_it_is_gone(self) -> None:
        index = PrefixIndex(2)
        workers = [f"w{number}" for number in range(8)]
        for worker in workers:
            index.apply(worker, batch())
        empty = index.stats().memory_bytes
        stored = 0
        for prompt in range(80):
            tokens = [prompt, *range(999)]
            blocks = [1000 * prompt + number for number in range(500)]
            for worker in workers[: 1 + prompt % 2]:
                stored += index.apply(worker, batch(store(*blocks, tokens=tokens))).stored
        assert stored == 60_000
        assert (index.stats().memory_bytes - empty) / stored < 56
        index.apply("w1", batch(AllBlocksCleared()))
        for prompt in range(80):
            index.apply("w0", batch(remove(*(1000 * prompt + number for number in range(500)))))
        index.check_integrity()
        assert index.stats().memory_bytes <= 1.1 * empty

    def test_workers_that_are_removed_take_their_blocks_with_them(self, fleet: Fleet) -> None:
        fleet.apply(AB, worker="stays")
        fleet.index.add_worker("goes")
        before = fleet.index.stats()
        for _ in range(3):
            fleet.apply(AB, store(C, parent=B, tokens=[5, 6]), worker=fleet.index.add_worker("goes"))
            fleet.index.remove_worker("goes")
            fleet.index.check_integrity()
        after = fleet.index.stats()
        assert (after.blocks, [source.worker for source in after.sources]) == (before.blocks, ["stays"])
        assert fleet.total() == 2
