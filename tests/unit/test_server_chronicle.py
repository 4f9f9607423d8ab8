"""What happened to workers and their events is noted once, however short it lasted."""

from collections.abc import Mapping

from kvevents.server.chronicle import Chronicle, Entry
from kvevents.server.dashboard import DashboardSettings
from kvevents.transport import Reason, SourceCounters, SourceState, State

UP = {"w": (True, "it answers")}


def source(
    state: State, code: Reason, transitions: Mapping[str, int], **counts: int
) -> dict[tuple[str, int | None], SourceState]:
    counters = SourceCounters(transitions=dict(transitions), **counts)
    return {("w", 0): SourceState(state, "because", 0.0, counters, code)}


def chronicle(**settings: int) -> Chronicle:
    return Chronicle(DashboardSettings(**settings), clock=lambda: 7.0)


def kinds(entries: list[Entry]) -> list[tuple[str, int]]:
    return [(entry.kind, entry.count) for entry in entries]


def test_every_move_is_an_entry_even_if_the_state_is_what_it_was() -> None:
    log = chronicle()
    log.look(
        UP,
        source(State.LIVE, Reason.COMPLETE, {"connecting>recovering:first-replay": 1, "recovering>live:complete": 1}),
    )
    log.take_new()
    moves = {
        "connecting>recovering:first-replay": 1,
        "recovering>live:complete": 2,
        "live>recovering:gap": 1,
    }
    log.look(UP, source(State.LIVE, Reason.COMPLETE, moves, gaps=1, missing=2))
    new = log.take_new()
    states = [(one.before, one.after, one.code, one.reason) for one in new if one.kind == "state"]
    assert states == [("live", "recovering", "gap", None), ("recovering", "live", "complete", "because")]
    assert [one for one in kinds(new) if one[0] != "state"] == [("gaps", 1), ("missing", 2)]
    log.look(UP, source(State.LIVE, Reason.COMPLETE, moves, gaps=1, missing=2))
    assert log.take_new() == []


def test_a_source_that_begins_anew_is_not_taken_for_the_one_before() -> None:
    log = chronicle()
    log.look(UP, source(State.LIVE, Reason.COMPLETE, {"recovering>live:complete": 5}, reconnects=3))
    log.take_new()
    log.look(UP, source(State.LIVE, Reason.COMPLETE, {"recovering>live:complete": 1}, reconnects=1))
    assert sorted(kinds(log.take_new())) == [("reconnects", 1), ("state", 1)]


def test_workers_come_go_down_and_leave() -> None:
    log = chronicle()
    for workers in ({"w": (False, "not asked yet")}, UP, {"w": (False, "no answer")}, {}):
        log.look(workers, {})
    assert [(one.kind, one.reason) for one in log.take_new()] == [
        ("joined", "not asked yet"),
        ("up", "it answers"),
        ("down", "no answer"),
        ("left", None),
    ]


def test_the_log_is_bounded() -> None:
    log = chronicle(log_entries=3)
    for number in range(10):
        log.look({f"w{number}": (True, "")}, {})
    assert [entry.id for entry in log.entries] == [17, 18, 19]
    assert len(log.take_new()) == 3
