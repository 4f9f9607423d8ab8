"""One stream of a relay without sockets: windows, numbers, clears, holes, and what can be repeated."""

import time
from typing import Any

import msgspec
import pytest

from kvevents.errors import WireError
from kvevents.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents.transport import Reason, RelaySettings, Source, SourceCounters, SourceState, State
from kvevents.transport.picture import Position
from kvevents.transport.relay.backlog import Sent
from kvevents.transport.relay.journal import SKIP, Restored
from kvevents.transport.relay.stream import Stream
from kvevents.transport.replay_server import ReplayServerStats
from kvevents.transport.snapshot import digest_of
from kvevents.wire import decode_batch, encode_batch

LATER = 1e12
"""On the monotonic clock: every window has ended."""


def batch(*events: KVCacheEvent, rank: int | None = 0) -> bytes:
    return encode_batch(KVEventBatch(1.0, list(events), rank))


def stored(block: int, parent: int | None = None) -> BlockStored:
    return BlockStored([block], parent, [block, block], 2, medium="GPU")


def removed(*blocks: int) -> BlockRemoved:
    return BlockRemoved(list(blocks), "GPU")


def told(state: State) -> SourceState:
    return SourceState(state, "because", 0.0, SourceCounters(), Reason.COMPLETE)


class Harness:
    """A stream whose source is live, and what it sent."""

    def __init__(self, restored: Restored | None = None, *, dp_rank: int | None = None, **settings: Any) -> None:
        self.wakes = 0
        self.stream = Stream(
            Source("w", "tcp://h:1", dp_rank=dp_rank), RelaySettings(**settings), self._wake, restored=restored
        )
        self.stream.note_state(told(State.LIVE))
        self.sent: list[Sent] = []

    def _wake(self) -> None:
        self.wakes += 1

    def add(self, sequence: int, *events: KVCacheEvent, rank: int | None = 0) -> None:
        self.stream.add(batch(*events, rank=rank), sequence)

    def flush(self, now: float = LATER) -> list[Sent]:
        sent = self.stream.flush(now)
        self.stream.sent(sent, time.time())
        self.sent += sent
        return sent

    def events(self, sent: list[Sent]) -> list[list[KVCacheEvent]]:
        return [decode_batch(one.payload).events for one in sent]

    def replayed(self, start: int) -> list[tuple[int, list[KVCacheEvent]]]:
        return [(number, decode_batch(payload).events) for number, payload in self.stream.since(start)]


def test_the_batches_of_a_window_are_one_and_the_first_begins_with_a_clear() -> None:
    harness = Harness()
    harness.add(0, stored(1))
    harness.add(1, stored(9))
    harness.add(2, stored(2, 1))
    [sent] = harness.flush()
    assert sent.sequence == 0
    clear, chain, other = decode_batch(sent.payload).events
    assert isinstance(clear, AllBlocksCleared)
    assert isinstance(chain, BlockStored)
    assert (chain.block_hashes, chain.token_ids) == ([1, 2], [1, 1, 2, 2])
    assert other == stored(9)
    harness.add(3, removed(2))
    assert [(one.sequence, decode_batch(one.payload).events) for one in harness.flush()] == [(1, [removed(2)])]


def test_a_window_ends_when_its_time_is_over_and_not_before() -> None:
    harness = Harness(window_s=30.0)
    assert harness.stream.deadline() is None
    harness.add(0, stored(1))
    deadline = harness.stream.deadline()
    assert deadline is not None
    harness.add(1, stored(2))
    assert harness.stream.deadline() == deadline
    assert harness.wakes == 2  # the state, and the beginning of the window
    assert harness.flush(deadline - 0.1) == []
    assert len(harness.flush(deadline)) == 1
    assert harness.stream.deadline() is None


def test_a_window_that_is_full_ends_at_once() -> None:
    harness = Harness(window_s=30.0, batch_bytes=400)
    harness.add(0, stored(1))
    assert harness.flush(time.monotonic()) == []
    for number in range(1, 10):
        harness.add(number, stored(number + 1))
    assert len(harness.flush(time.monotonic())) == 1


def test_ranks_never_share_a_batch_and_a_clear_is_of_every_rank() -> None:
    harness = Harness()
    harness.add(0, stored(1), rank=0)
    harness.add(1, stored(1), rank=3)
    harness.add(2, stored(2, 1), rank=0)
    sent = harness.flush()
    assert [(one.sequence, one.rank, decode_batch(one.payload).attn_dp_rank) for one in sent] == [(0, 0, 0), (1, 3, 3)]
    harness.stream.clear()
    assert harness.events(harness.flush()) == [[AllBlocksCleared()], [AllBlocksCleared()]]
    assert [one.rank for one in harness.sent[2:]] == [0, 3]


def test_what_a_source_lost_is_a_clear_before_what_comes_next() -> None:
    harness = Harness()
    harness.add(0, stored(1))
    harness.flush()
    harness.add(4, stored(7))
    assert harness.events(harness.flush()) == [[AllBlocksCleared(), stored(7)]]
    stats = harness.stream.stats
    assert (stats.gaps, stats.missing, stats.clears) == (1, 3, 2)


def test_what_comes_after_a_loss_shows_what_is_held_still() -> None:
    harness = Harness()
    harness.add(0, stored(1), stored(2, 1), stored(3, 2), stored(4, 3), stored(9))
    harness.flush()
    harness.add(1, stored(5, 4))  # still waits when the loss is seen
    harness.add(3, stored(7, 3))
    first, second = harness.events(harness.flush())
    assert first == [stored(5, 4)]
    (
        clear,
        given_back,
    ) = second
    assert isinstance(clear, AllBlocksCleared)
    assert isinstance(given_back, BlockStored)
    assert (given_back.block_hashes, given_back.parent_block_hash) == ([1, 2, 3, 7], None)
    assert harness.stream.stats.revived_blocks == 3
    harness.add(4, removed(9), stored(8, 4))
    assert harness.events(harness.flush()) == [[BlockStored([4, 8], 3, [4, 4, 8, 8], 2, medium="GPU"), removed(9)]]
    # Each is given back once, and nothing after the source began anew.
    harness.add(5, stored(10, 5))
    harness.stream.clear()
    harness.add(0, stored(11, 9))
    [[given_back, fresh, *rest]] = harness.events(harness.flush())
    assert isinstance(given_back, BlockStored)
    assert given_back.block_hashes == [5, 10]
    assert [fresh, *rest] == [AllBlocksCleared(), stored(11, 9)]


def test_losses_that_follow_each_other_leave_what_is_held_still_to_be_shown() -> None:
    harness = Harness()
    harness.add(0, stored(1), stored(2, 1))
    harness.add(2, stored(9))
    harness.add(4, stored(3, 2))
    events = [event for batch in harness.events(harness.flush()) for event in batch]
    assert events[-2:] == [AllBlocksCleared(), BlockStored([1, 2, 3], None, [1, 1, 2, 2, 3, 3], 2, medium="GPU")]
    assert harness.stream.stats.gaps == 2


def test_a_block_in_another_tier_shows_nothing_about_this_one() -> None:
    harness = Harness()
    harness.add(0, stored(1), stored(2, 1))
    below = BlockStored([3], 2, [3, 3], 2, medium="CPU_PINNED")
    harness.add(2, below)
    events = [event for batch in harness.events(harness.flush()) for event in batch]
    assert events[-2:] == [AllBlocksCleared(), below]


def test_a_broken_batch_is_a_loss_too() -> None:
    harness = Harness()
    harness.add(0, stored(1))
    with pytest.raises(WireError, match="array"):
        harness.stream.add(b"\x01", 1)
    harness.add(2, stored(7))
    assert harness.events(harness.flush()) == [[AllBlocksCleared(), stored(1)], [AllBlocksCleared(), stored(7)]]
    assert (harness.stream.stats.refused, harness.stream.stats.gaps) == (1, 1)


def test_while_the_source_is_not_live_a_number_is_missing_once() -> None:
    harness = Harness(unvouched_s=0.25)
    harness.add(0, stored(1))
    harness.flush()
    before = time.monotonic()
    harness.stream.note_state(told(State.DEGRADED))
    assert harness.flush(before + 0.2) == []
    assert [(one.sequence, decode_batch(one.payload).events) for one in harness.flush()] == [(2, [])]
    assert harness.stream.deadline() is None
    harness.stream.note_state(told(State.LOST))
    assert harness.flush() == []
    harness.add(1, stored(2))
    assert [one.sequence for one in harness.flush()] == [3]
    assert harness.stream.snapshot() is None
    # After a clear consumers begin anew, and have to be told again.
    harness.stream.clear()
    assert [(one.sequence, decode_batch(one.payload).events) for one in harness.flush()] == [
        (4, [AllBlocksCleared()]),
        (6, []),
    ]
    harness.stream.note_state(told(State.LIVE))
    assert harness.flush() == []
    assert harness.stream.stats.holes == 2


def test_a_moment_of_recovery_is_not_told() -> None:
    harness = Harness(unvouched_s=0.25)
    harness.add(0, stored(1))
    harness.flush()
    harness.stream.note_state(told(State.RECOVERING))
    harness.stream.note_state(told(State.LIVE))
    assert harness.flush() == []


def test_recent_batches_are_repeated_as_they_were_sent_and_older_ones_by_what_is_left_of_them() -> None:
    harness = Harness(replay_bytes=1_500)
    harness.add(0, stored(1), stored(2, 1))
    harness.flush()
    for number in range(1, 40):
        harness.add(number, stored(10 + number, 2), removed(9 + number))
        harness.flush()
    replayed = harness.replayed(0)
    numbers = [number for number, _ in replayed]
    assert numbers == list(range(numbers[0], 40))  # ascending, right before the recent ones, those before are missing
    assert numbers[0] > 0
    payloads = dict(harness.stream.since(0))
    recent = {one.sequence: one.payload for one in harness.sent if payloads.get(one.sequence) == one.payload}
    assert sorted(recent) == numbers[1:]
    held: set[object] = set()
    for _, events in replayed:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                held.clear()
            elif isinstance(event, BlockStored):
                held |= set(event.block_hashes)
            else:
                held -= set(event.block_hashes)
    assert held == {1, 2, 49}
    # From anywhere in the recent ones, only those.
    assert harness.replayed(numbers[3]) == replayed[3:]
    assert harness.replayed(40) == []


def test_whoever_asks_from_right_below_the_recent_batches_gets_all_of_the_compacted_log() -> None:
    harness = Harness(replay_bytes=500)
    for number in range(30):
        harness.add(number, stored(number + 1), rank=number % 3)
        harness.flush()
    for start in range(32):
        replayed = harness.replayed(start)
        events = [event for _, events in replayed for event in events]
        held = {block for event in events if isinstance(event, BlockStored) for block in event.block_hashes}
        assert [number for number, _ in replayed] == list(range(30 - len(replayed), 30))
        assert len(replayed) <= max(
            30 - start, 4 if start < 29 else 0
        )  # more only if there are more ranks than numbers
        is_compacted = any(isinstance(event, AllBlocksCleared) for event in events)
        assert held == set(range(1, 31) if is_compacted else range(1 + start, 31)), start


def test_before_the_first_batch_a_snapshot_is_empty() -> None:
    harness = Harness()
    assert harness.stream.snapshot() == (None, [])
    harness.add(0, stored(1))
    assert harness.stream.snapshot() == (None, [])  # it waits, and will be batch 0


def test_a_snapshot_is_of_the_last_number() -> None:
    harness = Harness(replay_bytes=500)
    for number in range(30):
        harness.add(number, stored(number + 1), *([removed(number)] if number % 2 else []))
        harness.flush()
    snapshot = harness.stream.snapshot()
    assert snapshot is not None
    assert snapshot.sequence == harness.sent[-1].sequence
    assert harness.stream.payload_of(snapshot.sequence) == harness.sent[-1].payload
    events = [event for part in snapshot.parts for event in decode_batch(part).events]
    assert isinstance(events[0], AllBlocksCleared)
    assert {block for event in events[1:] if isinstance(event, BlockStored) for block in event.block_hashes} == set(
        range(2, 31, 2)
    )
    assert not any(isinstance(event, BlockRemoved) for event in events)


def restored(sent: list[Sent], *, is_sure: bool = True) -> Restored:
    return Restored([], -1, sent, None, "", "", is_sure)


def test_a_stream_goes_on_where_an_earlier_one_was_left() -> None:
    first = Harness()
    first.add(0, stored(1), rank=2)
    first.flush()
    second = Harness(restored(first.sent))
    assert second.replayed(0) == first.replayed(0)
    second.add(0, stored(5), rank=2)  # nothing is known about the source's place: it is a new beginning
    [sent] = second.flush()
    assert sent.sequence == 1
    assert decode_batch(sent.payload).events == [AllBlocksCleared(), stored(5)]


def test_a_source_that_is_the_same_goes_on_without_a_clear() -> None:
    first = Harness()
    first.add(0, stored(1))
    first.flush()
    position = first.stream.position
    assert position == Position(0, digest_of(batch(stored(1))))
    second = Harness(restored(first.sent)._replace(position=position))
    assert second.stream.position == position
    second.add(1, stored(2, 1))
    assert second.events(second.flush()) == [[stored(2, 1)]]
    assert second.stream.position == Position(1, digest_of(batch(stored(2, 1))))
    second.add(2, stored(3, 2))
    assert second.stream.position == Position(1, digest_of(batch(stored(2, 1)))), "what waits is not in the log yet"
    # Unless the subscriber finds that it is another one.
    third = Harness(restored(first.sent)._replace(position=position))
    third.stream.clear()
    assert third.stream.position is None
    third.add(0, stored(7))
    assert third.events(third.flush()) == [[AllBlocksCleared(), stored(7)]]


def test_numbers_that_may_have_been_used_are_passed_over() -> None:
    first = Harness()
    first.add(0, stored(1))
    first.flush()
    second = Harness(restored(first.sent, is_sure=False))
    second.add(0, stored(5))
    [sent] = second.flush()
    assert sent.sequence == 1 + SKIP
    # A consumer that saw a number that is not in the log gets all of it.
    [(compacted, before), (_, after)] = second.replayed(3)
    assert 3 <= compacted < sent.sequence
    assert before == [AllBlocksCleared(), stored(1)]
    assert after == [AllBlocksCleared(), stored(5)]


def test_a_rank_that_takes_too_much_room_is_cleared() -> None:
    harness = Harness(replay_bytes=500, state_bytes=1_000)
    for number in range(40):
        harness.add(number, stored(number + 1))
        harness.flush()
    harness.stream.check_size()
    assert harness.events(harness.flush()) == [[AllBlocksCleared()]]
    assert harness.stream.state(ReplayServerStats(0, 0, 0)).compacted_bytes < 1_000


def test_a_source_waits_while_too_much_is_unsent() -> None:
    harness = Harness(pending_bytes=1, window_s=30.0)
    harness.add(0, stored(1))
    harness.stream.close()  # or it would wait for room
    harness.add(1, stored(2))
    assert harness.stream.stats.waits == 1


def test_counts_are_of_both_sides() -> None:
    harness = Harness()
    harness.add(0, stored(1))
    harness.add(1, stored(2, 1))
    harness.flush()
    state = harness.stream.state(ReplayServerStats(1, 2, 3))
    assert (state.last_sequence, state.source_sequence, state.state) == (0, 1, "live")
    stats = state.stats
    assert (stats.received, stats.sent, stats.sent_bytes) == (2, 1, len(harness.sent[0].payload))
    assert (stats.received_events, stats.sent_events) == (3, 2)  # with the clear at the beginning
    assert (stats.replays, stats.replayed, stats.malformed_requests) == (1, 2, 3)
    assert msgspec.json.encode(state)
