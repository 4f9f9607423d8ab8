"""What is known about a source: its state, why, since when, and what was counted on the way.

The state machine is one table, `TRANSITIONS`: from which state which cause leads to which state.
"""

import enum
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec


class State(enum.StrEnum):
    """How far the picture of a source can be trusted.

    `connecting`: never reached so far. `recovering`: reached, the picture is being completed.
    `live`: known to be complete. `degraded`: known or suspected to be incomplete. `lost`: was reached,
    is not now.
    """

    CONNECTING = "connecting"
    RECOVERING = "recovering"
    LIVE = "live"
    DEGRADED = "degraded"
    LOST = "lost"


class Reason(enum.StrEnum):
    """Stable names of why a source is in its state: the causes of the state machine."""

    NOT_REACHED = "not-reached"
    HANDSHAKE_FAILED = "handshake-failed"
    KEYS_CHANGED = "keys-changed"
    CONNECTION_LOST = "connection-lost"
    LEASE_EXPIRED = "lease-expired"
    LEFT = "left"
    INTERNAL_ERROR = "internal-error"
    COMPLETE = "complete"
    FIRST_REPLAY = "first-replay"
    FIRST_BATCH_AWAITED = "first-batch-awaited"
    SNAPSHOT = "snapshot"
    GAP = "gap"
    RECONNECTED = "reconnected"
    RESTARTED = "restarted"
    OLD_SEQUENCE = "old-sequence"
    MENDING = "mending"
    FOUND_BY_PROBE = "found-by-probe"
    IDLE = "idle"
    LATE_JOIN = "late-join"
    GAP_UNREPAIRED = "gap-unrepaired"
    UNSEEN_TIME = "unseen-time"
    REPLAY_STARTS_LATE = "replay-starts-late"
    REPLAY_SILENT = "replay-silent"
    REPLAY_MISMATCH = "replay-mismatch"
    RESTART_UNCONFIRMED = "restart-unconfirmed"
    BATCH_MISSING = "batch-missing"
    BATCH_REFUSED = "batch-refused"
    BATCH_IGNORED = "batch-ignored"
    EVENT_SKIPPED = "event-skipped"
    BLOCKS_DROPPED = "blocks-dropped"
    SETTING_CONTRADICTED = "setting-contradicted"
    SINK_FAILED = "sink-failed"
    TOPIC_MISMATCH = "topic-mismatch"
    NOTHING_LIVE = "nothing-live"
    DISTRUSTED = "distrusted"


_ANY = frozenset(State)
_KNOWN = frozenset({State.RECOVERING, State.LIVE, State.DEGRADED})

_RULES: tuple[tuple[frozenset[State], tuple[Reason, ...], State], ...] = (
    (frozenset({State.CONNECTING}), (Reason.NOT_REACHED, Reason.HANDSHAKE_FAILED), State.CONNECTING),
    (
        _ANY,
        (
            Reason.FIRST_REPLAY,
            Reason.SNAPSHOT,
            Reason.GAP,
            Reason.RECONNECTED,
            Reason.RESTARTED,
            Reason.OLD_SEQUENCE,
            Reason.MENDING,
            Reason.FOUND_BY_PROBE,
        ),
        State.RECOVERING,
    ),
    (_KNOWN, (Reason.COMPLETE,), State.LIVE),
    (
        _KNOWN,
        (
            Reason.FIRST_BATCH_AWAITED,
            Reason.LATE_JOIN,
            Reason.GAP_UNREPAIRED,
            Reason.UNSEEN_TIME,
            Reason.REPLAY_STARTS_LATE,
            Reason.REPLAY_SILENT,
            Reason.REPLAY_MISMATCH,
            Reason.RESTART_UNCONFIRMED,
            Reason.BATCH_MISSING,
            Reason.BATCH_REFUSED,
            Reason.BATCH_IGNORED,
            Reason.EVENT_SKIPPED,
            Reason.BLOCKS_DROPPED,
            Reason.SETTING_CONTRADICTED,
            Reason.SINK_FAILED,
            Reason.TOPIC_MISMATCH,
            Reason.NOTHING_LIVE,
        ),
        State.DEGRADED,
    ),
    (frozenset({State.LOST}), (Reason.KEYS_CHANGED,), State.LOST),
    (_ANY, (Reason.CONNECTION_LOST, Reason.LEASE_EXPIRED, Reason.LEFT, Reason.INTERNAL_ERROR), State.LOST),
)

TRANSITIONS: Mapping[tuple[State, Reason], State] = {
    (before, cause): after for befores, causes, after in _RULES for cause in causes for before in befores
}
"""The state that a cause leads to. A pair that is not here does not happen: whoever was lost, or not reached before,
becomes neither `live` nor `degraded` without having been `recovering`. `idle` names a probe and is no cause:
a source that is asked whether something was lost stays what it is until there is an answer or none in time; nor is
`distrusted`, which a router says of a source whose picture looks complete and does not come true."""


class Fault(NamedTuple):
    """Why a picture is incomplete.

    Attributes:
        reason: its name.
        detail: what was seen and what would help, for people.
        mendable: whether asking for everything from sequence 0 may complete the picture.
    """

    reason: Reason
    detail: str
    mendable: bool


class SourceCounters(msgspec.Struct):
    """What one source brought and what became of it; all counts since the source was added.

    Attributes:
        received: live messages.
        received_bytes: their payloads.
        applied: batches handed to the sink, each sequence number once.
        replayed: those of them that came through the replay socket.
        duplicates: batches that were known already.
        late: batches that came after their number had been given up.
        gaps: times a number was skipped in the live stream.
        missing: numbers given up for lost.
        restarts: new incarnations of the engine.
        clears: times everything held for the source was dropped.
        reconnects: connections after the first.
        requests: replay requests.
        probes: those of them that only asked whether something was lost.
        timeouts: replay requests without a (complete) answer.
        found_by_probe: batches that only a probe brought to light.
        refused: batches that were broken.
        skipped: batches of which something could not be used.
        failed: batches whose application failed for a reason of the sink's own.
        malformed: messages with wrong frames.
        snapshot_requests: snapshots asked for.
        snapshots: those of them that were put in place.
        snapshot_failures: those that could not be had or used; a publisher that offers none counts once.
        expired: times what was held was dropped because the source had been lost for too long.
        held_dropped: batches that could not wait (too many during a replay, or read after their connection
            broke); they are asked for again.
        transitions: moves, as `from>to:reason`.
    """

    received: int = 0
    received_bytes: int = 0
    applied: int = 0
    replayed: int = 0
    duplicates: int = 0
    late: int = 0
    gaps: int = 0
    missing: int = 0
    restarts: int = 0
    clears: int = 0
    reconnects: int = 0
    requests: int = 0
    probes: int = 0
    timeouts: int = 0
    found_by_probe: int = 0
    refused: int = 0
    skipped: int = 0
    failed: int = 0
    malformed: int = 0
    snapshot_requests: int = 0
    snapshots: int = 0
    snapshot_failures: int = 0
    expired: int = 0
    held_dropped: int = 0
    transitions: dict[str, int] = msgspec.field(default_factory=dict)


class SourceState(msgspec.Struct, frozen=True):
    """What is known about one source at one moment.

    Attributes:
        state: how far its picture can be trusted.
        reason: why, for people.
        since: when it came into this state, unix seconds.
        counters: a copy of its counts.
        code: why, as a stable name.
        last_sequence: the last number applied; None if there was none.
    """

    state: State
    reason: str
    since: float
    counters: SourceCounters
    code: Reason
    last_sequence: int | None = None


class StateMachine:
    """Holds the state of one source; every change goes through `move`, which counts it."""

    def __init__(self, counters: SourceCounters, on_change: Callable[[], None], detail: str) -> None:
        self.state = State.CONNECTING
        self.code = Reason.NOT_REACHED
        self.detail = detail
        self.since = time.time()
        self._counters = counters
        self._on_change = on_change

    def move(self, cause: Reason, detail: str) -> None:
        """Goes where `cause` leads (see `TRANSITIONS`); being there for that reason already changes nothing."""
        self.detail = detail
        state = TRANSITIONS[self.state, cause]
        if (state, cause) == (self.state, self.code):
            return
        transition = f"{self.state}>{state}:{cause}"
        self._counters.transitions[transition] = self._counters.transitions.get(transition, 0) + 1
        if state != self.state:
            self.since = time.time()
        self.state, self.code = state, cause
        self._on_change()

    def snapshot(self, last_sequence: int | None) -> SourceState:
        """The state now, with a copy of the counters."""
        counters = msgspec.structs.replace(self._counters, transitions=self._counters.transitions.copy())
        return SourceState(self.state, self.detail, self.since, counters, self.code, last_sequence)
