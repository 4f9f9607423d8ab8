"""One source and what is published of it, without sockets."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvevents._core.relay import CompactedLog
from kvevents._core.wire import batch_rank
from kvevents.errors import WireError
from kvevents.events import KVEventBatch, SkippedEvent
from kvevents.transport.discovery import MAX_RANKS
from kvevents.transport.picture import Position
from kvevents.transport.relay.backlog import Backlog, Sent, compacted_batches
from kvevents.transport.relay.journal import SKIP, Restored
from kvevents.transport.relay.lane import Lane
from kvevents.transport.relay.settings import RelaySettings
from kvevents.transport.relay.stats import StreamState, StreamStats
from kvevents.transport.replay_server import ReplayServerStats
from kvevents.transport.snapshot import Snapshot, digest_of
from kvevents.transport.source import Source
from kvevents.transport.state import SourceState, State
from kvevents.wire import Dialect, encode_batch

_BACK_PRESSURE_S = 0.05
_COMPACT_BYTES = 16 << 20
_LOSE_S = 10.0
"""Losses that follow each other sooner are taken as one: to look at all that is held takes a while."""
_LOOK = 100
"""Restored batches that are looked at to tell the dialect."""


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
        restored: the stream as an earlier relay left it.
    """

    def __init__(
        self, source: Source, settings: RelaySettings, wake: Callable[[], None], *, restored: Restored | None = None
    ) -> None:
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
        self._last_payload: bytes | None = None  # and the batch
        self._flushed: tuple[int | None, bytes | None] = (None, None)  # both, when the last window ended
        self._position: Position | None = None  # where an earlier relay was, as long as nothing came since
        self._has_begun = False
        self._since: float | None = None  # when the window began
        self._is_full = False
        self._lost_at = float("-inf")
        self._state = (State.CONNECTING, "not reached so far")
        self._unlive_since: float | None = time.monotonic()
        self._vouched = True
        if restored is not None:
            self._restore(restored)

    # The source's side.

    def add(self, payload: bytes, sequence: int | None) -> Added:
        """Adds a batch of the source.

        Raises:
            WireError: it is broken. What it said is lost, and that is said to consumers.
        """
        with self._changed:
            self._wait_for_room()
            if not self._has_begun:
                self._clear()  # whoever held something from another relay, holds nothing of this one
            elif self._taken is not None and sequence is not None and sequence > self._taken + 1:
                self.stats.missing += sequence - self._taken - 1
                self._lose()
            self._taken, self._last_payload = sequence, payload
            self.stats.received += 1
            self.stats.received_bytes += len(payload)
            try:
                rank = batch_rank(payload)
                lane = self._lanes.get(rank) or self._new_lane(rank)
                skipped = lane.add(payload)
            except WireError:
                self.stats.refused += 1
                self._lose()
                raise
            self._lanes[rank] = lane
            self._note_pending(lane)
            return Added(skipped)

    def clear(self) -> None:
        """The source begins anew, with nothing held."""
        with self._changed:
            self._taken = self._last_payload = self._position = None
            self._flushed = (None, None)
            if self._lanes:
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
    def position(self) -> Position | None:
        """How far the source has been followed by what `flush` returned last."""
        sequence, payload = self._flushed
        return self._position if sequence is None or payload is None else Position(sequence, digest_of(payload))

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

    def since(self, start: int, /) -> list[tuple[int, bytes]]:
        """The batches from number `start` on, as for an ordinary replay request."""
        batches: list[tuple[int, bytes]] = []
        with self._changed:
            room = self._backlog.make_room(start) if start <= self._backlog.compacted_to else 0
        with self.frozen() as (logs, compacted_to, recent):
            if start <= compacted_to:
                self.stats.compacted_replays += 1
                compacted = [batch for _, batch in compacted_batches(logs, self.dialect, room=room)]
                batches += enumerate(compacted, compacted_to + 1 - len(compacted))
        # Where there is no room for them above `start`, compacted batches have lower numbers: better than none.
        return batches + [(sent.sequence, sent.payload) for sent in recent if sent.sequence >= start]

    def snapshot(self) -> Snapshot | None:
        """What consumers should hold now; None while the relay cannot vouch for it."""
        with self.frozen() as (logs, compacted_to, recent):
            if self._unlive_since is not None or (self._next and not self._has_begun):
                return None
            sequence = recent[-1].sequence if recent else compacted_to
            if sequence < 0:
                return Snapshot(None, [])
            copies = {rank: log.copy() for rank, log in logs.items()}
        for sent in recent:
            copies.setdefault(sent.rank, CompactedLog()).add(sent.payload)
        return Snapshot(sequence, [batch for _, batch in compacted_batches(copies, self.dialect)])

    def payload_of(self, sequence: int) -> bytes | None:
        """The bytes of a recent batch."""
        with self._changed:
            return next((sent.payload for sent in reversed(self._backlog.recent) if sent.sequence == sequence), None)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[tuple[dict[int | None, CompactedLog], int, list[Sent]]]:
        """The compacted logs, the last number in them, and the batches after it, all of one moment.

        The logs stay as they are meanwhile; batches go on.
        """
        with self._changed:
            backlog = self._backlog
            backlog.frozen += 1
            kept = dict(backlog.logs), backlog.compacted_to, list(backlog.recent)
        try:
            yield kept
        finally:
            with self._changed:
                backlog.frozen -= 1

    def wants_compaction(self) -> bool:
        """Whether so much went into the compacted logs since this was last answered by yes that it is worth it."""
        with self._changed:
            backlog = self._backlog
            if backlog.frozen or backlog.moved_bytes < max(_COMPACT_BYTES, backlog.compacted_bytes // 2):
                return False
            backlog.moved_bytes = 0
            return True

    def check_size(self) -> None:
        """Lets go of everything, at consumers too, if it takes too much room."""
        with self._changed:
            if self._backlog.compacted_bytes > self._settings.state_bytes:
                self._lose()
                self._backlog.logs.clear()

    @property
    def dialect(self) -> Dialect:
        """How the batches are written, as far as it is known."""
        return next((lane.dialect for lane in self._lanes.values()), "sglang")

    def state(self, replays: ReplayServerStats) -> StreamState:
        """The stream at this moment; `replays`: what was repeated of it."""
        with self._changed:
            state, reason = self._state
            self.stats.replays = replays.requests
            self.stats.replayed = replays.replayed
            self.stats.malformed_requests = replays.malformed
            return StreamState(
                self.source.worker_id,
                self.source.dp_rank,
                str(state),
                reason,
                self._next - 1 if self._next else None,
                self._taken,
                len(self._backlog.recent),
                self._backlog.recent_bytes,
                self._backlog.compacted_bytes,
                StreamStats(*(getattr(self.stats, name) for name in StreamStats.__struct_fields__)),
            )

    def close(self) -> None:
        """A source that waits for room waits no more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _new_lane(self, rank: int | None) -> Lane:
        if len(self._lanes) >= MAX_RANKS:
            raise WireError(f"expected at most {MAX_RANKS} ranks from one source, got another one, {rank}", 0)
        lane = Lane(rank, self._settings.coalesce, self._settings.dialect, self.stats)
        lane.clear()
        return lane

    def _restore(self, restored: Restored) -> None:
        backlog = self._backlog
        backlog.restore(restored.compacted, restored.compacted_to, restored.recent)
        self._next = 1 + (backlog.recent[-1].sequence if backlog.recent else backlog.compacted_to)
        if self._next and not restored.is_sure:
            self._next += SKIP
            backlog.skip_to(self._next)
        for rank, payload in (*restored.compacted, *((sent.rank, sent.payload) for sent in restored.recent[-_LOOK:])):
            if rank not in self._lanes:
                self._lanes[rank] = Lane(rank, self._settings.coalesce, self._settings.dialect, self.stats)
            self._lanes[rank].learn(payload)
        if restored.position is not None:
            self._position, self._taken = restored.position, restored.position.sequence
            self._has_begun = True

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
        held = self._held() if time.monotonic() >= self._lost_at + _LOSE_S else {}
        for rank, lane in self._lanes.items():
            lane.lose(held.get(rank))
        self._note_clear()

    def _held(self) -> dict[int | None, CompactedLog]:
        """What each rank holds now, as far as is known."""
        self._lost_at = time.monotonic()
        held = {rank: log.copy() for rank, log in self._backlog.logs.items()}
        for sent in self._backlog.recent:
            held.setdefault(sent.rank, CompactedLog()).add(sent.payload)
        for rank, lane in self._lanes.items():
            for payload in lane.seal():
                held.setdefault(rank, CompactedLog()).add(payload)
        for log in held.values():
            log.compact()
        return held

    def _clear(self) -> None:
        for lane in self._lanes.values():
            lane.clear()
        self._note_clear()

    def _note_clear(self) -> None:
        """Consumers are told to drop everything."""
        self.stats.clears += 1
        self._has_begun = True
        for lane in self._lanes.values():
            self._note_pending(lane)
        self._vouched = True  # they begin anew: if the source is not live, they have to be told again
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
        self._flushed = self._taken, self._last_payload
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
        self._next += 2
        rank = next(iter(self._lanes), self.source.dp_rank)
        at = time.time()
        return Sent(self._next - 1, encode_batch(KVEventBatch(at, [], rank), dialect=self.dialect), rank, at)
