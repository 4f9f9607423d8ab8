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
from kvevents.transport.held import HeldBatches
from kvevents.transport.picture import Effects, Picture, starts_late
from kvevents.transport.request import ReplayRequest
from kvevents.transport.settings import DeliverySettings
from kvevents.transport.standing import Standing
from kvevents.transport.state import Fault, Reason, SourceCounters, StateMachine

_MAX_CONTRADICTIONS = 3


class SequenceTracker:
    """The state machine of one source: messages and moments go in, effects and states come out.

    One thread at a time. Each public method that takes news ends by moving the state machine.

    Args:
        effects: what is done to the sink and the replay socket.
        machine: where the state is kept.
        counters: where everything is counted.
        has_replay: whether there is a replay socket to ask.
        topic: the prefix subscribed to, to recognise a publisher that uses another.
        settings: times and limits.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        effects: Effects,
        machine: StateMachine,
        counters: SourceCounters,
        *,
        has_replay: bool,
        topic: bytes = b"",
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
        self._request: ReplayRequest | None = None
        self._horizon: int | None = None  # the highest number known to be published
        self._heard: int | None = None  # the last number that came live over this connection
        self._vouched: int | None = None  # the highest number applied whose bytes came live over this connection
        self._distrusted = False  # the replay socket speaks of another stream than the live one
        self._may_mend = True  # a full replay has not failed in its middle over this connection
        self._contradictions = 0
        self._retry_s = settings.idle_probe_s
        self._next_probe = 0.0

    @property
    def last_sequence(self) -> int | None:
        """The last number applied."""
        return self._picture.last

    def deadline(self) -> float | None:
        """When `tick` wants to be called next, on the tracker's clock; None: not before other news."""
        if self._request is not None:
            return self._request.deadline
        return self._next_probe if self._can_probe() else None

    # News: what happened.

    def connected(self) -> None:
        """The live socket has reached a publisher, for the first time or again."""
        reconnected = self._standing.connect()
        self._count.reconnects += reconnected
        self._heard = self._vouched = None
        self._distrusted = False
        self._may_mend = True
        self._contradictions = 0
        self._retry_s = self._settings.idle_probe_s
        if self._has_replay:
            self._ask(Reason.RECONNECTED if reconnected and self._picture.last is not None else Reason.FIRST_REPLAY)
        elif reconnected and self._picture.last is not None:
            self._blame(
                Reason.RECONNECTED, "the connection broke; without a replay endpoint what was missed is unknown"
            )
        self._move()

    def disconnected(self) -> None:
        """The publisher is gone; ZMQ goes on trying to reach it."""
        self._standing.connected = False
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
        if request is None:
            return
        request.deadline = self._clock() + self._settings.replay_timeout_s
        self._note_answer()
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
        if not request.answered and (request.checks or request.purpose is Reason.MENDING):
            self._contradicted(request)  # it does not know what its own engine published
        else:
            self._request = None
            self._settle(request)
        self._move()

    def tick(self) -> None:
        """Time has passed: ends requests that brought nothing, and asks an idle source whether a batch was lost."""
        now = self._clock()
        if self._request is not None:
            if now >= self._request.deadline:
                self._time_out(self._request)
        elif self._can_probe() and now >= self._next_probe:
            fault = self._picture.fault
            self._count.probes += 1
            self._ask(Reason.MENDING if fault is not None and fault.mendable else Reason.IDLE)
        self._move()

    # Live messages.

    def _take_run(self, batches: Sequence[tuple[int, bytes]]) -> int:
        """Applies the first batches as far as each continues the picture and nothing else happens; how many."""
        picture, fault = self._picture, self._picture.fault
        if self._request is not None or not self._standing.connected:
            return 0
        taken = size = 0
        last = picture.next - 1
        for sequence, payload in batches:
            if sequence != last + 1 or picture.fault is not fault:
                break
            last = sequence
            taken += 1
            size += len(payload)
            picture.take(sequence, payload, replayed=False)
        if taken:
            self._count.received += taken
            self._count.received_bytes += size
            self._standing.hear_live()
            self._heard = last
            self._note_taken(last)
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
                self._blame(Reason.GAP, f"{missing} batches before sequence {sequence} were lost, {because}")
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

    def _see(self, sequence: int) -> None:
        """`sequence` has been published."""
        self._horizon = sequence if self._horizon is None else max(self._horizon, sequence)

    def _hold(self, sequence: int, payload: bytes) -> bool:
        self._count.held_dropped += self._held.add(sequence, payload)
        return sequence in self._held

    def _is_held(self, sequence: int, payload: bytes) -> bool:
        return sequence in self._held and self._held[sequence] == payload

    def _vouch(self, sequence: int) -> None:
        self._vouched = sequence if self._vouched is None else max(self._vouched, sequence)

    # Replies.

    def _judge_first_reply(self, request: ReplayRequest, message: Message) -> bool:
        """Tells the incarnation by the first reply; whether that reply is to be placed."""
        sequence = message.sequence
        if sequence < request.start:
            return False  # a server that begins earlier than asked
        request.answered = True
        if not request.checks:
            if request.purpose is Reason.MENDING:
                self._begin_mending(sequence)
            return True
        if sequence == request.start:
            if self._picture.same(sequence, message.payload) is False:
                self._contradicted(request)
            return False
        if not request.is_probe or sequence > self._picture.next:
            self._forget()  # the buffer has moved on: whether this is the same engine cannot be known
            self._picture.blame(starts_late(sequence, request.start))
        return True

    def _begin_mending(self, first: int) -> None:
        if first == 0:
            self._forget()
        else:
            self._picture.blame(starts_late(first, 0))

    def _place_reply(self, request: ReplayRequest, sequence: int, payload: bytes) -> None:
        picture = self._picture
        if picture.last is None and sequence > 0:
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
        if request.is_probe and request.brought:
            self._count.found_by_probe += request.brought
            self._standing.note_found(heard_live=self._heard is not None)
        if not self._release_in_order(request):
            return
        if self._is_behind() and request.ceiling is not None and not self._is_better(request):
            self._give_up(request.ceiling)
        if self._is_behind():
            self._ask(Reason.FIRST_REPLAY if self._picture.last is None else Reason.GAP)
            return
        self._contradictions = 0
        self._held.reopen()
        settings = self._settings
        self._next_probe = self._clock() + (settings.idle_probe_s if request.is_probe else settings.settle_s)

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
        last = None if purpose is Reason.MENDING else self._picture.last
        self._request = ReplayRequest(
            purpose,
            start=last or 0,
            checks=last is not None,
            ceiling=self._horizon if self._is_behind() else None,
            hole=self._hole(),
            deadline=self._clock() + self._settings.replay_timeout_s,
        )
        self._held.reopen()
        self._count.requests += 1
        self._effects.ask(self._request.start)

    def _note_answer(self) -> None:
        self._standing.silent = None
        self._retry_s = self._settings.idle_probe_s

    def _time_out(self, request: ReplayRequest) -> None:
        settings = self._settings
        self._count.timeouts += 1
        self._request = None
        self._standing.miss_reply(settings.replay_timeout_s)
        if request.purpose is Reason.MENDING and request.answered:
            self._may_mend = False  # it would clear, and fail in the same place, again and again
        if request.purpose is Reason.RECONNECTED:
            self._blame(Reason.RECONNECTED, "the connection broke and the replay socket does not say what was missed")
        self._next_probe = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, max(settings.retry_max_s, settings.idle_probe_s))
        self._release_held()

    def _release_held(self) -> None:
        """Judges what is held without a replay."""
        for sequence in self._held:
            payload = self._held[sequence]
            self._held.pop(sequence)
            self._judge(sequence, payload)
        self._horizon = self._picture.last

    def _contradicted(self, request: ReplayRequest) -> None:
        """The replay socket has other bytes for a known number, or does not know it: a new incarnation.

        Unless the live socket vouches for that number over one unbroken connection, or it goes on like
        that: then the two sockets belong to different publishers.
        """
        self._contradictions += 1
        vouched = self._vouched is not None and self._vouched >= request.start
        probing = request.purpose in {Reason.IDLE, Reason.MENDING}
        if (probing and vouched) or self._contradictions >= _MAX_CONTRADICTIONS:
            self._request = None
            self._distrusted = True
            self._release_held()
            self._blame(
                Reason.REPLAY_MISMATCH,
                "the replay socket does not repeat what the live socket brought: do both belong to the same rank,"
                " and is the engine's buffer_steps above 0?",
            )
        else:
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
        self._horizon = self._held.highest  # what is held came from the new incarnation

    def _blame(self, reason: Reason, detail: str, *, mendable: bool = True) -> None:
        """Notes a fault; without a replay socket that can be trusted, no full replay mends it."""
        mendable = mendable and self._has_replay and self._may_mend and not self._distrusted
        self._picture.blame(Fault(reason, detail, mendable))

    def _move(self) -> None:
        self._standing.show(self._picture, self._request)
