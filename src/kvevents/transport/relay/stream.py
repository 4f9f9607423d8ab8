"""One source and what is published of it, without sockets."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from kvevents.errors import WireError
from kvevents.events import SkippedEvent
from kvevents.transport.relay.backlog import Backlog, Sent
from kvevents.transport.relay.lane import Lane, batch_rank
from kvevents.transport.relay.settings import RelaySettings
from kvevents.transport.relay.stats import StreamState, StreamStats
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState, State
from kvevents.wire import Dialect

MOST_RANKS = 1_024
_BACK_PRESSURE_S = 0.05


class Added(NamedTuple):
    """What became of a batch, as a subscriber reads it.

    Attributes:
        skipped: events that could not be read; they go on as they came.
    """

    skipped: list[SkippedEvent]


class Stream:
    """Takes the batches of a source, coalesces those of a window, numbers them anew, and can repeat them.

    Ranks never share a batch. A new life of the source, or a loss that cannot be repaired, becomes an
    `AllBlocksCleared` of every rank. Numbers are contiguous but where the relay has to say that it cannot vouch for
    its picture: while its source is not live a number is left out, once, and an empty batch follows, so that a
    consumer sees the gap, asks, gets nothing, and is `degraded` until a clear or a snapshot; whoever knows no such
    states goes on.

    Thread-safe: batches come from a subscriber's thread, everything else is called by the relay's.

    Args:
        source: whose batches come.
        settings: windows and limits.
        wake: called when something waits that did not wait before.
    """

    def __init__(self, source: Source, settings: RelaySettings, wake: Callable[[], None]) -> None:
        self.source = source
        self.stats = StreamStats()
        self._settings = settings
        self._wake = wake
        self._changed = threading.Condition()
        self._closing = False
        self._lanes: dict[int | None, Lane] = {}
        self._backlog = Backlog(settings)
        self._next = 0
        self._taken: int | None = None  # the source's last number
        self._since: float | None = None  # when the window began
        self._is_full = False
        self._state = (State.CONNECTING, "not reached so far")
        self._unlive_since: float | None = time.monotonic()
        self._vouched = True

    # The source's side.

    def add(self, payload: bytes, sequence: int | None) -> Added:
        """Adds a batch of the source.

        Raises:
            WireError: it is broken. What it said is lost, and that is said to consumers.
        """
        with self._changed:
            self._wait_for_room()
            if sequence is not None:
                if self._taken is not None and sequence > self._taken + 1:
                    self.stats.missing += sequence - self._taken - 1
                    self._lose()
                self._taken = sequence
            self.stats.received += 1
            self.stats.received_bytes += len(payload)
            lane = self._lane(batch_rank(payload))
            try:
                skipped = lane.add(payload)
            except (WireError, ValueError) as error:
                self.stats.refused += 1
                self._lose()
                if isinstance(error, WireError):
                    raise
                raise WireError(str(error), 0) from error
            self._note_pending(lane)
            return Added(skipped)

    def clear(self) -> None:
        """The source begins anew, with nothing held."""
        with self._changed:
            self._taken = None
            self._clear()

    def note_state(self, state: SourceState) -> None:
        """The source's state has changed."""
        with self._changed:
            self._state = (state.state, state.reason)
            if state.state is State.LIVE:
                self._unlive_since = None
            elif self._unlive_since is None:
                self._unlive_since = time.monotonic()
                self._vouched = True
        self._wake()

    # The relay's side.

    @property
    def is_vouched(self) -> bool:
        """Whether the picture is known to be complete."""
        return self._unlive_since is None

    def deadline(self) -> float | None:
        """When `flush` has something to do, monotonic seconds."""
        with self._changed:
            return self._deadline()

    def flush(self, now: float, *, force: bool = False) -> list[Sent]:
        """Ends the window if it is time; the batches to be sent, numbered."""
        with self._changed:
            deadline = self._deadline()
            if not force and (deadline is None or now < deadline):
                return []
            sent = self._take()
            doubtful = self._unlive_since is not None and self._vouched
            if doubtful and self._unlive_since is not None and now >= self._unlive_since + self._settings.unvouched_s:
                sent.append(self._leave_hole())
            return sent

    def sent(self, batches: list[Sent], now: float) -> None:
        """The batches of a flush are on their way: they can be repeated from now on."""
        with self._changed:
            for batch in batches:
                self._backlog.append(batch)
                self.stats.sent += 1
                self.stats.sent_bytes += len(batch.payload)
            self._backlog.age(now)

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        """The batches from number `start` on, as for an ordinary replay request."""
        with self._changed:
            self.stats.replays += 1
            self.stats.compacted_replays += start <= self._backlog.compacted_to
            batches = self._backlog.since(start, self._dialect())
            self.stats.replayed += len(batches)
            return batches

    def note_malformed(self) -> None:
        """Something came that is no request."""
        self.stats.malformed_requests += 1

    def state(self) -> StreamState:
        """The stream at this moment."""
        with self._changed:
            state, reason = self._state
            return StreamState(
                self.source.worker_id,
                self.source.dp_rank,
                str(state),
                reason,
                self._next - 1 if self._next else None,
                self._taken,
                self._backlog.recent_batches,
                self._backlog.recent_bytes,
                self._backlog.compacted_bytes,
                StreamStats(*(getattr(self.stats, name) for name in StreamStats.__struct_fields__)),
            )

    def close(self) -> None:
        """A source that waits for room waits no more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _lane(self, rank: int | None) -> Lane:
        lane = self._lanes.get(rank)
        if lane is None:
            if len(self._lanes) >= MOST_RANKS:
                raise WireError(f"expected at most {MOST_RANKS} ranks from one source, got another one, {rank}", 0)
            lane = self._lanes[rank] = Lane(rank, self._settings.coalesce, self._settings.dialect, self.stats)
        return lane

    def _dialect(self) -> Dialect:
        return next((lane.dialect for lane in self._lanes.values()), "sglang")

    def _wait_for_room(self) -> None:
        if self._pending() <= self._settings.pending_bytes:
            return
        self.stats.waits += 1
        while not self._closing and self._pending() > self._settings.pending_bytes:
            self._changed.wait(_BACK_PRESSURE_S)

    def _pending(self) -> int:
        return sum(lane.pending_bytes for lane in self._lanes.values())

    def _note_pending(self, lane: Lane) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self._wake()
        if not self._is_full and lane.pending_bytes >= self._settings.batch_bytes:
            self._is_full = True
            self._wake()

    def _lose(self) -> None:
        """Something that the source said is lost for good."""
        self.stats.gaps += 1
        self._clear()

    def _clear(self) -> None:
        self.stats.clears += 1
        for lane in self._lanes.values() or [self._lane(self.source.dp_rank)]:
            lane.clear()
            self._note_pending(lane)
        self._vouched = True  # consumers begin anew: if the source is not live, they have to be told again
        if self._unlive_since is not None:
            self._unlive_since = time.monotonic()

    def _deadline(self) -> float | None:
        if self._is_full:
            return 0.0
        times = [] if self._since is None else [self._since + self._settings.window_s]
        if self._unlive_since is not None and self._vouched:
            times.append(self._unlive_since + self._settings.unvouched_s)
        return min(times, default=None)

    def _take(self) -> list[Sent]:
        self._since, self._is_full = None, False
        at = time.time()
        sent = [
            Sent(0, payload, lane.rank, at)
            for lane in self._lanes.values()
            if lane.pending_bytes
            for payload in lane.take()
        ]
        for place, batch in enumerate(sent):
            sent[place] = batch._replace(sequence=self._next + place)
        self._next += len(sent)
        self._changed.notify_all()
        return sent

    def _leave_hole(self) -> Sent:
        self._vouched = False
        self.stats.holes += 1
        lane = self._lanes.get(self.source.dp_rank) or next(iter(self._lanes.values()), None)
        lane = lane or self._lane(self.source.dp_rank)
        self._next += 2
        return Sent(self._next - 1, lane.encode([]), lane.rank, time.time())
