"""What is applied, asked for and dropped as sequence numbers come: joining, gaps, duplicates, restarts."""

from kvevents.transport.state import Reason, State
from tracker_world import LIVE, World, names

# Joining.


def test_a_source_connects_recovers_and_is_live() -> None:
    world = World()
    assert world.state == (State.CONNECTING, Reason.NOT_REACHED)
    world.tracker.connected()
    assert world.state == (State.RECOVERING, Reason.FIRST_REPLAY)
    assert world.asked == [0]
    world.replies(0, 1)
    assert world.state == LIVE
    assert world.moves == ["recovering", "live"]
    assert world.count.transitions == {
        "connecting>recovering:first-replay": 1,
        "recovering>live:complete": 1,
    }


def test_an_engine_that_published_nothing_is_live_and_empty() -> None:
    world = World().started()
    assert world.state == LIVE
    world.live(0, 1)
    assert world.applied == names(0, 1)
    assert world.state == LIVE


def test_a_late_joiner_applies_the_past_and_then_the_present_each_once() -> None:
    world = World()
    world.tracker.connected()
    world.live(57)
    world.replies(*range(58))
    assert world.applied == names(*range(58))
    assert world.state == LIVE
    assert (world.count.applied, world.count.replayed, world.count.duplicates) == (58, 58, 1)


def test_live_batches_wait_for_the_replay_and_follow_it_in_order() -> None:
    world = World()
    world.tracker.connected()
    world.replies(0, 1, end=False)
    world.live(3, 4)
    world.replies(2)
    assert world.applied == names(0, 1, 2, 3, 4)
    assert world.state == LIVE


def test_a_buffer_that_starts_late_leaves_the_worker_degraded() -> None:
    world = World()
    world.tracker.connected()
    world.live(57)
    world.replies(*range(40, 58))
    assert world.applied == names(*range(40, 58))
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    assert "40" in world.machine.detail
    assert (world.count.missing, world.count.replayed) == (40, 18)
    world.live(58)
    world.wait(60)
    world.replies(58)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)


def test_a_late_joiner_without_replay_is_degraded_at_once() -> None:
    world = World(replay=False)
    world.tracker.connected()
    assert world.state == (State.DEGRADED, Reason.FIRST_BATCH_AWAITED)
    world.live(57, 58)
    assert world.applied == names(57, 58)
    assert world.state == (State.DEGRADED, Reason.LATE_JOIN)
    assert "no replay endpoint" in world.machine.detail


def test_without_replay_a_source_seen_from_its_first_batch_is_live() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(0)
    assert world.state == LIVE


def test_an_empty_buffer_although_batches_were_published_is_not_taken_for_complete() -> None:
    world = World()
    world.tracker.connected()
    world.live(57)
    world.replies()
    assert world.asked == [0, 0]  # it may have been published between the two sockets
    world.replies()
    assert world.applied == names(57)
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)
    assert world.count.missing == 57


# Gaps.


def test_a_gap_is_filled_by_a_replay_from_the_last_batch_seen() -> None:
    world = World().started(0, 1, 2)
    world.live(5)
    assert world.state == (State.RECOVERING, Reason.GAP)
    assert world.asked == [2]
    world.live(6)
    world.replies(2, 3, 4, 5)
    assert world.applied == names(0, 1, 2, 3, 4, 5, 6)
    assert world.state == LIVE
    assert (world.count.gaps, world.count.missing) == (1, 0)


def test_a_batch_that_was_never_published_is_given_up_and_said() -> None:
    world = World().started(0, 1, 2)
    world.live(5)
    world.replies(2, 5, 6)
    assert world.applied == names(0, 1, 2, 5, 6)
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)
    assert world.count.missing == 2


def test_a_gap_whose_replay_tells_of_another_engine_is_a_restart() -> None:
    world = World().started()
    world.live(0, 1, 5)
    world.replies(1, life="b")
    assert (world.clears, world.asked) == (1, [1, 0])
    assert world.state == (State.RECOVERING, Reason.RESTARTED)


def test_a_server_that_begins_earlier_than_asked_does_no_harm() -> None:
    world = World().started(0, 1, 2)
    world.live(5)
    world.replies(*range(6))
    assert world.applied == names(*range(6))
    assert (world.clears, world.state) == (0, LIVE)


def test_what_could_not_be_held_and_has_left_the_buffer_is_given_up() -> None:
    world = World(hold_batches=1).started(0)
    world.live(4, 5)
    assert world.count.held_dropped == 1
    world.replies(0)
    world.replies(4)
    assert world.asked == [0, 4]
    assert world.applied == names(0, 4)
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)
    world.live(6)
    world.replies(4)
    assert world.applied == names(0, 4, 6)
    assert world.count.missing == 4


def test_a_gap_without_replay_degrades_and_the_stream_goes_on() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(0, 1, 4, 5)
    assert world.applied == names(0, 1, 4, 5)
    assert world.state == (State.DEGRADED, Reason.GAP_UNREPAIRED)
    assert (world.count.gaps, world.count.missing) == (1, 2)


def test_replies_with_holes_are_asked_for_again_as_long_as_that_helps() -> None:
    world = World()
    world.tracker.connected()
    world.replies(0, 1, 5, 6, 9)
    assert world.asked == [0, 1]
    world.replies(1, 2, 6)
    assert world.asked == [0, 1, 2]
    world.replies(2, 3, 4, 7, 8)
    assert world.applied == names(*range(10))
    assert world.state == LIVE


def test_many_holes_that_stay_cost_one_more_request() -> None:
    world = World()
    world.tracker.connected()
    published = [n for n in range(100) if n % 3]
    world.replies(0, *published)
    world.replies(2, *[n for n in published if n > 2])
    assert world.asked == [0, 2]
    assert world.applied == names(0, *published)
    assert world.count.missing == 32
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)


def test_a_gap_beyond_the_replay_buffer_clears_since_the_engine_may_be_another() -> None:
    world = World().started(0, 1, 2)
    world.live(60)
    world.replies(55, 56, 57, 58, 59, 60)
    assert world.clears == 1
    assert world.applied == names(55, 56, 57, 58, 59, 60)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)


# Duplicates and restarts.


def test_duplicates_are_dropped() -> None:
    world = World().started(0, 1, 2)
    world.live(1, 2, 0)
    assert world.applied == names(0, 1, 2)
    assert world.count.duplicates == 3
    assert world.state == LIVE


def test_a_restart_from_zero_drops_what_was_held_and_applies_anew() -> None:
    for replay in (True, False):
        world = World(replay=replay)
        world.tracker.connected()
        if replay:
            world.replies()
        world.live(*range(102))
        world.live(0, life="b")
        assert world.clears == 1
        assert world.applied == names(0, life="b")
        assert world.state == LIVE
        assert world.count.restarts == 1


def test_a_zero_that_was_never_seen_is_a_restart() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(100, 101, 0)
    assert world.clears == 1
    assert world.applied == names(0)
    assert world.state == LIVE


def test_a_restart_noticed_in_the_middle_is_rebuilt_from_its_beginning() -> None:
    world = World().started(*range(10))
    world.live(4, life="b")
    assert (world.clears, world.asked) == (1, [0])
    assert world.state == (State.RECOVERING, Reason.FIRST_REPLAY)
    world.replies(0, 1, 2, 3, 4, life="b")
    assert world.applied == names(*range(5), life="b")
    assert world.state == LIVE


def test_an_old_number_beyond_memory_is_probed_before_anything_is_dropped() -> None:
    world = World(window=4).started(*range(100))
    world.live(50)
    assert world.asked == [99]
    world.replies(99)
    assert (world.clears, world.state) == (0, LIVE)
    world.live(50, life="b")
    world.replies()
    assert world.clears == 1
    world.replies(*range(51), life="b")
    assert world.applied == names(*range(51), life="b")
    assert world.state == LIVE


def test_an_old_number_beyond_memory_without_replay_is_taken_for_a_restart() -> None:
    world = World(replay=False, window=4)
    world.tracker.connected()
    world.live(*range(100))
    world.live(50, life="b")
    assert world.applied == names(50, life="b")
    assert world.state == (State.DEGRADED, Reason.LATE_JOIN)


def test_a_number_that_was_given_up_and_comes_late_changes_nothing() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(0, 1, 3, 2)
    assert world.applied == names(0, 1, 3)
    assert (world.count.late, world.clears) == (1, 0)


def test_a_stream_that_moves_back_while_batches_are_held_lets_go_of_them() -> None:
    world = World().started(0)
    world.live(5, 6)
    world.live(5, 6)  # duplicates
    world.live(1, life="b")
    world.replies()
    world.replies(0, 1, life="b")
    assert world.applied == names(0, 1, life="b")
    assert (world.state, world.count.missing) == (LIVE, 0)


def test_duplicates_of_held_batches_change_nothing() -> None:
    world = World().started(0)
    world.live(2, 3, 3, 2)
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert (world.clears, world.state) == (0, LIVE)


def test_everything_is_counted() -> None:
    world = World().started(0)
    world.live(1, 4, 5, 9)
    world.replies(1, 2, 3)
    assert world.asked == [1, 5]
    world.replies(5)
    world.live(9, 2)
    count = world.count
    assert (count.received, count.received_bytes, count.gaps) == (6, 12, 2)
    assert (count.applied, count.replayed, count.missing) == (7, 3, 3)
    assert (count.duplicates, count.requests, count.probes) == (2, 3, 0)
    assert (count.restarts, count.clears, count.timeouts) == (0, 0, 0)
    world.live(0, life="b")
    world.tracker.disconnected()
    world.live(1, life="b")
    assert (count.restarts, count.clears, count.held_dropped) == (1, 1, 1)
    assert count.clears == world.clears
