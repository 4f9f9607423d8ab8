"""What reconnects, silence, replay sockets that fail, sinks that refuse and full memory do to a source."""

import itertools

import pytest

from kvevents.transport.frames import Message
from kvevents.transport.picture import Verdict
from kvevents.transport.state import Fault, Reason, State
from tracker_world import LIVE, World, names

# Reconnects.


def test_after_a_reconnect_the_same_last_batch_tells_the_same_engine() -> None:
    world = World().started(0, 1, 2)
    world.tracker.disconnected()
    assert world.state == (State.LOST, Reason.CONNECTION_LOST)
    world.tracker.connected()
    assert world.state == (State.RECOVERING, Reason.RECONNECTED)
    assert world.asked == [2]
    world.live(5)
    world.replies(2, 3, 4, 5)
    assert world.applied == names(0, 1, 2, 3, 4, 5)
    assert (world.clears, world.state, world.count.reconnects) == (0, LIVE, 1)


def test_a_restart_unseen_during_a_reconnect_is_found_although_its_numbers_fit() -> None:
    world = World().started(*range(102))
    world.tracker.disconnected()
    world.tracker.connected()
    assert world.asked == [101]
    world.live(102, life="b")
    world.replies(101, 102, life="b")
    assert world.clears == 1
    assert world.asked == [101, 0]
    world.replies(*range(103), life="b")
    assert world.applied == names(*range(103), life="b")
    assert (world.state, world.count.restarts) == (LIVE, 1)


def test_a_restarted_engine_that_has_not_come_so_far_is_found_by_its_end_mark() -> None:
    world = World().started(*range(102))
    world.tracker.disconnected()
    world.tracker.connected()
    world.live(3, life="b")
    world.replies()
    world.replies(0, 1, 2, 3, life="b")
    assert world.applied == names(0, 1, 2, 3, life="b")
    assert (world.clears, world.state) == (1, LIVE)


def test_an_idle_restarted_engine_is_found_and_empty() -> None:
    world = World().started(*range(5))
    world.tracker.disconnected()
    world.tracker.connected()
    world.replies()
    world.replies()
    assert (world.applied, world.state) == ([], LIVE)


def test_a_reconnect_without_replay_cannot_be_complete() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(0)
    world.tracker.disconnected()
    world.tracker.connected()
    assert world.state == (State.DEGRADED, Reason.UNSEEN_TIME)
    world.live(1)
    assert world.state == (State.DEGRADED, Reason.UNSEEN_TIME)


def test_what_was_held_over_a_disconnect_is_asked_for_anew() -> None:
    world = World().started(0)
    world.live(3)
    world.tracker.disconnected()
    world.tracker.connected()
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == LIVE


def test_what_is_read_after_the_connection_broke_is_not_taken_although_its_number_fits() -> None:
    world = World().started(0)
    world.tracker.disconnected()
    world.tracker.connected()
    world.tracker.disconnected()  # before the replay socket could tell that it was another engine
    world.live(1, life="b")
    world.tracker.connected()
    world.replies(0, life="b")
    world.replies(0, 1, life="b")
    assert world.applied == names(0, 1, life="b")
    assert world.state == LIVE


# Idle.


def test_an_idle_probe_finds_a_lost_last_batch() -> None:
    world = World().started(0, 1)
    world.wait(world.settings.settle_s)
    assert world.asked == [1]
    world.replies(1)
    world.wait(world.settings.idle_probe_s)
    assert world.asked == [1, 1]
    assert world.state == LIVE
    world.replies(1, 2)
    assert world.applied == names(0, 1, 2)
    assert (world.count.found_by_probe, world.count.probes) == (1, 2)


def test_a_busy_source_is_not_probed() -> None:
    world = World().started()
    for n in range(100):
        world.live(n)
        world.wait(world.settings.idle_probe_s * 0.9)
    assert world.asked == []


def test_live_batches_do_not_wait_for_a_probe() -> None:
    world = World().started(0)
    world.wait(10)
    world.live(1)
    assert world.applied == names(0, 1)
    world.replies(0, 1)
    assert world.applied == names(0, 1)
    assert world.state == LIVE


def test_a_gap_during_a_probe_is_filled() -> None:
    world = World().started(0)
    world.wait(10)
    world.live(3)
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    world = World().started(0)
    world.wait(10)
    world.live(3)
    world.replies(0)  # answered before they were published
    assert world.state == (State.RECOVERING, Reason.GAP)
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == LIVE


def test_a_topic_that_the_publisher_does_not_use_is_named() -> None:
    world = World()
    world.tracker.connected()
    world.tracker.reply(Message(0, b"a0", b"kv-events"))
    world.tracker.end()
    assert world.state == LIVE
    world.wait(1)
    world.tracker.reply(Message(0, b"a0", b"other"))
    world.tracker.reply(Message(1, b"a1", b"other"))
    world.tracker.end()
    assert world.state == (State.DEGRADED, Reason.TOPIC_MISMATCH)
    assert "'kv'" in world.machine.detail
    assert "'other'" in world.machine.detail
    world.live(2)
    assert world.state == LIVE


def test_batches_that_only_probes_bring_show_that_nothing_comes_live() -> None:
    world = World().started(0)
    for n, state in ((1, LIVE), (2, LIVE), (3, (State.DEGRADED, Reason.NOTHING_LIVE))):
        world.wait(10)
        world.tracker.reply(Message(n - 1, f"a{n - 1}".encode(), None))
        world.tracker.reply(Message(n, f"a{n}".encode(), None))
        world.tracker.end()
        assert world.state == state
    assert world.applied == names(0, 1, 2, 3)
    world.live(4)
    assert world.state == LIVE


def test_when_nothing_more_comes_that_way_either_it_may_have_been_bad_luck() -> None:
    world = World().started(0)
    for n in (1, 2, 3):
        world.wait(10)
        world.replies(n - 1, n)
    for state in ((State.DEGRADED, Reason.NOTHING_LIVE), (State.DEGRADED, Reason.NOTHING_LIVE), LIVE):
        world.wait(10)
        world.tracker.reply(Message(3, b"a3", None))
        world.tracker.end()
        assert world.state == state


def test_a_probe_that_finds_the_buffer_moved_on_with_the_live_stream_is_no_restart() -> None:
    world = World().started(0)
    world.wait(10)
    world.live(1, 2)
    world.replies(2, 3)  # batches 0 and 1 have left the buffer meanwhile
    assert world.applied == names(0, 1, 2, 3)
    assert (world.clears, world.state) == (0, LIVE)


def test_a_probe_that_finds_the_buffer_beyond_everything_known_clears() -> None:
    world = World().started(0)
    world.wait(10)
    world.replies(2, 3)
    assert world.clears == 1
    assert world.applied == names(2, 3)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)


# A replay socket that fails.


def test_a_silent_replay_socket_does_not_stop_the_stream() -> None:
    world = World()
    world.tracker.connected()
    world.live(57, 58)
    assert world.applied == []
    world.time_out()
    assert world.applied == names(57, 58)
    world.live(59)
    assert world.applied == names(57, 58, 59)
    assert world.state == (State.DEGRADED, Reason.LATE_JOIN)
    assert world.count.timeouts == 1


def test_when_it_answers_again_the_picture_is_rebuilt_from_zero() -> None:
    world = World()
    world.tracker.connected()
    world.live(3)
    world.time_out()
    world.wait(world.settings.idle_probe_s)
    assert world.asked == [0, 0]
    world.live(4)
    world.replies(0, 1, 2, 3)
    assert world.clears == 1
    assert world.applied == names(0, 1, 2, 3, 4)
    assert world.state == LIVE


def test_a_rebuild_whose_buffer_starts_late_keeps_what_is_there() -> None:
    world = World()
    world.tracker.connected()
    world.live(3)
    world.time_out()
    world.wait(world.settings.idle_probe_s)
    world.replies(2, 3, 4)
    assert world.clears == 0
    assert world.applied == names(3, 4)
    assert world.state == (State.DEGRADED, Reason.LATE_JOIN)
    world.asked.clear()
    world.wait(world.settings.idle_probe_s)
    assert world.asked == [4]  # nothing to mend any more, only a probe


def test_traffic_does_not_put_off_the_rebuild() -> None:
    world = World()
    world.tracker.connected()
    world.live(3)
    world.time_out()
    for n in range(4, 24):
        world.live(n)
        world.wait(world.settings.idle_probe_s / 10)
    assert world.asked == [0, 0]


def test_a_rebuild_that_fails_in_its_middle_is_not_begun_again() -> None:
    world = World()
    world.tracker.connected()
    world.live(3)
    world.time_out()
    world.wait(world.settings.idle_probe_s)
    world.replies(0, end=False)  # and the next batch is more than the connection carries
    assert world.clears == 1
    world.live(4)
    world.time_out()
    assert world.applied == names(0, 4)
    assert world.state == (State.DEGRADED, Reason.GAP_UNREPAIRED)
    for _ in range(20):
        world.wait(60)
    assert world.clears == 1
    assert set(world.asked[2:]) == {4}


def test_a_rebuild_without_a_first_answer_is_tried_again() -> None:
    world = World()
    world.tracker.connected()
    world.live(3)
    world.time_out()
    for _ in range(3):
        world.wait(60)
        world.time_out()
    world.wait(60)
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == LIVE


def test_a_probe_without_an_answer_degrades_until_there_is_one() -> None:
    world = World().started(0)
    world.wait(1)
    world.time_out()
    assert world.state == (State.DEGRADED, Reason.REPLAY_SILENT)
    world.live(1)
    assert world.applied == names(0, 1)
    world.wait(world.settings.idle_probe_s)
    world.replies(1)
    assert world.state == LIVE


def test_a_silent_replay_socket_is_asked_less_and_less_often() -> None:
    world = World(idle_probe_s=1, replay_timeout_s=1, retry_max_s=8).started(0)
    times = []
    for _ in range(400):
        before = len(world.asked)
        world.wait(0.25)
        if len(world.asked) > before:
            times.append(world.now)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(times)]
    assert pauses[:6] == [2, 3, 5, 9, 9, 9]


def test_a_gap_with_a_silent_replay_socket_is_said_and_mended_later() -> None:
    world = World().started(0)
    world.wait(1)
    world.time_out()
    world.live(3)
    assert world.state == (State.DEGRADED, Reason.GAP_UNREPAIRED)
    assert world.applied == names(0, 3)
    world.wait(world.settings.idle_probe_s)
    assert world.asked[-1] == 0
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == LIVE


def test_replies_that_stop_in_the_middle_go_on_later() -> None:
    world = World()
    world.tracker.connected()
    world.replies(0, 1, end=False)
    world.time_out()
    assert world.state == (State.DEGRADED, Reason.REPLAY_SILENT)
    world.wait(world.settings.idle_probe_s)
    assert world.asked == [0, 1]
    world.replies(1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == LIVE


def test_every_reply_gives_the_rest_more_time() -> None:
    world = World()
    world.tracker.connected()
    for n in range(10):
        world.wait(world.settings.replay_timeout_s * 0.9)
        world.replies(n, end=False)
    world.replies()
    assert world.state == LIVE


@pytest.mark.parametrize("others", [0, 1, 3, 5, 7])
def test_a_replay_socket_of_another_publisher_is_found_out_and_not_believed(others: int) -> None:
    world = World().started()
    world.live(0, 1, 2, 3)
    served = 0
    for live in range(4, 14):
        world.wait(10)
        served += serve(world, *range(others))
        assert world.state[0] is State.DEGRADED
        world.live(live)
        served += serve(world, *range(others))
    assert world.state == (State.DEGRADED, Reason.REPLAY_MISMATCH)
    assert served <= 7
    assert world.applied[-1:] == names(13)


def serve(world: World, *buffer: int) -> int:
    """Answers from another publisher's buffer to whatever is asked; how many requests."""
    served = 0
    while world.asked:
        start = world.asked[-1]
        world.asked.clear()
        world.replies(*(sequence for sequence in buffer if sequence >= start), life="other")
        served += 1
    return served


def test_a_restart_behind_an_unbroken_connection_counts_when_the_live_socket_agrees() -> None:
    world = World().started()
    world.live(0, 1)
    world.wait(10)
    world.replies()
    assert (world.clears, world.asked) == (1, [1, 0])
    world.replies(0, life="b")
    assert world.state == (State.DEGRADED, Reason.RESTART_UNCONFIRMED)
    assert world.applied == names(0, life="b")
    world.live(1, life="b")
    assert world.state == LIVE
    assert world.applied == names(0, 1, life="b")


def test_restarts_behind_an_unbroken_connection_are_no_contradictions_while_the_sockets_agree_in_between() -> None:
    world = World().started()
    for life in "abcdefgh":
        world.live(0, 1, life=life)
        world.wait(10)
        world.replies(1, life=life)
        assert world.state == LIVE, life
        world.wait(10)
        world.replies()
        world.replies()
        assert world.state == (State.DEGRADED, Reason.RESTART_UNCONFIRMED)


def test_what_only_the_replay_socket_said_does_not_speak_against_it() -> None:
    world = World().started(0, 1)
    world.wait(10)
    world.replies(1, life="b")
    assert (world.clears, world.asked) == (1, [1, 0])
    world.replies(0, 1, life="b")
    assert (world.applied, world.state) == (names(0, 1, life="b"), LIVE)


def test_two_sockets_that_contradict_each_other_end_in_a_state_and_not_in_a_loop() -> None:
    world = World()
    world.tracker.connected()
    world.live(0, 1, 2)
    for _ in range(10):
        if world.state[1] is not Reason.REPLAY_MISMATCH:
            world.replies(0, 1, 2, life="other")
    assert world.state == (State.DEGRADED, Reason.REPLAY_MISMATCH)
    assert world.applied == names(0, 1, 2)
    assert len(world.asked) == 3


# The sink.


def fault(reason: Reason) -> Verdict:
    return Verdict(Fault(reason, "why", mendable=False))


def test_a_refused_batch_degrades_until_a_clear() -> None:
    world = World().started()
    world.verdicts = {"a1": fault(Reason.BATCH_REFUSED), "a3": Verdict(cleared=True)}
    world.live(0, 1, 2)
    assert world.state == (State.DEGRADED, Reason.BATCH_REFUSED)
    world.live(3)
    assert world.state == LIVE


def test_a_clear_completes_a_picture_that_joined_late() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.verdicts = {"a59": Verdict(cleared=True)}
    world.live(57, 58, 59, 60)
    assert world.state == LIVE


def test_the_first_fault_stays_the_reason() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(5, 9)
    assert world.state == (State.DEGRADED, Reason.LATE_JOIN)


# Limits.


def test_held_batches_are_bounded_and_nothing_is_lost_for_it() -> None:
    for limit, value in (("hold_batches", 8), ("hold_bytes", 24)):
        world = World(replay=True, **{limit: value})  # type: ignore[arg-type]  # a setting by name
        world.tracker.connected()
        world.live(*range(10, 30))
        assert len(world.tracker._held) <= 8
        assert world.count.held_dropped >= 12
        world.replies(*range(10))
        published = range(30)
        while world.tracker._request is not None:
            world.replies(*published[world.asked[-1] :])
        assert world.applied == names(*published)
        assert world.state == LIVE


def test_holes_are_filled_in_rounds_although_little_can_be_held() -> None:
    world = World(hold_batches=1).started()
    world.live(4)
    world.replies(0, 2, 3, 4)
    while world.tracker._request is not None:
        world.replies(*range(world.asked[-1], 5))
    assert world.applied == names(*range(5))
    assert world.state == LIVE


def test_a_hole_below_more_than_can_be_held_ends() -> None:
    world = World(hold_batches=3)
    world.tracker.connected()
    published = [0, *range(2, 30)]
    for _ in range(100):
        if world.tracker._request is not None:
            world.replies(*[n for n in published if n >= world.asked[-1]])
    assert world.applied == names(*published)
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)
    assert world.count.missing == 1
