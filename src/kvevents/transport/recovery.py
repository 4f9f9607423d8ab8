"""Asks the replay socket for what is missing, and places the batches that come back."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from kvevents.transport.frames import Message
from kvevents.transport.held import HeldBatches
from kvevents.transport.picture import Effects, Picture, starts_late
from kvevents.transport.request import ReplayRequest, SnapshotRequest
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.standing import Standing
from kvevents.transport.state import Fault, Reason, SourceCounters, StateMachine

_MAX_CONTRADICTIONS = 3


class Recovery(ABC):
    """The part of a `SequenceTracker` that has to do with replays; see there for the arguments."""

    def __init__(
        self,
        effects: Effects,
        machine: StateMachine,
        counters: SourceCounters,
        *,
        has_replay: bool,
        snapshot: bool | None,
        topic: bytes,
        settings: DeliverySettings,
        clock: Callable[[], float],
    ) -> None:
        self._effects = effects
        self._count = counters
        self._has_replay = has_replay
        self._settings = settings
        self._clock = clock
        self._picture = Picture(effects, counters, settings.window)
        self._standing = Standing(machine, has_replay=has_replay, topic=topic)
        self._held = HeldBatches(settings.hold_batches, settings.hold_bytes)
        self._request: ReplayRequest | SnapshotRequest | None = None
        self._horizon: int | None = None  # the highest number known to be published
        self._heard: int | None = None  # the last number that came live over this connection
        self._vouched: int | None = None  # the highest number applied whose bytes came live over this connection
        self._distrusted = False  # the replay socket speaks of another stream than the live one
        self._may_mend = True  # a full replay has not failed in its middle over this connection
        self._contradictions = 0  # of one recovery
        self._doubts = 0  # contradictions of what came live, until both sockets agree
        self._retry_s = settings.idle_probe_s
        self._next_probe = 0.0
        self._said = snapshot  # whether the publisher offers snapshots, as the source says
        self._offers = snapshot  # the same, as far as is known
        self._is_unproven = False  # the picture comes from a snapshot that did not say whose it is
        self._snapshot_retry_s = settings.idle_probe_s
        self._next_snapshot = 0.0
        self.snapshot_failure = ""

    @abstractmethod
    def _judge(self, sequence: int, payload: bytes) -> None:
        """Decides about a live batch while no replay is under way that it would have to wait for."""

    @abstractmethod
    def _can_ask_snapshot(self) -> bool:
        """Whether there may be a snapshot, and none was asked for a moment ago."""

    @abstractmethod
    def _ask_snapshot(self) -> None:
        """Asks for a snapshot; it takes the place of whatever else was asked."""

    # Replies.

    def _judge_first_reply(self, request: ReplayRequest, message: Message) -> bool:
        """Tells the incarnation by the first reply; whether that reply is to be placed."""
        sequence = message.sequence
        if sequence < request.start:
            return False  # a server that begins earlier than asked
        request.answered = True
        if not request.checks:
            if request.purpose is Reason.MENDING:
                return self._begin_mending(sequence)
            return True
        if sequence == request.start:
            if self._picture.same(sequence, message.payload) is False:
                self._contradicted(request)
            elif self._vouched is not None and self._vouched >= sequence:
                self._doubts = 0  # both sockets say the same
            return False
        if not request.is_probe or sequence > self._picture.next:
            # The buffer has moved on: whether this is the same engine cannot be known.
            if self._can_ask_snapshot():
                self._ask_snapshot()
                return False
            self._forget()
            self._picture.blame(starts_late(sequence, request.start))
        return True

    def _begin_mending(self, first: int) -> bool:
        if first == 0:
            self._forget()
        elif self._can_ask_snapshot():
            self._ask_snapshot()
            return False
        else:
            self._picture.blame(starts_late(first, 0))
        return True

    def _place_reply(self, request: ReplayRequest, sequence: int, payload: bytes) -> None:
        picture = self._picture
        if picture.last is None and sequence > 0:
            if self._can_ask_snapshot():
                self._ask_snapshot()
                return
            self._count.missing += sequence
            picture.blame(starts_late(sequence, 0))
            self._take(sequence, payload, replayed=True)
        elif sequence == picture.next:
            self._take(sequence, payload, replayed=True)
        elif sequence < picture.next:
            if picture.same(sequence, payload) is False:
                self._contradicted(request)
            else:
                self._count.duplicates += 1
            return
        else:
            self._see(sequence)
            if sequence in self._held or not self._hold(sequence, payload):
                return
        request.note_new(sequence)

    def _settle(self, request: ReplayRequest) -> None:
        """After a replay: applies what is held, and asks again or gives up where numbers are still missing."""
        if request.probed:
            self._count.found_by_probe += request.brought
            self._standing.note_probe(found=request.brought > 0, heard_live=self._heard is not None)
        if not self._release_in_order(request):
            return
        if self._is_behind() and request.ceiling is not None and not self._is_better(request):
            self._give_up(request.ceiling)
        if self._is_behind():
            self._ask(Reason.FIRST_REPLAY if self._picture.last is None else Reason.GAP)
            return
        self._contradictions = 0
        self._held.reopen()
        if request.probed and self._picture.fault is None:
            self._snapshot_retry_s = self._settings.idle_probe_s  # the last one, if any, has proved its worth
        settings = self._settings
        self._next_probe = self._clock() + (settings.idle_probe_s if request.probed else settings.settle_s)

    def _release_in_order(self, request: ReplayRequest) -> bool:
        """Applies held batches up to the first hole; False if they contradict what was replayed."""
        picture = self._picture
        for sequence in self._held:
            payload = self._held[sequence]
            if sequence > picture.next:
                break
            if sequence < picture.next and picture.same(sequence, payload) is False:
                self._contradicted(request)
                return False
            self._held.pop(sequence)
            if sequence == picture.next:
                self._take(sequence, payload)
            else:
                self._count.duplicates += 1
                self._vouch(sequence)
        return True

    def _is_better(self, request: ReplayRequest) -> bool:
        """Whether the replay made the first hole smaller or, as far as all of it could be held, another one."""
        return request.hole != self._hole() or (request.filled and self._held.cut is None)

    def _give_up(self, ceiling: int) -> None:
        """Accepts that what is missing below `ceiling` will not come, and applies what is held above it."""
        picture, cut = self._picture, self._held.cut
        missing = 0
        for sequence in self._held:
            if sequence > ceiling and sequence != picture.next:
                break
            missing += sequence - picture.next
            payload = self._held[sequence]
            self._held.pop(sequence)
            self._take(sequence, payload)
        self._count.missing += missing
        if cut is None and picture.next <= ceiling:
            missing += ceiling + 1 - picture.next  # counted when the next batch shows the gap again
            self._horizon = picture.last if self._held.highest is None else self._held.highest
        self._blame(
            Reason.BATCH_MISSING,
            f"{missing} batches up to sequence {ceiling} were dropped by the publisher or have left its replay buffer",
            mendable=False,
        )

    # Requests.

    def _can_ask(self) -> bool:
        return self._has_replay and self._standing.silent is None and not self._distrusted

    def _can_probe(self) -> bool:
        return self._has_replay and self._standing.connected and not self._distrusted

    def _ask(self, purpose: Reason) -> None:
        settings = self._settings
        last = None if purpose is Reason.MENDING else self._picture.last
        self._request = ReplayRequest(
            purpose,
            start=last or 0,
            checks=last is not None,
            ceiling=self._horizon if self._is_behind() else None,
            hole=self._hole(),
            deadline=self._clock()
            + (settings.probe_timeout_s if purpose is Reason.IDLE else settings.replay_timeout_s),
        )
        self._held.reopen()
        self._count.requests += 1
        self._effects.ask(self._request.start)

    def _note_answer(self) -> None:
        self._standing.silent = None
        self._retry_s = self._settings.idle_probe_s

    def _time_out(self, request: ReplayRequest) -> None:
        settings = self._settings
        if request.is_probe and request.answered:
            self._wait_out(request)
            return
        self._count.timeouts += 1
        if request.is_probe and not request.overdue and settings.replay_timeout_s > settings.probe_timeout_s:
            # An answer still counts, but until it comes a loss would go unnoticed.
            request.overdue = True
            request.deadline += settings.replay_timeout_s - settings.probe_timeout_s
            self._standing.miss_reply(settings.probe_timeout_s)
            return
        self._request = None
        self._standing.miss_reply(settings.replay_timeout_s)
        if request.purpose is Reason.MENDING and request.answered:
            self._may_mend = False  # it would clear, and fail in the same place, again and again
        if request.purpose is Reason.RECONNECTED:
            self._blame(Reason.UNSEEN_TIME, "the connection broke and the replay socket does not say what was missed")
        self._put_off_probe()
        self._release_held()

    def _wait_out(self, probe: ReplayRequest) -> None:
        """A probe's answer takes its time: until its end the picture is in doubt, and what comes live has to wait."""
        probe.purpose = Reason.FOUND_BY_PROBE
        probe.deadline = self._clock() + self._settings.replay_timeout_s

    def _put_off_probe(self) -> None:
        """A replay socket that does not answer is asked less and less often."""
        self._next_probe = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, max(self._settings.retry_max_s, self._settings.idle_probe_s))

    def _release_held(self) -> None:
        """Judges what is held without a replay."""
        for sequence in self._held:
            payload = self._held[sequence]
            self._held.pop(sequence)
            self._judge(sequence, payload)
        self._horizon = self._picture.last

    def _contradicted(self, request: ReplayRequest) -> None:
        """The replay socket has other bytes for a known number, or does not know it: a new incarnation.

        If the live socket vouches for that number over one unbroken connection, something in between keeps
        connections open, or the two sockets belong to different publishers. A live batch will tell: until one
        agrees with the replay socket the source is not trusted, and where it goes on like that the replay socket is
        not.
        """
        vouched = self._vouched is not None and self._vouched >= request.start
        self._contradictions += 1
        self._doubts += vouched
        if max(self._contradictions, self._doubts) >= _MAX_CONTRADICTIONS:
            self._request = None
            self._distrusted = True
            self._release_held()
            self._picture.fault = None  # whatever it was, this is its root
            self._blame(
                Reason.REPLAY_MISMATCH,
                "the replay socket does not repeat what the live socket brought: do both belong to the same rank,"
                " and is the engine's buffer_steps above 0?",
            )
            return
        if vouched:
            self._standing.doubt_restart()
        self._count.restarts += 1
        self._forget()
        self._ask(Reason.RESTARTED)

    # The picture.

    def _is_behind(self) -> bool:
        return self._horizon is not None and self._horizon >= self._picture.next

    def _hole(self) -> tuple[int, int | None]:
        return self._picture.next, self._held.lowest

    def _take(self, sequence: int, payload: bytes, *, replayed: bool = False) -> None:
        self._see(sequence)
        self._picture.take(sequence, payload, replayed=replayed)
        if not replayed and self._heard is not None and sequence <= self._heard:
            self._note_taken(sequence)

    def _note_taken(self, sequence: int) -> None:
        """`sequence`, just applied, came live over this connection."""
        self._see(sequence)
        self._vouch(sequence)
        fault = self._picture.fault
        if self._standing.silent is None and (fault is None or not fault.mendable):
            self._next_probe = self._clock() + self._settings.idle_probe_s

    def _forget(self) -> None:
        self._picture.forget()
        self._vouched = None
        self._is_unproven = False
        self._horizon = self._held.highest  # what is held came from the new incarnation

    def _blame(self, reason: Reason, detail: str, *, mendable: bool = True) -> None:
        """Notes a fault; without a replay socket that can be trusted, no full replay mends it."""
        mendable = mendable and self._has_replay and self._may_mend and not self._distrusted
        self._picture.blame(Fault(reason, detail, mendable))

    def _see(self, sequence: int) -> None:
        """`sequence` has been published."""
        self._horizon = sequence if self._horizon is None else max(self._horizon, sequence)

    def _hold(self, sequence: int, payload: bytes) -> bool:
        self._count.held_dropped += self._held.add(sequence, payload)
        return sequence in self._held

    def _vouch(self, sequence: int) -> None:
        self._standing.unconfirmed = None
        self._vouched = sequence if self._vouched is None else max(self._vouched, sequence)
