"""A fleet in virtual time: what is conserved, what repeats, what an oracle is better at."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvevents import cli
from kvevents.cli.figures import print_families
from kvevents.errors import ConfigError
from kvevents.routing import RoutingSettings
from kvevents.simulation.delivery import Travel
from kvevents.simulation.families import FamilyLoad, FamilySettings, family_report
from kvevents.simulation.replay import Outcome
from kvevents.simulation.report import SimulationReport
from kvevents.simulation.simulate import SimulationSettings, run_simulation, simulate_trace
from kvevents.simulation.traces import BUNDLED, read_trace

POLICIES = ("round_robin", "random", "least_loaded", "approx", "kv", "oracle")


class Witness:
    """Keeps what progress is told."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, policy: str, requests: int) -> None:
        assert requests
        self.policy = policy
        self.outcomes[policy] = []

    def advance(self, outcome: Outcome) -> None:
        self.outcomes[self.policy].append(outcome)


def run(witness: Witness | None = None, **settings: Any) -> SimulationReport:
    chosen: dict[str, Any] = {"trace": BUNDLED, "limit": 40, "engines": 4, "policies": POLICIES, **settings}
    report = run_simulation(SimulationSettings(**chosen), witness or Witness())
    for policy in report.policies:
        policy.took_s = 0.0
    return report


def conversations(path: Path, *, turns: int = 6, of: int = 6, gap_ms: int = 400) -> Path:
    """Conversations that take turns, each turn a block longer than the one before."""
    rows = [
        {
            "timestamp": (turn * of + number) * gap_ms,
            "input_length": 512 * (turn + 2),
            "output_length": 8,
            "hash_ids": [1000 * (number + 1) + block for block in range(turn + 2)],
        }
        for turn in range(turns)
        for number in range(of)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("cache", ["radix", "hierarchical", "block_pool"])
def test_every_request_ends_once_and_no_token_comes_before_its_prompt_is_computed(cache: str) -> None:
    witness = Witness()
    report = run(witness, cache=cache)
    for figures in report.policies:
        outcomes = witness.outcomes[figures.policy]
        assert sorted(outcome.line for outcome in outcomes) == list(range(1, 41))
        assert figures.failures == 0
        for outcome in outcomes:
            computed = outcome.prompt_tokens - outcome.cached_tokens
            assert outcome.first_token_s is not None
            assert outcome.first_token_s >= computed / report.prefill_tokens_per_s - 1e-9
            assert outcome.cached_tokens < outcome.prompt_tokens
        assert sum(figures.prefill_tokens.values()) + figures.cached_tokens == report.prompt_tokens
        assert figures.differences == 0
        assert figures.events.blocks_stored - figures.events.blocks_removed == sum(r.blocks for r in figures.index)


def test_a_seed_gives_the_same_figures_again_and_another_one_others() -> None:
    settings: dict[str, Any] = {"policies": ("random", "kv"), "travel": Travel(delay_s=0.1, loss=0.1)}
    assert run(**settings) == run(**settings)
    assert run(**settings) != run(**settings, seed=1)


def test_the_oracle_finds_what_there_is_and_events_that_come_at_once_tell_it_all(tmp_path: Path) -> None:
    trace = conversations(tmp_path / "trace.jsonl")
    report = run(trace=trace, capacity_share=4.0, load=0.2, travel=Travel(delay_s=0.0))
    figures = {policy.policy: policy for policy in report.policies}
    oracle = figures["oracle"]
    assert oracle.cached_share == pytest.approx(report.endless_cached_share)
    assert oracle.recomputed_tokens == 0
    assert figures["kv"].cached_tokens == oracle.cached_tokens
    for policy in ("round_robin", "random", "least_loaded"):
        assert figures[policy].cached_tokens < oracle.cached_tokens
        assert figures[policy].recomputed_tokens > 0


def test_no_cache_finds_more_than_an_endless_one() -> None:
    report = run(load=0.3)
    for policy in report.policies:
        assert 0 < policy.cached_share <= report.endless_cached_share


def test_late_events_make_the_router_expect_less_than_there_is(tmp_path: Path) -> None:
    trace = conversations(tmp_path / "trace.jsonl")
    soon, late = (
        run(trace=trace, capacity_share=4.0, load=0.2, policies=("kv",), travel=Travel(delay_s=delay_s)).policies[0]
        for delay_s in (0.0, 60.0)
    )
    assert soon.expected_share == pytest.approx(soon.cached_share)
    assert late.expected_share == 0
    assert late.cached_share <= soon.cached_share
    assert late.differences == 0  # they do arrive in the end


def test_the_routers_weights_are_those_given(tmp_path: Path) -> None:
    trace = conversations(tmp_path / "trace.jsonl")
    follows, ignores = (
        run(trace=trace, capacity_share=4.0, load=0.2, policies=("kv",), routing=routing).policies[0]
        for routing in (RoutingSettings(), RoutingSettings(prefill_weight=0.0))
    )
    assert ignores.cached_share < follows.cached_share
    assert ignores.recomputed_tokens > 0


def test_the_turns_of_a_session_are_sent_one_after_the_other(tmp_path: Path) -> None:
    path = conversations(tmp_path / "trace.jsonl", gap_ms=1)
    trace = read_trace(path)
    sessions = [msgspec.structs.replace(one, session=str(one.hash_ids[0])) for one in trace.requests]
    settings = SimulationSettings(trace=path, policies=("round_robin",), engines=6, capacity_share=4.0, load=100.0)
    together, in_turns = (
        simulate_trace(msgspec.structs.replace(trace, requests=requests), settings, Witness()).policies[0]
        for requests in (trace.requests, sessions)
    )
    assert in_turns.requests == together.requests == 36
    assert in_turns.waiting_most < 6 < together.waiting_most
    assert in_turns.cached_share > together.cached_share


def test_lost_events_are_counted_and_the_index_differs() -> None:
    figures = run(policies=("kv",), travel=Travel(loss=0.2)).policies[0]
    assert 0 < figures.events.lost < figures.events.batches
    assert figures.differences > 0


def test_arrivals_move_together_until_the_load_is_as_asked() -> None:
    report = run(policies=("kv",), load=0.5)
    assert report.load == pytest.approx(0.5)
    assert report.prompt_tokens / report.span_s == pytest.approx(0.5 * 4 * report.prefill_tokens_per_s)
    own_pace = run(policies=("kv",), arrival_speedup=1.0)
    assert own_pace.span_s == pytest.approx(report.span_s * report.arrival_speedup)
    assert own_pace.load == pytest.approx(report.load / report.arrival_speedup)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policies": ("best",)}, "policy: expected one of"),
        ({"load": 0.0}, "load: expected a number above 0"),
        ({"load": 0.5, "arrival_speedup": 1.0}, "expected one of them"),
        ({"capacity_share": -1.0}, "capacity_share: expected a number above 0"),
        ({"engines": 0}, "engines, page_size: expected 1 or more"),
        ({"page_size": 0}, "page_size: expected 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(**settings)


SMALL = FamilyLoad(families=2, in_flight=3, requests=30)


def test_families_meet_every_engine_in_turns_and_are_computed_once_at_each() -> None:
    (figures,) = family_report(FamilySettings(policies=("round_robin",), loads=(SMALL,), engines=3)).figures
    assert figures.requests_by_engine == {"engine-0": 10, "engine-1": 10, "engine-2": 10}
    assert (figures.idle_engines, figures.cold_pairs, figures.cold_most) == (0, 6, 3)
    assert figures.computed >= figures.cold_pairs


def test_requests_of_families_are_in_flight_as_many_as_asked_for() -> None:
    one_at_a_time = FamilyLoad(families=2, in_flight=1, requests=30)
    (figures,) = family_report(FamilySettings(policies=("kv",), loads=(one_at_a_time,), engines=2)).figures
    assert figures.in_flight_most == 1
    assert figures.computed == figures.cold_pairs
    assert sum(figures.requests_by_engine.values()) == 30
    (figures,) = family_report(FamilySettings(policies=("kv",), loads=(SMALL,), engines=1)).figures
    assert figures.in_flight_most == 3


def test_families_and_traces_print_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_families(family_report(FamilySettings(policies=("kv",), loads=(SMALL,))))
    assert str(SMALL) in capsys.readouterr().out
    words = ["--limit", "20", "--engines", "2", "--policy", "kv", "--policy", "oracle"]
    assert cli.main(["simulate", *words]) == 0
    shown = capsys.readouterr()
    assert "kv" in shown.out
    assert "oracle: 20 of 20 requests ended" in shown.err
    assert cli.main(["simulate", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [policy["policy"] for policy in report["policies"]] == ["kv", "oracle"]
    assert cli.main(["simulate", "--families", *words]) == 2
    assert "--families" in capsys.readouterr().err
