"""What the sequencing does with every order of messages: CASES of delivery, without sockets."""

import itertools

from kvevents.transport.frames import Message
from kvevents.transport.picture import Verdict
from kvevents.transport.sequence import SequenceTracker
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.state import Fault, Reason, SourceCounters, State, StateMachine


def batch(sequence: int, life: str = "a") -> Message:
    """Batch number `sequence` of one engine's life."""
    return Message(sequence, f"{life}{sequence}".encode(), b"kv")


class World:
    """A tracker with a clock and a sink that write down what happens."""

    def __init__(self, *, replay: bool = True, **settings: float) -> None:
        self.now = 100.0
        self.applied: list[str] = []
        self.asked: list[int] = []
        self.clears = 0
        self.verdicts: dict[str, Verdict] = {}
        self.moves: list[str] = []
        self.count = SourceCounters()
        self.machine = StateMachine(self.count, lambda: self.moves.append(str(self.machine.state)), "connecting")
        self.settings = DeliverySettings(**settings)  # type: ignore[arg-type]  # numbers by name
        self.tracker = SequenceTracker(
            self,
            self.machine,
            self.count,
            has_replay=replay,
            topic=b"kv",
            settings=self.settings,
            clock=lambda: self.now,
        )

    def apply(self, sequence: int, payload: bytes, /) -> Verdict:
        self.applied.append(payload.decode())
        return self.verdicts.get(payload.decode(), Verdict())

    def clear(self) -> None:
        self.clears += 1
        self.applied.clear()

    def ask(self, start: int, /) -> None:
        self.asked.append(start)

    def live(self, *sequences: int, life: str = "a") -> None:
        for sequence in sequences:
            self.tracker.live(batch(sequence, life))

    def replies(self, *sequences: int, life: str = "a", end: bool = True) -> None:
        """Answers of one request; when the tracker asks anew, the rest of them is lost with their socket."""
        asked = len(self.asked)
        for sequence in sequences:
            self.tracker.reply(batch(sequence, life))
            if len(self.asked) > asked:
                return
        if end:
            self.tracker.end()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tracker.tick()

    def time_out(self) -> None:
        self.wait(self.settings.replay_timeout_s)

    def started(self, *sequences: int) -> "World":
        """Connected and recovered from a buffer with these batches."""
        self.tracker.connected()
        self.replies(*sequences)
        self.asked.clear()
        return self

    @property
    def state(self) -> tuple[State, Reason]:
        return self.machine.state, self.machine.code


def names(*sequences: int, life: str = "a") -> list[str]:
    return [f"{life}{sequence}" for sequence in sequences]


LIVE = (State.LIVE, Reason.COMPLETE)


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
    assert world.count.missing == 40
    world.live(58)
    world.wait(60)
    world.replies(58)
    assert world.state == (State.DEGRADED, Reason.REPLAY_STARTS_LATE)


def test_a_late_joiner_without_replay_is_degraded_at_once() -> None:
    world = World(replay=False)
    world.tracker.connected()
    assert world.state == (State.RECOVERING, Reason.FIRST_BATCH_AWAITED)
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


def test_a_gap_without_replay_degrades_and_the_stream_goes_on() -> None:
    world = World(replay=False)
    world.tracker.connected()
    world.live(0, 1, 4, 5)
    assert world.applied == names(0, 1, 4, 5)
    assert world.state == (State.DEGRADED, Reason.GAP)
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
    assert world.state == LIVE


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
    assert world.state == (State.DEGRADED, Reason.RECONNECTED)
    world.live(1)
    assert world.state == (State.DEGRADED, Reason.RECONNECTED)


def test_what_was_held_over_a_disconnect_is_asked_for_anew() -> None:
    world = World().started(0)
    world.live(3)
    world.tracker.disconnected()
    world.tracker.connected()
    world.replies(0, 1, 2, 3)
    assert world.applied == names(0, 1, 2, 3)
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
    for n in range(1, 4):
        world.wait(10)
        world.tracker.reply(Message(n - 1, f"a{n - 1}".encode(), None))
        world.tracker.reply(Message(n, f"a{n}".encode(), None))
        world.tracker.end()
    assert world.applied == names(0, 1, 2, 3)
    assert world.state == (State.DEGRADED, Reason.NOTHING_LIVE)
    world.live(4)
    assert world.state == LIVE


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
    assert world.state == (State.DEGRADED, Reason.GAP)
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


def test_a_replay_socket_of_another_publisher_is_found_out_and_not_believed() -> None:
    world = World().started()
    world.live(0, 1)
    world.wait(10)
    world.replies(1, life="other")
    assert world.state == (State.DEGRADED, Reason.REPLAY_MISMATCH)
    assert (world.applied, world.clears) == (names(0, 1), 0)
    world.wait(100)
    world.live(2)
    assert world.applied == names(0, 1, 2)
    assert world.asked == [1]


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
    for limit in ({"hold_batches": 8}, {"hold_bytes": 24}):
        world = World(replay=True, **limit)
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
