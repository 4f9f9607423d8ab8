"""Judges the sequence numbers of one source: what to apply, hold, ask for again, or drop everything for.

No sockets and no clock of its own, so that every order of messages can be tried in a test.

    live 7 after 6        apply
    live 9 after 6        hold it, ask the replay socket from 6: 6 again (the same engine), 7, 8, then 9
    live 6 after 6        the same bytes: a duplicate; other bytes: a new incarnation
    replay ends, 7 not    asked again while answers fill holes, then given up and said: `degraded`
    replay says nothing   after a timeout what is held is applied; `degraded` until it answers
"""

from collections.abc import Callable, Sequence

from kvevents.transport.frames import Message
from kvevents.transport.picture import Effects, Position
from kvevents.transport.request import ReplayRequest, SnapshotRequest
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.snapshot_recovery import SnapshotRecovery
from kvevents.transport.state import Reason, SourceCounters, StateMachine


class SequenceTracker(SnapshotRecovery):
    """The state machine of one source: messages and moments go in, effects and states come out.

    One thread at a time. Each public method that takes news ends by moving the state machine.

    Args:
        effects: what is done to the sink and the replay socket.
        machine: where the state is kept.
        counters: where everything is counted.
        has_replay: whether there is a replay socket to ask.
        snapshot: whether the publisher offers snapshots; None: not known.
        topic: the prefix subscribed to, to recognise a publisher that uses another.
        settings: times and limits.
        clock: monotonic seconds.

    Attributes:
        snapshot_failure: why the last snapshot could not be had or used; empty if none failed.
    """

    def __init__(
        self,
        effects: Effects,
        machine: StateMachine,
        counters: SourceCounters,
        *,
        has_replay: bool,
        snapshot: bool | None = None,
        topic: bytes = b"",
        settings: DeliverySettings,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(
            effects,
            machine,
            counters,
            has_replay=has_replay,
            snapshot=snapshot,
            topic=topic,
            settings=settings,
            clock=clock,
        )
        self._lease_end: float | None = clock() + settings.lost_grace_s

    @property
    def last_sequence(self) -> int | None:
        """The last number applied."""
        return self._picture.last

    def deadline(self) -> float | None:
        """When `tick` wants to be called next, on the tracker's clock; None: not before other news."""
        if not self._standing.connected:
            return self._lease_end
        if self._request is not None:
            return self._request.deadline
        if not self._can_probe():
            return None
        return min(self._next_probe, self._next_snapshot) if self._wants_snapshot() else self._next_probe

    def resume(self, position: Position) -> None:
        """Goes on from where an earlier tracker was, with all of that in the sink; before any news."""
        self._picture.adopt(position.sequence, position.digest, None)

    # News: what happened.

    def connected(self) -> None:
        """The live socket has reached a publisher, for the first time or again."""
        reconnected = self._standing.connect()
        self._lease_end = None
        self._count.reconnects += reconnected
        self._heard = self._vouched = None
        self._distrusted = False
        self._may_mend = True
        self._contradictions = self._doubts = 0
        self._retry_s = self._snapshot_retry_s = self._settings.idle_probe_s
        self._next_snapshot = 0.0
        self._offers = self._said
        if self._is_unproven:
            self._count.restarts += 1
            self._forget()
        if not self._has_replay:
            if reconnected and self._picture.last is not None:
                self._blame(
                    Reason.UNSEEN_TIME, "the connection broke; without a replay endpoint what was missed is unknown"
                )
        elif self._picture.last is not None:
            self._ask(Reason.RECONNECTED)
        elif self._offers:
            self._ask_snapshot()
        else:
            self._ask(Reason.FIRST_REPLAY)
        self._move()

    def barred(self, why: str | None) -> None:
        """The publisher and this side could not agree on keys; None: nobody is there to agree with."""
        self._standing.barred = why
        self._move()

    def disconnected(self) -> None:
        """The publisher is gone; ZMQ goes on trying to reach it."""
        self._standing.connected = False
        self._lease_end = self._clock() + self._settings.lost_grace_s
        self._request = None
        self._held.clear()  # whoever is reached next is asked for all of it
        self._horizon = self._picture.last
        self._move()

    def live(self, message: Message) -> None:
        """A message of the live socket."""
        sequence, payload = message.sequence, message.payload
        self._count.received += 1
        self._count.received_bytes += len(payload)
        self._standing.hear_live()
        before, self._heard = self._heard, sequence
        request = self._request
        if not self._standing.connected and self._has_replay:
            self._count.held_dropped += 1  # read after its connection broke: the replay socket will tell whose it was
            return
        if request is not None and not (request.is_probe and not self._held and sequence == self._picture.next):
            self._count.gaps += before is not None and sequence > before + 1
            if before is not None and sequence <= before and not self._is_held(sequence, payload):
                self._held.clear()  # the stream moved back: what is held is from before a restart
                self._horizon = sequence
            self._hold_live(sequence, payload)
        else:
            self._count.gaps += self._picture.last is not None and sequence > self._picture.next
            self._judge(sequence, payload)
        self._move()

    def live_all(self, batches: Sequence[tuple[int, bytes]]) -> None:
        """Messages of the live socket, (sequence, payload), as if each came to `live`: cheaper where they go on."""
        place = 0
        while place < len(batches):
            taken = self._take_run(batches[place:] if place else batches)
            if not taken:
                self.live(Message(*batches[place], topic=None))
            place += taken or 1

    def reply(self, message: Message) -> None:
        """One batch of the answer to the replay request."""
        request = self._request
        if not isinstance(request, ReplayRequest):
            return
        if not request.is_probe:
            request.deadline = self._clock() + self._settings.replay_timeout_s
        self._note_answer()
        if request.is_probe and request.overdue:
            self._wait_out(request)
        if message.topic is not None:
            self._standing.compare_topic(message.topic)
        if request.answered or self._judge_first_reply(request, message):
            self._place_reply(request, message.sequence, message.payload)
        self._move()

    def end(self) -> None:
        """The answer to the replay request is complete."""
        request = self._request
        if request is None:
            return
        self._note_answer()
        if isinstance(request, SnapshotRequest):
            self._refuse_snapshot()
        elif not request.answered and (request.checks or request.purpose is Reason.MENDING):
            self._contradicted(request)  # it does not know what its own engine published
        else:
            self._request = None
            self._settle(request)
        self._move()

    def snapshot(self, head: bytes, chunk: bytes) -> None:
        """An answer to a request for a snapshot."""
        if isinstance(self._request, SnapshotRequest):
            self._take_chunk(self._request, head, chunk)
            self._move()

    def tick(self) -> None:
        """Time has passed.

        Ends requests that brought nothing, asks an idle source whether a batch was lost, and lets go of what a source
        holds that has been gone for too long.
        """
        now = self._clock()
        request = self._request
        if not self._standing.connected:
            if self._lease_end is not None and now >= self._lease_end:
                self._expire()
        elif isinstance(request, SnapshotRequest):
            if now >= request.deadline:
                self._wait_for_snapshot(request)
        elif request is not None:
            if now >= request.deadline:
                self._time_out(request)
        elif self._can_probe() and now >= self._next_probe:
            fault = self._picture.fault
            self._count.probes += 1
            self._ask(Reason.MENDING if fault is not None and fault.mendable else Reason.IDLE)
        self._move()

    def _expire(self) -> None:
        self._lease_end = None
        self._standing.expired = True
        self._count.expired += 1
        self._forget()

    def _wants_snapshot(self) -> bool:
        """Whether one would help: there is a fault, and nothing is known to speak against it."""
        return self._picture.fault is not None and self._offers is not False and self._can_ask()

    def _move(self) -> None:
        """The end of all news: a fault that a snapshot may mend has one fetched, and the state follows."""
        if self._request is None and self._wants_snapshot() and self._can_ask_snapshot():
            self._ask_snapshot()
        self._standing.show(self._picture, self._request)

    # Live messages.

    def _take_run(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """Applies the first batches as far as each continues the picture and nothing else happens; how many."""
        picture = self._picture
        if self._request is not None or not self._standing.connected:
            return 0
        first = picture.next
        on = next((place for place, (sequence, _) in enumerate(batches) if sequence != first + place), len(batches))
        taken = picture.take_run(batches[:on]) if on else 0
        if taken:
            self._count.received += taken
            self._count.received_bytes += sum(len(payload) for _, payload in batches[:taken])
            self._standing.hear_live()
            self._heard = first + taken - 1
            self._note_taken(self._heard)
            self._move()
        return taken

    def _judge(self, sequence: int, payload: bytes) -> None:
        """Decides about a live batch while no replay is under way that it would have to wait for."""
        picture = self._picture
        if sequence == picture.next:
            self._take(sequence, payload)
        elif sequence < picture.next:
            self._judge_old(sequence, payload)
        elif self._can_ask():
            self._hold_live(sequence, payload)
            self._ask(Reason.FIRST_REPLAY if picture.last is None else Reason.GAP)
        else:
            missing = sequence - picture.next
            self._count.missing += missing
            because = "the replay socket cannot be asked" if self._has_replay else "there is no replay endpoint"
            if picture.last is None:
                self._blame(Reason.LATE_JOIN, f"joined at sequence {sequence}, {because}: earlier blocks are unknown")
            else:
                self._blame(Reason.GAP_UNREPAIRED, f"{missing} batches before sequence {sequence} were lost, {because}")
            self._take(sequence, payload)

    def _judge_old(self, sequence: int, payload: bytes) -> None:
        same = self._picture.same(sequence, payload)
        if same:
            self._count.duplicates += 1
            self._vouch(sequence)
        elif same is None and self._picture.skipped(sequence):
            self._count.late += 1  # what came after it is applied
        elif same is None and sequence > 0 and self._can_ask():
            self._hold_live(sequence, payload)
            self._ask(Reason.OLD_SEQUENCE)
        else:
            self._count.restarts += 1
            self._forget()
            self._judge(sequence, payload)

    def _hold_live(self, sequence: int, payload: bytes) -> None:
        self._see(sequence)
        self._hold(sequence, payload)

    def _is_held(self, sequence: int, payload: bytes) -> bool:
        return sequence in self._held and self._held[sequence] == payload
