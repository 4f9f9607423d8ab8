"""What a candidate is judged by: its events, what is on its way, what was sent to it, and its engine's own word."""

import itertools
import json
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.routing import LearnedIndex, Router, RoutingSettings
from routing_index import BLOCK, ModelIndex

PROMPT = list(range(10 * BLOCK))
TWO = ["w0", "w1"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def scored(router: Router, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    decision = router.select(prompt, dry_run=True, **fields)
    return {score.worker: score for score in decision.scores}


def test_a_prompt_on_its_way_draws_the_next_like_it_and_is_not_expected_for_sure() -> None:
    clock = Clock()
    router = Router(ModelIndex(), TWO, clock=clock)
    first = router.select(PROMPT)
    second = router.select(PROMPT)
    assert second.worker == first.worker
    assert (second.scores[0].pending, second.usable, second.cached_tokens) == (9, 0, 0)
    router.prefill_done(first)
    router.prefill_done(second)
    clock.now += 5  # events would have told by now
    assert router.select(PROMPT).scores[0].pending == 0


def test_a_worker_without_events_is_judged_by_what_was_sent_to_it() -> None:
    clock = Clock()
    index = ModelIndex()
    router = Router(index, ["w0"], settings=RoutingSettings(learned_ttl_s=60), clock=clock)
    router.add_worker("silent", events=False)
    router.complete(router.select(PROMPT, exclude=["w0"]))
    clock.now += 50
    scores = scored(router)
    assert (scores["silent"].judged_by, scores["silent"].usable, scores["silent"].indexed) == ("learned", 9, None)
    assert (scores["w0"].judged_by, scores["w0"].indexed) == ("events", 0)
    assert "(by what was sent there)" in router.select(PROMPT, exclude=["w0"], dry_run=True).reason
    clock.now += 70
    assert scored(router)["silent"].usable == 0


def test_a_source_that_is_not_live_is_judged_by_the_better_of_half_its_word_and_what_was_sent() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT[: 8 * BLOCK])
    router = Router(index, TWO)
    router.set_source("w0", None, "degraded")
    index.states["w0"] = "degraded"
    score = scored(router)["w0"]
    assert (score.judged_by, score.usable, score.prefill) == ("events", 8, 40 - 4 * BLOCK)
    router.complete(router.select(PROMPT[: 6 * BLOCK], exclude=["w1"]))
    score = scored(router)["w0"]
    assert (score.judged_by, score.usable, score.indexed, score.prefill) == ("learned", 6, 8, 40 - 6 * BLOCK)
    router.set_trust("w0", 0.25)
    assert scored(router)["w0"].prefill == 40 - 2 * BLOCK
    router.set_trust("w0", None)
    router.set_source("w0", None, None)
    assert scored(router)["w0"].indexed is None


def test_approx_asks_no_events() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT)
    router = Router(index, TWO, "approx")
    decision = router.select(PROMPT)
    assert (decision.worker, decision.judged_by, decision.usable) == ("w0", "learned", 0)
    assert router.select(PROMPT).usable == 9


def test_prompts_without_token_ids_are_apart() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT)
    router = Router(index, TWO)
    first = router.select(PROMPT, approximate=True)
    assert (first.usable, first.judged_by, first.indexed_tokens) == (0, "learned", None)
    again = router.select(PROMPT, approximate=True)
    assert (again.worker, again.usable) == (first.worker, 9)
    assert router.select(PROMPT).scores[0].pending == 0


def test_what_left_or_went_down_is_forgotten() -> None:
    router = Router(ModelIndex(), TWO, "approx")
    router.complete(router.select(PROMPT))
    router.set_up("w0", False)
    router.set_up("w0", True)
    assert scored(router)["w0"].usable == 0
    router.complete(router.select(PROMPT, exclude=["w1"]))
    assert router.learned.held("w0", 0) == 10
    router.remove_worker("w0")
    assert len(router.learned) == 0


def test_a_host_hit_is_worth_less_than_one_on_the_gpu() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    index.store("w1", PROMPT)
    index.tiers["w0"] = {"GPU": 4, "CPU_PINNED": 6}
    index.tiers["w1"] = {"GPU": 4, "DISK": 6}
    scores = scored(Router(index, TWO))
    assert scores["w0"].prefill == pytest.approx(40 - BLOCK * (4 + 0.9 * 5))
    assert scores["w1"].prefill == pytest.approx(40 - BLOCK * (4 + 0.6 * 5))
    equal = RoutingSettings(tier_weights={"DISK": 1.0, "CPU_PINNED": 0.0})
    scores = scored(Router(index, TWO, settings=equal))
    assert scores["w0"].prefill == pytest.approx(40 - BLOCK * 4)
    assert scores["w1"].prefill == pytest.approx(40 - BLOCK * 9)


def test_requests_of_others_count_as_load_and_fade() -> None:
    clock = Clock()
    router = Router(ModelIndex(), TWO, settings=RoutingSettings(reported_half_life_s=10), clock=clock)
    ours = router.select(PROMPT, exclude=["w1"])
    router.prefill_done(ours)
    router.set_reported_load("w0", 0, running=1, waiting=0)
    assert (scored(router)["w0"].held, scored(router)["w0"].queued) == (40, 0)  # that one is ours
    router.set_reported_load("w0", None, running=3, waiting=2, cached_tokens_used=1040)
    fresh = scored(router)["w0"]
    assert fresh.held == 1040
    assert fresh.queued > 0
    assert fresh.reported == (3, 2)
    clock.now += 10
    assert scored(router)["w0"].held == 40 + 500
    router.set_reported_load("gone", 0, running=1, waiting=0)


def test_figures_of_a_whole_worker_are_shared_out_over_its_ranks() -> None:
    router = Router(ModelIndex(), {"w0": 3})
    router.set_reported_load("w0", None, running=7, waiting=2)
    reported = [load.reported for load in router.loads().values()]
    assert [one and one[:2] for one in reported] == [(3, 1), (2, 1), (2, 0)]


def test_the_learned_index_stands_alone() -> None:
    clock = Clock()
    learned = LearnedIndex(BLOCK, ttl_s=10, max_blocks=15, clock=clock)
    learned.learn("a", 0, PROMPT)
    learned.learn("b", 1, PROMPT[: 3 * BLOCK], cache_salt="s")
    assert learned.match(PROMPT) == {("a", 0): 10}
    assert learned.match(PROMPT, cache_salt="s") == {("b", 1): 3}
    assert learned.match(PROMPT, approximate=True) == {}
    clock.now += 5
    learned.learn("b", 1, list(range(500, 500 + 5 * BLOCK)))
    assert (len(learned), learned.evicted, learned.match(PROMPT)) == (15, 3, {("a", 0): 7})
    clock.now += 6
    assert learned.match(PROMPT) == {}
    learned.forget("b")
    assert learned.held("b", 1) == 0


def test_explanations_are_for_machines_and_hold_nothing_secret() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT, namespace=(None, "very-secret", None))
    router = Router(index, [*TWO, "w2"], settings=RoutingSettings(session_affinity=True))
    router.set_up("w2", False)
    router.add_worker("w3")
    decision = router.select(PROMPT, cache_salt="very-secret", session="private", exclude={"w3": "full"})
    told = json.dumps(decision.explain())
    assert "secret" not in told
    assert "private" not in told
    explained = json.loads(told)
    assert explained["excluded"] == [{"worker": "w2", "why": "down"}, {"worker": "w3", "why": "full"}]
    first, second = explained["candidates"]
    assert (first["worker"], first["chosen"], first["blocks"]["usable"]) == ("w1", True, 9)
    assert (second["worker"], second["chosen"], second["tokens"]["to_compute"]) == ("w0", False, 40)
    for candidate in (first, second):
        assert sum(candidate["terms"].values()) == pytest.approx(candidate["cost"])
    assert explained["session"] == "new"


def test_a_temperature_draws_and_a_seed_repeats() -> None:
    def chosen(temperature: float, seed: int = 1) -> list[str]:
        index = ModelIndex()
        index.store("w0", PROMPT[: 5 * BLOCK])
        router = Router(index, TWO, settings=RoutingSettings(temperature=temperature, seed=seed, request_tokens=0))
        return [router.select(PROMPT, dry_run=True).worker for _ in range(200)]

    assert set(chosen(0)) == {"w0"}
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(1, seed=2)
    shares = [chosen(temperature).count("w0") for temperature in (0.1, 1, 100)]
    assert 200 >= shares[0] > shares[1] > shares[2] > 70


def test_a_session_stays_until_its_worker_is_gone_overloaded_or_it_was_silent() -> None:
    clock = Clock()
    settings = RoutingSettings(session_affinity=True, session_patience_tokens=100, session_ttl_s=60, max_sessions=2)
    router = Router(ModelIndex(), TWO, "round_robin", settings=settings, clock=clock)

    def send(session: str, length: int = 10) -> tuple[str, str]:
        decision = router.select(list(range(length)), session=session)
        return decision.worker, decision.session

    assert send("a") == ("w0", "new")
    assert [send("a") for _ in range(3)] == [("w0", "kept")] * 3
    send("a", 200)
    assert send("a") == ("w1", "moved")
    assert send("a") == ("w1", "kept")
    router.set_up("w1", False)
    assert send("a") == ("w0", "moved")
    clock.now += 61
    assert send("a")[1] == "new"
    for other in ("b", "c"):
        send(other)
    assert send("a")[1] == "new"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "fastest"}, "policy: expected one of kv, approx, "),
        ({"prefill_weight": -1}, "prefill_weight: expected a number >= 0, got -1"),
        ({"temperature": float("nan")}, "temperature: expected a number >= 0, got nan"),
        ({"memory_tokens": 0}, "memory_tokens: expected a number above 0, got 0"),
        ({"trust": 1.5}, "trust: expected 0 to 1, got 1.5"),
        ({"tier_weights": {"TAPE": 1.0}}, "tier_weights: expected GPU, CPU_PINNED, DISK, EXTERNAL, got TAPE"),
        ({"tier_weights": {"DISK": 2.0}}, "tier_weights: expected 0 to 1, got 2.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoutingSettings(**settings)


def test_probes_reset_no_counter() -> None:
    router = Router(ModelIndex(), TWO)
    for number in itertools.islice(itertools.count(), 5):
        router.complete(router.select([number] * 40))
    before = {key: (load.recent, load.last_chosen) for key, load in router.loads().items()}
    for worker in TWO:
        router.set_up(worker, True)
        router.add_worker(worker)
    assert {key: (load.recent, load.last_chosen) for key, load in router.loads().items()} == before
