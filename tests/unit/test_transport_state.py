"""The state machine as a table."""

from pathlib import Path

import pytest

from kvevents.transport.settings import DeliverySettings
from kvevents.transport.state import TRANSITIONS, Reason, SourceCounters, State, StateMachine


def test_every_cause_leads_to_one_state_and_every_state_has_causes() -> None:
    leads = {cause: {after for (_, known), after in TRANSITIONS.items() if known is cause} for cause in Reason}
    assert leads.pop(Reason.IDLE) == set(), "a probe changes nothing"
    assert leads.pop(Reason.DISTRUSTED) == set(), "a router's judgement, not what happens on a connection"
    assert all(len(states) == 1 for states in leads.values())
    assert set.union(*leads.values()) == set(State)


def test_nobody_is_live_or_degraded_who_was_not_recovering_first() -> None:
    for (before, _), after in TRANSITIONS.items():
        if after in {State.LIVE, State.DEGRADED}:
            assert before not in {State.CONNECTING, State.LOST}
        assert (after is State.CONNECTING) <= (before is State.CONNECTING)


def test_moves_are_counted_with_their_cause_and_told_once() -> None:
    told: list[str] = []
    counters = SourceCounters()
    machine = StateMachine(counters, lambda: told.append(str(machine.code)), "connecting")
    machine.move(Reason.FIRST_REPLAY, "asking")
    since = machine.since
    machine.move(Reason.FIRST_REPLAY, "still asking")
    machine.move(Reason.GAP, "asking for more")
    assert (machine.since, machine.detail) == (since, "asking for more")
    machine.move(Reason.COMPLETE, "nothing is missing")
    assert counters.transitions == {
        "connecting>recovering:first-replay": 1,
        "recovering>recovering:gap": 1,
        "recovering>live:complete": 1,
    }
    assert told == ["first-replay", "gap", "complete"]


def test_what_is_not_in_the_table_does_not_happen() -> None:
    machine = StateMachine(SourceCounters(), lambda: None, "connecting")
    with pytest.raises(KeyError):
        machine.move(Reason.COMPLETE, "out of nothing")
    assert machine.state is State.CONNECTING


def test_the_page_on_delivery_has_the_table_and_the_settings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "delivery.md").read_text()
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")
    ]
    table = {row[0]: (row[1], row[2]) for row in rows if len(row) == 4}
    for cause in set(Reason) - {Reason.IDLE, Reason.DISTRUSTED}:
        befores = {before for before, known in TRANSITIONS if known is cause}
        (after,) = {TRANSITIONS[before, cause] for before in befores}
        said = "any" if befores == set(State) else ", ".join(state for state in State if state in befores)
        assert table.pop(cause) == (after, said)
    assert not table
    for name, default in DeliverySettings.__dataclass_fields__.items():
        (row,) = [row for row in rows if len(row) == 3 and name in row[0].replace("`", "").split(", ")]
        if isinstance(default.default, float):
            assert float(row[1]) == default.default
    for counter in SourceCounters.__struct_fields__:
        assert f"`{counter}`" in page
