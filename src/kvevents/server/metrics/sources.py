"""Metrics of the event sources: is the news of each worker complete?"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvevents.server.metrics.family import Family, counter, gauge, labels
from kvevents.transport import SourceState, State

if TYPE_CHECKING:
    from kvevents.server.service import Service

_ON = ("worker", "rank")

STATE = gauge(
    "source_state",
    "1 for the state that the event source is in, 0 for the others.",
    "`live` is the only state in which the worker's picture is known to be complete; GET /workers says the reason of "
    "any other. `connecting` for long: the address is wrong or the engine has events off. `degraded` for long: the "
    "engine has no replay socket, or its buffer is too short; a restart of the engine or a relay with a log mends it.",
    *_ON,
    "state",
)
TRANSITIONS = counter(
    "source_transitions",
    "Changes of the source's state, by where it went and why.",
    "Which reasons come again and again says what is wrong: `gap` a network or a consumer too slow, `restarted` the "
    "engine, `connection-lost` the network.",
    *_ON,
    "state",
    "reason",
)
COUNTERS: Mapping[str, Family] = {
    field: counter(f"source_{name}", meaning, advice, *_ON)
    for field, name, meaning, advice in (
        (
            "received",
            "received_messages",
            "Live messages that came.",
            (
                "None while the worker computes: its events are off, or go elsewhere. Each one counts once, however "
                "many events are in it."
            ),
        ),
        (
            "received_bytes",
            "received_bytes",
            "Payload of the live messages.",
            "Much at few blocks: the engine sends one event a block; a relay or the recorder coalesces them.",
        ),
        ("applied", "applied_batches", "Batches applied to the index, each once.", "Grows with the messages received."),
        (
            "replayed",
            "replayed_batches",
            "Batches that came through the replay socket.",
            "Grows after a start and after gaps only.",
        ),
        ("duplicates", "duplicate_batches", "Batches that were known already.", "Usual beside replays; harmless."),
        (
            "late",
            "late_batches",
            "Batches that came after their number had been given up.",
            "The path to the engine reorders or stalls for longer than a replay takes.",
        ),
        (
            "gaps",
            "gaps",
            "Times a number was skipped in the live stream.",
            (
                "The engine's queue overflowed or the router was stalled (see `kvevents_event_loop_lag_seconds`). "
                "Harmless while `missing_batches` stands still: a replay brought them."
            ),
        ),
        (
            "missing",
            "missing_batches",
            "Batches given up for lost.",
            (
                "The picture is incomplete and the source `degraded`: raise the engine's replay buffer or put a relay "
                "beside it."
            ),
        ),
        (
            "restarts",
            "restarts",
            "New incarnations of the engine.",
            "Its cache was empty each time. Without a deployment going on: see the engine's log.",
        ),
        (
            "clears",
            "clears",
            "Times everything held for the source was dropped.",
            "Beyond restarts and flushes of the cache: losses that no replay could repair.",
        ),
        (
            "reconnects",
            "reconnects",
            "Connections after the first.",
            "The network to this worker, or its restarts. Each one is followed by a probe for what was missed.",
        ),
        ("requests", "replay_requests", "Replay requests, probes included.", "Grows with gaps and while idle."),
        ("probes", "replay_probes", "Replay requests that only asked whether something was lost.", "Usual when idle."),
        (
            "timeouts",
            "replay_timeouts",
            "Replay requests without a complete answer in time.",
            "The replay socket is blocked by a firewall, or the engine's publisher hangs.",
        ),
        (
            "found_by_probe",
            "found_by_probe_batches",
            "Batches that only a probe brought to light.",
            "The last messages before silence get lost: the engine's send queue is too short.",
        ),
        (
            "refused",
            "refused_batches",
            "Batches that were broken.",
            "An engine of an unknown version, or something else on that port; the router's log has the byte offset.",
        ),
        (
            "skipped",
            "partly_skipped_batches",
            "Batches of which something could not be used.",
            "See `kvevents_index_skipped_events_total` for the codes.",
        ),
        (
            "failed",
            "failed_batches",
            "Batches that the index failed to apply for a reason of its own.",
            "A defect, or no memory: see the router's log.",
        ),
        (
            "malformed",
            "malformed_messages",
            "Messages with wrong frames.",
            "Something else publishes on that port, or the topic is wrong.",
        ),
        ("snapshot_requests", "snapshot_requests", "Snapshots asked for.", "Grows after a start and after losses."),
        ("snapshots", "snapshots", "Snapshots put in place.", "Each one completed a picture."),
        (
            "snapshot_failures",
            "snapshot_failures",
            "Snapshots that could not be had or used.",
            "One for each engine that offers none; more of them: see the reason at GET /workers.",
        ),
        (
            "expired",
            "expirations",
            "Times what was held was dropped since the source had been lost for too long.",
            "The worker is gone: remove it, or repair the way to it.",
        ),
        (
            "held_dropped",
            "held_dropped_batches",
            "Batches that could not wait during a replay and are asked for again.",
            "A replay that takes long while much comes live.",
        ),
    )
}
FAMILIES = (STATE, TRANSITIONS, *COUNTERS.values())


def render(service: "Service") -> Iterator[str]:
    """Lines of all sources, family by family."""
    states = [
        (worker.id, rank or 0, state)
        for worker in service.fleet.workers
        for rank, state in service.fleet.source_states(worker).items()
    ]
    at = [(labels(worker=worker, rank=rank), state) for worker, rank, state in states]
    yield STATE.render((f'{text},state="{name}"', int(state.state == name)) for text, state in at for name in State)
    yield TRANSITIONS.render(
        (f'{text},state="{to}",reason="{reason}"', count)
        for text, state in at
        for (to, reason), count in _arrivals(state).items()
    )
    for field, family in COUNTERS.items():
        yield family.render((text, getattr(state.counters, field)) for text, state in at)


def _arrivals(state: SourceState) -> dict[tuple[str, str], int]:
    """Transitions (`from>to:reason`) by where they went and why."""
    sums: dict[tuple[str, str], int] = {}
    for transition, count in state.counters.transitions.items():
        to, _, reason = transition.partition(">")[2].partition(":")
        sums[to, reason] = sums.get((to, reason), 0) + count
    return sums
