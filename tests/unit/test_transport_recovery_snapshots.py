"""Recovery by snapshot: who asks when, and what becomes of it."""

from typing import Any

import pytest

from kvevents.transport.picture import Restored, Verdict
from kvevents.transport.poll_loop import PollLoop
from kvevents.transport.snapshot import SNAPSHOT_MARK, chunk_request
from kvevents.transport.state import Fault, Reason, State
from tracker_world import LIVE, World, batch, names


def joined_late(world: World) -> World:
    """A replay from 0 began at 40, above what was asked for."""
    world.tracker.connected()
    world.tracker.reply(batch(40))
    return world


def refuse(world: World, payload: str) -> None:
    world.verdicts[payload] = Verdict(Fault(Reason.BATCH_REFUSED, "broken", mendable=False))


def test_a_late_joiner_of_a_short_buffer_gets_a_snapshot_and_what_came_since() -> None:
    world = joined_late(World(snapshot=None))
    assert world.state == (State.RECOVERING, Reason.SNAPSHOT)
    assert (world.asked, world.asked_snapshots, world.applied) == ([0], [SNAPSHOT_MARK], [])
    world.live(58)
    world.snapshot(56, "all of it")
    assert world.asked == [0, 56]
    world.replies(56, 57, 58)
    assert world.state == LIVE
    assert world.applied == ["all of it", *names(57, 58)]
    assert (world.count.snapshots, world.count.missing, world.count.duplicates) == (1, 0, 1)
    world.live(59)
    assert world.state == LIVE


def test_where_the_source_says_that_there_are_snapshots_one_is_asked_for_first() -> None:
    world = World(snapshot=True)
    world.tracker.connected()
    assert (world.asked, world.asked_snapshots) == ([], [SNAPSHOT_MARK])
    world.snapshot(None)
    assert world.asked == [0]
    world.replies(0, 1)
    assert world.state == LIVE
    assert world.applied == names(0, 1)


def test_a_publisher_that_knows_nothing_of_snapshots_is_asked_once_a_connection() -> None:
    world = joined_late(World(snapshot=None))
    world.tracker.end()  # what such a publisher answers
    world.replies(40, 41)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    assert world.applied == names(40, 41)
    world.wait(100)
    world.replies(41)
    assert len(world.asked_snapshots) == 1
    world.tracker.disconnected()
    world.tracker.connected()
    assert len(world.asked_snapshots) == 1, "whether it is the same engine comes first"
    world.replies(41)
    assert len(world.asked_snapshots) == 2


def test_a_fault_that_no_replay_can_mend_is_mended_by_a_snapshot() -> None:
    world = World(snapshot=None).started(0, 1)
    refuse(world, "a2")
    world.live(2)
    assert world.state == (State.DEGRADED, Reason.BATCH_REFUSED)
    assert world.asked_snapshots == [SNAPSHOT_MARK]
    world.live(3)
    world.snapshot(3, "all of it")
    world.replies(3)
    assert world.state == LIVE
    assert world.applied == ["all of it"]


def test_numbers_that_were_used_up_without_a_batch_are_made_good_by_a_snapshot() -> None:
    world = World(snapshot=None).started(0, 1)
    world.live(4)
    world.replies(1, 4)
    assert world.state == (State.DEGRADED, Reason.BATCH_MISSING)
    world.snapshot(4, "all of it")
    world.replies(4)
    assert world.state == LIVE


def test_faults_that_come_back_do_not_ask_without_end() -> None:
    world = World(snapshot=None).started(0)
    for sequence in range(1, 50):
        refuse(world, f"a{sequence}")
        world.live(sequence)
        if world.tracker._request is not None:
            world.snapshot(sequence, "all of it")
            world.replies(sequence)
        world.wait(1.0)
    assert 2 <= len(world.asked_snapshots) <= 7


def test_a_snapshot_that_is_being_taken_is_waited_for() -> None:
    world = joined_late(World(snapshot=None))
    for _ in range(3):
        world.snapshot(None, status="preparing")
        world.live(41)
        asked = len(world.asked_snapshots)
        world.wait(0.06)
        assert world.asked_snapshots[asked:] == [SNAPSHOT_MARK]
    world.snapshot(41, "all of it")
    world.replies(41)
    assert world.state == LIVE


def test_but_not_for_ever() -> None:
    world = joined_late(World(snapshot=None, snapshot_timeout_s=1.0))
    for _ in range(30):
        if world.count.snapshot_failures:
            break
        world.snapshot(None, status="preparing")
        world.wait(0.06)
    world.replies(40)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    assert world.count.snapshot_failures == 1


def test_one_that_cannot_be_had_is_asked_for_again_later_and_later() -> None:
    world = joined_late(World(snapshot=None))
    for _ in range(200):
        world.snapshot(None, status="unavailable", reason="no memory")
        world.replies(40)
        world.wait(0.5)
    assert world.tracker.snapshot_failure == "no memory"
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    assert 5 <= world.count.snapshot_failures <= 9, "of 100 seconds"


def test_chunks_are_asked_for_one_by_one() -> None:
    world = joined_late(World(snapshot=None))
    world.snapshot(56, size=100, chunks=3, chunk=0)
    assert world.asked_snapshots[1:] == [chunk_request(7, 1)]
    assert "fetching a snapshot of 100 bytes" in world.machine.detail


@pytest.mark.parametrize("wrong", [{"chunk": 5}, {"size": 1 << 40}, {"size": 1}])
def test_one_that_makes_no_sense_is_done_without(wrong: dict[str, Any]) -> None:
    world = joined_late(World(snapshot=None))
    world.snapshot(56, "all of it", **wrong)
    assert world.asked == [0, 0]
    world.replies(40)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    assert (world.count.snapshots, world.count.snapshot_failures) == (0, 1)


def test_one_that_the_sink_cannot_use_leaves_nothing_of_itself() -> None:
    world = joined_late(World(snapshot=None))
    world.restored = Restored(failure="it takes no images")
    world.snapshot(56, "all of it")
    world.replies(40, 41)
    assert world.applied == names(40, 41)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)
    world.wait(100)
    world.replies(41)
    assert len(world.asked_snapshots) == 1


def test_what_of_it_could_not_be_used_is_said() -> None:
    world = joined_late(World(snapshot=None))
    world.restored = Restored(fault=Fault(Reason.SETTING_CONTRADICTED, "other blocks", mendable=False))
    world.snapshot(56, "all of it")
    world.replies(56)
    assert world.state == (State.DEGRADED, Reason.SETTING_CONTRADICTED)


def test_a_publisher_that_falls_silent_over_it_does_not_stop_the_stream() -> None:
    world = joined_late(World(snapshot=None))
    world.live(56, 57)
    world.time_out()
    assert world.applied == names(56, 57)
    assert world.machine.state is State.DEGRADED
    assert world.count.timeouts == 1
    world.live(58)
    assert world.applied == names(56, 57, 58)


class TestIncarnations:
    def test_a_restart_between_a_snapshot_and_the_replay_after_it_is_found_by_the_digest(self) -> None:
        world = joined_late(World(snapshot=None))
        world.snapshot(56, "of the first life")
        world.replies(56, 57, life="b")
        assert world.count.restarts == 1
        world.replies(0, 1, 2, life="b")
        assert world.applied == names(0, 1, 2, life="b")
        assert world.state == LIVE

    def test_and_by_the_end_mark_of_one_that_has_not_come_so_far(self) -> None:
        world = joined_late(World(snapshot=None))
        world.snapshot(56, "of the first life")
        world.replies()
        world.replies(0, life="b")
        assert world.applied == names(0, life="b")

    def test_one_that_does_not_say_whose_it_is_is_not_believed_over_a_reconnect(self) -> None:
        world = joined_late(World(snapshot=None))
        world.snapshot(56, "of the first life", digest=None)
        world.replies(56, 57, life="b")
        assert world.state == LIVE, "nothing speaks against it"
        world.tracker.disconnected()
        world.tracker.connected()
        assert (world.asked[-1], world.applied) == (0, [])

    def test_what_was_live_before_and_during_it_has_to_be_of_the_same_life(self) -> None:
        world = World(snapshot=None).started(0, 1)
        refuse(world, "a2")
        world.live(2)
        world.live(0, life="b")
        world.snapshot(2, "of the first life")
        world.replies(0, life="b")
        world.replies(0, life="b")
        assert world.applied == names(0, life="b")
        assert world.state == LIVE


def test_a_reconnect_during_it_begins_anew() -> None:
    world = joined_late(World(snapshot=None))
    world.tracker.disconnected()
    world.tracker.connected()
    world.snapshot(56, "too late")
    assert world.applied == []
    assert world.asked == [0, 0]


class TestProbes:
    def test_an_answer_that_comes_late_still_counts(self) -> None:
        world = World().started(0)
        world.wait(world.settings.settle_s)
        world.wait(world.settings.probe_timeout_s)
        assert world.state == (State.DEGRADED, Reason.REPLAY_SILENT)
        world.live(1)
        world.replies(0, 1)
        assert world.state == LIVE
        assert (world.count.timeouts, world.applied) == (1, names(0, 1))

    def test_but_until_all_of_it_is_there_the_source_is_recovering(self) -> None:
        world = World().started(0)
        world.wait(world.settings.settle_s)
        world.wait(world.settings.probe_timeout_s)
        world.replies(0, end=False)
        assert world.state == (State.RECOVERING, Reason.FOUND_BY_PROBE)
        world.wait(world.settings.replay_timeout_s)
        assert world.state == (State.DEGRADED, Reason.REPLAY_SILENT)

    def test_one_that_brings_much_is_a_recovery(self) -> None:
        world = World().started(0)
        world.wait(world.settings.settle_s)
        world.replies(0, 1, 2, end=False)
        assert world.state == LIVE
        world.wait(world.settings.probe_timeout_s)
        assert world.state == (State.RECOVERING, Reason.FOUND_BY_PROBE)
        world.replies(3, 4)
        assert world.state == LIVE
        assert world.count.found_by_probe == 4


class TestLeases:
    def test_what_was_lost_for_too_long_is_let_go(self) -> None:
        world = World(lost_grace_s=30.0).started(0, 1)
        world.tracker.disconnected()
        world.wait(29.9)
        assert world.applied == names(0, 1)
        assert world.state == (State.LOST, Reason.CONNECTION_LOST)
        world.wait(0.2)
        assert world.applied == []
        assert world.state == (State.LOST, Reason.LEASE_EXPIRED)
        assert world.tracker.deadline() is None
        world.wait(1000)
        assert (world.count.expired, world.clears) == (1, 1)
        world.tracker.connected()
        world.replies(0, 1, 2)
        assert world.state == LIVE
        assert world.applied == names(0, 1, 2)

    def test_who_comes_back_in_time_keeps_it(self) -> None:
        world = World().started(0, 1)
        world.tracker.disconnected()
        world.wait(world.settings.lost_grace_s - 1)
        world.tracker.connected()
        world.replies(1)
        assert world.state == LIVE
        assert world.clears == 0

    def test_they_can_be_endless(self) -> None:
        world = World(lost_grace_s=float("inf")).started(0)
        world.tracker.disconnected()
        world.wait(1e9)
        assert world.applied == names(0)
        loop = PollLoop()
        loop.call_soon(lambda: None)
        loop.turn(world.tracker.deadline())
        loop.close()

    def test_what_an_earlier_life_of_the_sink_knew_of_one_that_never_comes_is_let_go(self) -> None:
        world = World()
        world.wait(world.settings.lost_grace_s)
        assert (world.clears, world.state) == (1, (State.CONNECTING, Reason.NOT_REACHED))
