"""Whether the router is ready, and what it waits for."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvevents.routing import Role
from kvevents.server.fleet.worker import Worker
from kvevents.transport import SourceState, State

_SETTLED = frozenset({State.LIVE, State.DEGRADED})


class Readiness(msgspec.Struct, frozen=True):
    """Ready: some worker takes requests, and every picture of one that is up is live or known to be incomplete.

    Attributes:
        is_ready: whether it is.
        workers: how many workers there are.
        up: how many of them take requests.
        waiting_for: what it waits for: `worker`, `dp_rank`, `state`, `reason`; nothing when it is ready.
        overdue: pictures that are not settled and not waited for any more, in the same form.
    """

    is_ready: bool
    workers: int
    up: int
    waiting_for: list[dict[str, Any]]
    overdue: list[dict[str, Any]]


def assess(pictures: Iterable[tuple[Worker, Mapping[int | None, SourceState]]], *, grace_s: float) -> Readiness:
    """The readiness of a fleet.

    Args:
        pictures: every worker with the states of its sources.
        grace_s: a picture that is neither live nor degraded for longer than this counts as degraded: the worker's
            requests are placed all the same, and one engine must not take the router out.
    """
    now = time.time()
    waiting_for: list[dict[str, Any]] = []
    overdue: list[dict[str, Any]] = []
    workers = 0
    roles = []
    for worker, states in pictures:
        workers += 1
        if not worker.up or worker.is_draining:
            continue
        roles.append(worker.role)
        for rank, state in states.items():
            if state.state not in _SETTLED:
                late = now - max(state.since, worker.added) > grace_s
                entry = {"worker": worker.id, "dp_rank": rank, "state": state.state, "reason": state.reason}
                (overdue if late else waiting_for).append(entry)
        if not states and not worker.is_discovered and now - worker.added <= grace_s:
            waiting_for.append({"worker": worker.id, "dp_rank": None, "state": "unknown", "reason": worker.events})
    reason = _nobody(workers, set(roles))
    if reason is not None:
        waiting_for.append({"worker": None, "dp_rank": None, "state": "down", "reason": reason})
    return Readiness(not waiting_for, workers, len(roles), waiting_for, overdue)


def _nobody(workers: int, roles: set[Role | None]) -> str | None:
    """Why no request can be placed, whatever it is, on those that are up; None if one can."""
    if not workers:
        return "there is no worker yet: POST /workers adds one"
    if not roles:
        return f"none of {workers} workers is up"
    if roles in ({"prefill"}, {"decode"}):
        missing = "decode" if "prefill" in roles else "prefill"
        return f"no worker with the role {missing} is up, nor one without a role"
    return None
