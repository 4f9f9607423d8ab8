"""One worker's rank as the log and the registry show it: what was applied, what is missing, whether it lives."""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kvevents.errors import WireError
from kvevents.transport.jetstream.names import MessageId
from kvevents.transport.jetstream.registry import WorkerRecord
from kvevents.transport.sink import EventSink, judge
from kvevents.transport.state import Fault, Reason, SourceCounters, SourceState, State, StateMachine

_log = logging.getLogger(__name__)

_PAST_KEPT = 64


class Circumstances(NamedTuple):
    """What holds for every source of a log at one moment.

    Attributes:
        broken: why there is no connection to the broker; None if there is.
        caught_up: whether everything has been read that was in the log when the connection began.
        goal: the position up to which that is.
        now: monotonic seconds.
    """

    broken: str | None
    caught_up: bool
    goal: int
    now: float


class LogSource:
    """Takes a source's messages in the order of the log, hands its batches to the sink, and keeps its state.

    The log keeps order, so there is nothing to hold back: a number that is skipped will not come.

    Args:
        worker: the worker's id.
        rank: its data-parallel rank.
        sink: takes the batches.
        on_change: called after each change of state.
        max_batch_bytes: a batch in parts that would be larger is given up.

    Attributes:
        record: what the registry says; None: nothing, or no more.
        lease_until: until when it is taken to be alive, monotonic seconds.
        gone_since: since when it is not, monotonic seconds; None while it is.
        has_left: its publisher said goodbye.
        is_forgotten: its blocks were dropped after it had been gone for long.
        told: the last state that whoever listens was told.
    """

    def __init__(
        self, worker: str, rank: int, sink: EventSink, on_change: Callable[["LogSource"], None], max_batch_bytes: int
    ) -> None:
        self.worker, self.rank = worker, rank
        self.record: WorkerRecord | None = None
        self.lease_until = 0.0
        self.gone_since: float | None = None
        self.is_forgotten = False
        self.has_left = False
        self.told = State.CONNECTING
        self.incarnation: str | None = None
        self.last: int | None = None
        self.fault: Fault | None = None
        self._sink = sink
        self._max_batch_bytes = max_batch_bytes
        self._count = SourceCounters()
        self._machine = StateMachine(self._count, lambda: on_change(self), "known, its batches are not read yet")
        self._past: deque[str] = deque(maxlen=_PAST_KEPT)
        self._parts: list[bytes] = []
        self._parts_of: tuple[str, int] | None = None
        self._has_logged = False

    def state(self) -> SourceState:
        """What is known; any thread may ask."""
        return self._machine.snapshot(self.last)

    # What the log brings.

    def take(self, message: MessageId, data: bytes, *, replayed: bool) -> None:
        """The next message of this source in the log."""
        count = self._count
        count.received += 1
        count.received_bytes += len(data)
        if message.incarnation != self.incarnation:
            if message.incarnation in self._past:
                count.late += 1  # an engine that another has followed
                return
            self._begin(message.incarnation)
        if self.last is not None and message.sequence <= self.last:
            count.duplicates += 1
            return
        payload = data if message.parts == 1 else self._join(message, data)
        if payload is None:
            return
        self._note_missing(message.sequence)
        self.last = message.sequence
        count.applied += 1
        count.replayed += replayed
        self._apply(message.sequence, payload)

    def take_malformed(self) -> None:
        """A message that is none of ours."""
        self._count.malformed += 1

    # What the registry brings.

    def confirm(self, position: int) -> None:
        """Compares the record with what was read up to `position`: a restart, or last batches that were dropped."""
        record = self.record
        if record is None or self.is_forgotten or record.incarnation in self._past:
            return
        if record.incarnation != self.incarnation:
            self._begin(record.incarnation)
        if record.settled is None or position < record.position:
            return
        missing = record.settled - (-1 if self.last is None else self.last)
        if missing > 0:
            self._count.gaps += 1
            self._count.missing += missing
            self._count.found_by_probe += missing
            self._blame(
                Reason.GAP_UNREPAIRED,
                f"the publisher dropped its last {missing} batches, up to sequence {record.settled}:"
                " its queue was full, or they were too large",
            )
            self.last = record.settled

    def forget(self) -> None:
        """Drops what it holds; if it comes back, its log is to be read again (`reset`)."""
        self.is_forgotten = True
        self._count.expired += 1
        self._clear()

    def reset(self) -> None:
        """Begins anew, as if never seen: all of its messages follow."""
        self.is_forgotten = False
        self.incarnation = self.last = self.fault = None
        self._past.clear()
        self._parts_of = None
        self._clear()

    def restore(self, incarnation: str | None, last: int | None, fault: Fault | None, *, is_forgotten: bool) -> None:
        """Takes over where a snapshot of the sink stands."""
        self.incarnation, self.last, self.fault, self.is_forgotten = incarnation, last, fault, is_forgotten
        self._past.clear()
        self._parts_of = None

    def show(self, around: Circumstances) -> None:
        """Moves to the state that follows from everything known."""
        if around.broken is not None:
            self._machine.move(Reason.CONNECTION_LOST, around.broken)
            return
        if not around.caught_up:
            self.gone_since = None
        elif around.now >= self.lease_until:
            self.gone_since = around.now if self.gone_since is None else self.gone_since
            if self.has_left:
                self._machine.move(Reason.LEFT, "its publisher has ended")
            else:
                self._machine.move(Reason.LEASE_EXPIRED, "its publisher has not renewed its lease")
            return
        else:
            self.gone_since = None
        if self._machine.state in {State.CONNECTING, State.LOST}:
            self._machine.move(Reason.FIRST_REPLAY, "found in the log")
        if self.fault is not None:
            self._machine.move(self.fault.reason, self.fault.detail)
        elif not around.caught_up:
            self._machine.move(Reason.FIRST_REPLAY, f"reading the log up to position {around.goal}")
        else:
            self._machine.move(Reason.COMPLETE, "nothing is missing")

    # Its own.

    def _begin(self, incarnation: str) -> None:
        if self.incarnation is not None:
            self._past.append(self.incarnation)
            self._count.restarts += 1
        self.incarnation = incarnation
        self.last = self.fault = None
        self._clear()

    def _join(self, message: MessageId, data: bytes) -> bytes | None:
        """The whole batch once its last part is here."""
        of = message.incarnation, message.sequence
        if message.part == 0:
            self._parts, self._parts_of = [], of
        if self._parts_of != of or len(self._parts) != message.part:
            self._parts_of = None  # a part is missing: so is the batch, as the next one will show
            return None
        self._parts.append(data)
        if message.parts * len(self._parts[0]) > self._max_batch_bytes:
            self._count.refused += 1
            self._parts_of = None
            return None
        if message.part < message.parts - 1:
            return None
        self._parts_of = None
        return b"".join(self._parts)

    def _note_missing(self, sequence: int) -> None:
        missing = sequence - (0 if self.last is None else self.last + 1)
        if missing <= 0:
            return
        self._count.missing += missing
        self._count.gaps += 1
        if self.last is None:
            detail = (
                f"its log begins at sequence {sequence}: earlier blocks are unknown; a larger log, or snapshots, help"
            )
            self._blame(Reason.LATE_JOIN, detail)
        else:
            detail = (
                f"{missing} batches before sequence {sequence} are not in the log: dropped by the publisher, or too old"
            )
            self._blame(Reason.GAP_UNREPAIRED, detail)

    def _blame(self, reason: Reason, detail: str) -> None:
        if self.fault is None:  # the first is the root of later ones
            self.fault = Fault(reason, detail, mendable=False)

    def _apply(self, sequence: int, payload: bytes) -> None:
        try:
            report = self._sink.apply(self.worker, payload, seq=sequence, dp_rank=self.rank)
        except WireError as error:
            self._count.refused += 1
            self._blame(Reason.BATCH_REFUSED, f"batch {sequence} is broken: {error}")
            return
        except Exception as error:
            self._note_failure(error, f"batch {sequence} could not be applied")
            self._blame(Reason.SINK_FAILED, f"batch {sequence} could not be applied: {type(error).__name__}: {error}")
            return
        verdict = judge(report, sequence, payload)
        if verdict.cleared:
            self.fault = None
        if verdict.fault is not None:
            self._count.skipped += 1
            self._blame(verdict.fault.reason, verdict.fault.detail)

    def _clear(self) -> None:
        self._count.clears += 1
        try:
            self._sink.clear_worker(self.worker, self.rank)
        except Exception as error:
            self._note_failure(error, "what it held could not be cleared")

    def _note_failure(self, error: Exception, what: str) -> None:
        self._count.failed += 1
        if not self._has_logged:
            self._has_logged = True
            _log.error("%s rank %d: %s; later failures are only counted", self.worker, self.rank, what, exc_info=error)
