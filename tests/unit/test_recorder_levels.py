"""What the levels `chain` and `compact` of an `EventRecorder` merge and leave out, case by case."""

import array
from typing import Any

import pytest

from kvevents.events import BlockStored, KVCacheEvent
from kvevents.hashing import HashChain
from kvevents.recorder import EventRecorder


def chain_of(*tokens: int, **namespace: Any) -> HashChain:
    """Pages of one token."""
    return HashChain.root(1, **namespace).extend(tokens)


def shapes(events: list[Any]) -> list[tuple[str, int]]:
    names = {"BlockStored": "S", "BlockRemoved": "R", "AllBlocksCleared": "C"}
    return [(names[type(event).__name__], len(getattr(event, "block_hashes", []))) for event in events]


class Requests:
    """A recorder that is told of chains by their tokens."""

    def __init__(self, level: Any, **settings: Any) -> None:
        self.recorder = EventRecorder(1, coalesce=level, **settings)

    def store(self, *tokens: int, above: tuple[int, ...] = (), **fields: Any) -> None:
        chain = chain_of(*above).extend(tokens)
        self.recorder.store(chain, tokens, **fields)

    def remove(self, *tokens: int, above: tuple[int, ...] = (), **fields: Any) -> None:
        self.recorder.remove(chain_of(*above).extend(tokens), **fields)

    def take(self) -> list[tuple[str, int]]:
        return shapes(self.events())

    def events(self) -> list[KVCacheEvent]:
        return [*self.recorder.take()]


@pytest.mark.parametrize("level", ["chain", "compact"])
class TestChain:
    def test_prefills_that_interleave_become_one_event_each(self, level: Any) -> None:
        requests = Requests(level)
        for step in range(4):
            for request in (10, 20, 30):
                above = tuple(range(request, request + step))
                requests.store(request + step, above=above)
        events = requests.events()
        assert shapes(events) == [("S", 4)] * 3
        assert [event.token_ids for event in events if isinstance(event, BlockStored)] == [
            [10, 11, 12, 13],
            [20, 21, 22, 23],
            [30, 31, 32, 33],
        ]

    def test_removals_of_one_tier_meet_past_stores_of_other_blocks(self, level: Any) -> None:
        requests = Requests(level)
        requests.remove(1)
        requests.store(7)
        requests.remove(2, medium="CPU_PINNED")
        requests.remove(3)
        requests.remove(4, medium="CPU_PINNED")
        assert requests.take() == [("R", 2), ("S", 1), ("R", 2)]

    def test_a_removal_does_not_move_before_its_blocks_store(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(5)
        requests.take()
        requests.remove(9)
        requests.store(5)  # R[x] S[a] R[a]; a second copy, so that they do not cancel
        requests.remove(5)
        assert requests.take() == [("R", 1), ("S", 1), ("R", 1)]

    def test_nothing_moves_past_its_block_in_another_tier(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(5)
        requests.take()
        requests.remove(9)
        requests.store(5, medium="CPU_PINNED")
        requests.remove(5)
        assert requests.take() == [("R", 1), ("S", 1), ("R", 1)]

    def test_nothing_moves_past_a_child_of_its_block(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(5)
        requests.take()
        requests.remove(9)
        requests.store(6, above=(5,))
        requests.remove(5)
        assert requests.take() == [("R", 1), ("S", 1), ("R", 1)]

    def test_a_fork_is_two_events(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(1, 2)
        requests.store(8, above=(1, 2))
        requests.store(3, above=(1, 2))
        requests.store(4, above=(1, 2, 3))
        assert requests.take() == [("S", 3), ("S", 2)]

    def test_nothing_moves_past_a_clear(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(1)
        requests.remove(7)
        requests.recorder.clear()
        requests.store(2, above=(1,))
        requests.remove(8)
        assert requests.take() == [("S", 1), ("R", 1), ("C", 0), ("S", 1), ("R", 1)]

    def test_a_taken_event_does_not_grow(self, level: Any) -> None:
        requests = Requests(level)
        requests.store(1)
        requests.take()
        requests.store(2, above=(1,))
        assert requests.take() == [("S", 1)]

    def test_the_cap_holds(self, level: Any) -> None:
        requests = Requests(level, max_event_blocks=2)
        for page in range(5):
            requests.store(page, above=tuple(range(page)))
            requests.store(page + 50)
        assert max(count for _, count in requests.take()) == 2

    def test_many_events_take_time_in_proportion(self, level: Any) -> None:
        """A thousand requests, forty steps: quadratic work would take minutes."""
        recorder = EventRecorder(1, coalesce=level)
        chains = [HashChain.root(1, cache_salt=str(request)) for request in range(1000)]
        for step in range(40):
            tokens = array.array("I", [step])
            chains = [chain.extend(tokens) for chain in chains]
            for chain in chains:
                recorder.store(chain, tokens)
        assert shapes([*recorder.take()]) == [("S", 40)] * 1000


class TestCompact:
    def test_a_store_and_its_removal_leave_nothing(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2, 3)
        requests.remove(1, 2, 3)
        assert requests.recorder.take_batch() is None
        assert requests.recorder.stats().cancelled_pages == 6

    def test_what_stays_of_a_store_is_a_prefix_of_it(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2, 3)
        requests.remove(2, 3, above=(1,))
        (event,) = requests.events()
        assert isinstance(event, BlockStored)
        assert (event.block_hashes, event.token_ids) == (list(chain_of(1).ids), [1])

    def test_leaves_go_one_by_one(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2, 3)
        for depth in (3, 2, 1):
            requests.remove(depth, above=tuple(range(1, depth)))
        assert requests.take() == []

    def test_a_block_with_a_child_that_stays_is_announced(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2)
        requests.remove(1)
        assert requests.take() == [("S", 2), ("R", 1)]

    def test_a_removal_and_the_store_after_it_leave_nothing(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2)
        requests.take()
        requests.remove(2, above=(1,))
        requests.store(2, above=(1,))
        assert requests.take() == []

    def test_a_second_copy_cancels_with_no_removal(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.take()
        requests.store(1)
        requests.remove(1)
        assert requests.take() == [("S", 1), ("R", 1)]

    def test_a_removal_of_what_is_absent_cancels_with_no_store(self) -> None:
        requests = Requests("compact")
        requests.remove(1)
        requests.store(1)
        assert requests.take() == [("R", 1), ("S", 1)]

    def test_what_only_some_consumers_hold_is_announced(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.take()
        requests.store(1)
        requests.remove(1)  # a count is at one, a set has lost it
        requests.take()
        requests.remove(1)
        requests.store(1)
        assert requests.take() == [("R", 1), ("S", 1)]

    def test_an_orphan_is_announced_again(self) -> None:
        requests = Requests("compact")
        requests.store(1, 2)
        requests.take()
        requests.remove(1)
        requests.take()
        requests.remove(2, above=(1,))
        requests.store(2, above=(1,))  # dropped by who does not know its parent
        assert requests.take() == [("R", 1), ("S", 1)]

    @pytest.mark.parametrize("later", [(1,), (1, 2)])
    def test_a_later_store_that_names_the_block_keeps_it(self, later: tuple[int, ...]) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.remove(1)
        *above, page = later
        requests.store(page, above=tuple(above), medium="CPU_PINNED")
        assert requests.take() == [("S", 1), ("R", 1), ("S", 1)]

    def test_tiers_are_counted_apart(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.take()
        requests.store(1, medium="CPU_PINNED")
        requests.remove(1, medium="CPU_PINNED")
        requests.remove(1)
        assert requests.take() == [("R", 1)]

    def test_a_tier_of_an_unknown_name_cancels_nothing(self) -> None:
        requests = Requests("compact")
        requests.store(1, medium="TAPE")
        requests.remove(1, medium="TAPE")
        assert requests.take() == [("S", 1), ("R", 1)]

    def test_nothing_cancels_across_a_clear(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.take()
        requests.remove(1)
        requests.recorder.clear()
        requests.store(1)
        requests.recorder.clear()
        requests.remove(1)
        assert requests.take() == [("R", 1), ("C", 0), ("S", 1), ("C", 0), ("R", 1)]

    def test_a_clear_starts_the_count_anew(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.recorder.clear()
        requests.take()
        requests.store(1)
        requests.remove(1)
        assert requests.take() == []

    def test_what_is_gone_keeps_no_others_apart(self) -> None:
        requests = Requests("compact")
        requests.store(1)
        requests.store(9, above=(1,))
        requests.remove(9, above=(1,))
        requests.store(2, above=(1,))
        assert requests.take() == [("S", 2)]
