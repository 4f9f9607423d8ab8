"""`GET /stats`: every figure of the router in one JSON document. What shows figures takes them from here."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvevents.index import IndexStats, SourceStats
from kvevents.routing import POLICIES
from kvevents.routing.load import Load
from kvevents.server.fleet import Worker
from kvevents.server.ledger import PolicyCounts
from kvevents.server.service import Service
from kvevents.server.truth import Agreement
from kvevents.transport import SourceCounters, SourceState, State

DOWN = "down"
"""State of a worker that takes no requests."""
DRAINING = "draining"
"""State of a worker that gets no more requests and finishes those it has."""
BLIND = "blind"
"""State of a worker that takes requests and whose events are not received."""

_WORST_FIRST = (State.LOST, State.DEGRADED, State.RECOVERING, State.CONNECTING, State.LIVE)


class Statistics:
    """Reads the figures where they are kept; keeps none itself."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started = time.time()

    def document(self) -> dict[str, Any]:
        """All of it, as it is now; JSON-ready but for msgspec's structs."""
        service = self._service
        index = service.fleet.index.stats()
        outcomes: dict[str, dict[str, int]] = {}
        for (worker, outcome), count in service.ledger.outcomes.items():
            outcomes.setdefault(worker, {})[outcome] = count
        states = [state for worker in service.fleet.workers for state in service.fleet.source_states(worker).values()]
        return {
            "now": time.time(),
            "started": self._started,
            "policy": service.router.policy.name,
            "policies": list(POLICIES),
            "block_size": service.fleet.index.block_size,
            "requests": service.ledger.policies,
            "totals": totals(service.ledger.policies.values()),
            "outcomes": outcomes,
            "unplaced_requests": service.ledger.unplaced,
            "unread_prompts": service.ledger.unread,
            "prompts": {
                **msgspec.structs.asdict(service.prompts.counters),
                "tokenizers": [msgspec.structs.asdict(state) for state in service.prompts.models()],
            },
            "events": event_figures(index, states),
            "workers": self._workers(service.fleet.workers, index),
            "index": index,
            "proxy": {**msgspec.structs.asdict(service.proxy.counters), **service.proxy.gauges()},
            "fleet": service.fleet.counters,
            "login_required": service.settings.security.admin_token is not None,
        }

    def workers(self) -> list[dict[str, Any]]:
        """Every worker, in the order they came."""
        return self._workers(self._service.fleet.workers, self._service.fleet.index.stats())

    def worker(self, worker: Worker) -> dict[str, Any]:
        """One worker: its load, what it holds, and the state of its events."""
        (figures,) = self._workers([worker], self._service.fleet.index.stats())
        return figures

    def _workers(self, workers: Iterable[Worker], index: IndexStats) -> list[dict[str, Any]]:
        held: dict[str, dict[int, dict[str, int]]] = {}
        for source in index.sources:
            held.setdefault(source.worker, {})[source.dp_rank or 0] = source.tiers
        loads: dict[str, dict[int, Load]] = {}
        for (name, rank), load in self._service.router.loads().items():
            loads.setdefault(name, {})[rank] = load
        return [self._worker(worker, loads.get(worker.id, {}), held.get(worker.id, {})) for worker in workers]

    def _worker(self, worker: Worker, loads: dict[int, Load], held: dict[int, dict[str, int]]) -> dict[str, Any]:
        states = self._service.fleet.source_states(worker)
        return {
            "id": worker.id,
            "url": worker.url,
            "up": worker.up,
            "reason": worker.reason,
            **overall(worker, states.values()),
            "role": worker.role,
            "draining": worker.is_draining,
            "max_in_flight": worker.max_in_flight,
            "models": sorted(worker.models),
            "blocks": add_up(held.values()),
            "ranks": [
                {
                    "dp_rank": rank,
                    "requests": load.requests,
                    "queued_tokens": load.queued,
                    "decode_tokens": load.decode,
                    "reported": None if (said := worker.reported.get(rank)) is None else said._asdict(),
                    "blocks": held.get(rank, {}),
                }
                for rank, load in loads.items()
            ],
            "truth": _truth(self._service.truth.workers.get(worker.id)),
            "events": "received" if worker.sources else worker.events,
            "sources": [
                {
                    "dp_rank": source.dp_rank,
                    "endpoint": source.endpoint,
                    "replay_endpoint": source.replay_endpoint,
                    "topic": source.topic,
                    "block_size": source.block_size,
                    **msgspec.structs.asdict(states[source.dp_rank]),
                }
                for source in worker.sources
            ],
        }


def overall(worker: Worker, states: Iterable[SourceState]) -> dict[str, Any]:
    """State, reason and since when of a worker: down, draining, blind, or that of its worst source."""
    if not worker.up:
        return {"state": DOWN, "state_reason": worker.reason, "since": None}
    if worker.is_draining:
        return {"state": DRAINING, "state_reason": "it leaves once its requests have ended", "since": None}
    worst = min(states, key=lambda state: _WORST_FIRST.index(state.state), default=None)
    if worst is None:
        return {"state": BLIND, "state_reason": worker.events, "since": None}
    return {"state": worst.state, "state_reason": worst.reason, "since": worst.since}


def _truth(agreement: Agreement | None) -> dict[str, Any] | None:
    """Whether a worker finds cached what its events promise; None before its first answer."""
    if agreement is None:
        return None
    return {"verdict": agreement.verdict, **msgspec.structs.asdict(agreement)}


def totals(policies: Iterable[PolicyCounts]) -> dict[str, Any]:
    """Sums over all policies, and the hit rates in them."""
    counts = list(policies)
    sums = {name: sum(getattr(one, name) for one in counts) for name in PolicyCounts.__struct_fields__}
    return {**sums, **hit_rates(sums)}


def hit_rates(sums: Mapping[str, int]) -> dict[str, float | None]:
    """Shares of prompt tokens that are summed: expected by the router, reported by engines, and at best."""
    return {
        f"{name}_hit_rate": ratio(sums.get(cached, 0), sums.get(tokens, 0))
        for name, cached, tokens in (
            ("expected", "expected_cached_tokens", "prompt_tokens"),
            ("reported", "reported_cached_tokens", "reported_prompt_tokens"),
            ("all_knowing", "all_knowing_cached_tokens", "prompt_tokens"),
        )
        if cached in sums
    }


def event_figures(index: IndexStats, states: Iterable[SourceState]) -> dict[str, Any]:
    """What came from the engines that are there now, and how well their events were coalesced."""
    events, stored, removed = (sum(getattr(one, name) for one in index.sources) for name in _MOVED)
    names = [name for name in SourceCounters.__struct_fields__ if name != "transitions"]
    counters = [state.counters for state in states]
    return {
        "events": events,
        "blocks_stored": stored,
        "blocks_removed": removed,
        "blocks_per_event": ratio(stored + removed, events),
        **{name: sum(getattr(one, name) for one in counters) for name in names},
        "events_skipped": sum(sum(one.skipped.values()) for one in index.sources),
    }


_MOVED: tuple[str, ...] = ("events", "stored", "removed")
assert set(_MOVED) <= set(SourceStats.__struct_fields__)


def add_up(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sums by name."""
    sums: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole else None
