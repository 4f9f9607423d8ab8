"""When the router is ready, and what it says that it waits for."""

import time

import pytest

from kvevents.routing import Role
from kvevents.server import WorkerSettings
from kvevents.server.fleet import Worker
from kvevents.server.fleet.readiness import assess
from kvevents.transport import SourceState, State
from kvevents.transport.state import Reason, SourceCounters

GRACE_S = 30.0


def worker(number: int = 0, *, up: bool = True, discovered: bool = True, age_s: float = 0.0) -> Worker:
    made = Worker(WorkerSettings(url=f"http://h:{number + 1}"))
    made.up, made.is_discovered, made.added = up, discovered, time.time() - age_s
    return made


def in_state(state: State, age_s: float = 0.0) -> SourceState:
    return SourceState(state, "because", time.time() - age_s, SourceCounters(), Reason.COMPLETE)


def test_nobody_there_and_nobody_up_are_not_ready() -> None:
    nobody = assess([], grace_s=GRACE_S)
    assert not nobody.is_ready
    assert "POST /workers" in nobody.waiting_for[0]["reason"]
    down = assess([(worker(up=False), {})], grace_s=GRACE_S)
    assert (down.is_ready, down.workers, down.up) == (False, 1, 0)
    assert down.waiting_for[0]["reason"] == "none of 1 workers is up"


@pytest.mark.parametrize(
    ("roles", "missing"),
    [
        (["prefill", "prefill"], "decode"),
        (["decode"], "prefill"),
        (["prefill", "decode"], None),
        (["decode", None], None),
        ([None], None),
    ],
)
def test_half_of_a_divided_fleet_is_not_ready(roles: list[Role | None], missing: str | None) -> None:
    pictures: list[tuple[Worker, dict[int | None, SourceState]]] = [(worker(9, up=False), {})]
    for number, role in enumerate(roles):
        pictures.append((worker(number), {0: in_state(State.LIVE)}))
        pictures[-1][0].role = role
    readiness = assess(pictures, grace_s=GRACE_S)
    assert (readiness.is_ready, readiness.up) == (missing is None, len(roles))
    if missing is not None:
        assert f"no worker with the role {missing} is up" in readiness.waiting_for[0]["reason"]


def test_every_picture_is_live_or_known_to_be_incomplete() -> None:
    for state in State:
        readiness = assess([(worker(0), {0: in_state(State.LIVE)}), (worker(1), {0: in_state(state)})], grace_s=GRACE_S)
        assert readiness.is_ready == (state in {State.LIVE, State.DEGRADED})
        assert [one["state"] for one in readiness.waiting_for] == ([] if readiness.is_ready else [state])


def test_a_picture_that_never_comes_is_not_waited_for_for_ever() -> None:
    old = worker(age_s=2 * GRACE_S)
    readiness = assess([(old, {0: in_state(State.CONNECTING, 2 * GRACE_S), 1: in_state(State.LIVE)})], grace_s=GRACE_S)
    assert readiness.is_ready
    assert [(one["worker"], one["dp_rank"], one["state"]) for one in readiness.overdue] == [(old.id, 0, "connecting")]
    again = assess([(old, {0: in_state(State.RECOVERING, 1.0)})], grace_s=GRACE_S)
    assert not again.is_ready


def test_who_is_down_or_leaves_is_not_waited_for() -> None:
    leaving = worker(1)
    leaving.is_draining = True
    states: dict[int | None, SourceState] = {0: in_state(State.CONNECTING)}
    pictures: list[tuple[Worker, dict[int | None, SourceState]]] = [
        (worker(0), {0: in_state(State.LIVE)}),
        (leaving, states),
        (worker(2, up=False), states),
    ]
    readiness = assess(pictures, grace_s=GRACE_S)
    assert (readiness.is_ready, readiness.up) == (True, 1)


def test_a_worker_that_has_not_said_where_its_events_are_is_waited_for() -> None:
    assert not assess([(worker(discovered=False), {})], grace_s=GRACE_S).is_ready
    assert assess([(worker(discovered=False, age_s=2 * GRACE_S), {})], grace_s=GRACE_S).is_ready
    assert assess([(worker(), {})], grace_s=GRACE_S).is_ready  # it has none
