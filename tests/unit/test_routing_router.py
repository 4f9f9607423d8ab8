"""The router: choice, books on what is in flight, workers that come and go."""

import threading

import pytest

from kvevents.errors import ConfigError
from kvevents.routing import KvPolicy, NoWorkerError, Router, RoutingSettings
from routing_index import BLOCK, ModelIndex

PROMPT = list(range(10 * BLOCK))
FOUR = ["w0", "w1", "w2", "w3"]


def fresh(number: int, blocks: int = 10) -> list[int]:
    """A prompt that shares nothing with the others."""
    return [1_000_000 * (number + 1) + position for position in range(blocks * BLOCK)]


def test_the_worker_that_holds_the_prefix_is_chosen() -> None:
    index = ModelIndex()
    index.store("w2", PROMPT[: 6 * BLOCK])
    decision = Router(index, FOUR).select(PROMPT)
    assert (decision.worker, decision.dp_rank, decision.usable) == ("w2", 0, 6)
    assert decision.cached_tokens == 6 * BLOCK
    assert decision.scores[0].prefill == 4 * BLOCK
    assert [score.prefill for score in decision.scores[1:]] == [10 * BLOCK] * 3
    assert "w2" in decision.reason
    assert "6 blocks" in decision.reason


def test_a_whole_prompt_in_cache_still_computes_its_last_block() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    decision = Router(index, ["w0"]).select(PROMPT)
    assert decision.usable == 9
    assert decision.cached_tokens == 9 * BLOCK


@pytest.mark.parametrize("prompt", [[], [7], PROMPT[:BLOCK]])
def test_prompts_shorter_than_a_block_are_routed(prompt: list[int]) -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    decision = Router(index, ["w0"]).select(prompt)
    assert decision.cached_tokens == 0
    assert decision.scores[0].prefill == len(prompt)


@pytest.mark.parametrize("policy", ["kv", "round_robin", "least_loaded"])
def test_idle_workers_take_turns_though_nothing_is_in_flight(policy: str) -> None:
    router = Router(ModelIndex(), FOUR, policy)
    chosen = []
    for number in range(40):
        decision = router.select(fresh(number))
        router.prefill_done(decision)
        router.complete(decision)
        chosen.append(decision.worker)
    assert set(chosen[:4]) == set(FOUR)
    assert [chosen.count(worker) for worker in FOUR] == [10] * 4


def test_a_hot_prefix_at_its_limit_goes_to_the_next_best() -> None:
    index = ModelIndex()
    hot = fresh(0, blocks=100)
    index.store("w0", hot)
    index.store("w1", hot[: 50 * BLOCK])
    router = Router(index, FOUR)
    chosen = [router.select([*hot, *fresh(number + 1, blocks=20)]).worker for number in range(12)]
    assert chosen[:3] == ["w0"] * 3
    first_other = next(worker for worker in chosen if worker != "w0")
    assert first_other == "w1"
    assert chosen.count("w0") > 3


def test_ending_a_request_once_or_twice_is_the_same() -> None:
    router = Router(ModelIndex(), ["w0"])
    ended, kept = router.select(PROMPT), router.select(PROMPT)
    for _ in range(2):
        router.prefill_done(ended)
        router.complete(ended)
        router.fail(ended)
    load = router.loads()["w0", 0]
    assert (load.requests, load.queued, load.decode) == (1, BLOCK, 0)  # the first prompt is there by then
    for _ in range(2):
        router.prefill_done(kept)
    load = router.loads()["w0", 0]
    assert (load.requests, load.queued, load.decode, load.held) == (1, 0, 0, 0)  # what the first one held was shared
    router.complete(kept)
    load = router.loads()["w0", 0]
    assert (load.requests, load.queued, load.decode) == (0, 0, 0)


def test_a_request_that_failed_before_its_prefill_is_no_recent_work() -> None:
    router = Router(ModelIndex(), ["w0", "w1"])
    router.fail(router.select(PROMPT))
    assert router.loads()["w0", 0].recent == 0
    half_done = router.select(fresh(1))
    router.prefill_done(half_done)
    router.fail(half_done)
    recent = router.loads()[half_done.worker, 0].recent
    assert recent == len(PROMPT) + RoutingSettings().request_tokens


def test_excluded_and_down_workers_are_never_chosen() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    router = Router(index, FOUR)
    router.set_up("w0", False)
    chosen = {router.select(PROMPT, exclude={"w1"}).worker for _ in range(20)}
    assert chosen == {"w2", "w3"}
    assert router.workers == {"w0": False, "w1": True, "w2": True, "w3": True}
    router.set_up("w0", True)
    router.set_up("gone", True)
    assert router.select(PROMPT).worker == "w0"


def test_no_worker_is_a_clear_error() -> None:
    with pytest.raises(NoWorkerError, match="no worker is registered"):
        Router(ModelIndex()).select(PROMPT)
    router = Router(ModelIndex(), ["w0", "w1"])
    router.set_up("w0", False)
    with pytest.raises(NoWorkerError, match="none of 2 workers can take the request: w0 down, w1 tried"):
        router.select(PROMPT, exclude={"w1": "tried"})


def test_workers_join_and_leave() -> None:
    router = Router(ModelIndex(), ["w0"])
    before = router.select(PROMPT)
    router.add_worker("w1")
    assert router.select(fresh(0)).worker == "w1"
    assert router.remove_worker("w0")
    assert not router.remove_worker("w0")
    router.add_worker("w0")
    router.complete(before)  # opened before the worker left: counts no more
    assert router.loads()["w0", 0].requests == 0
    assert {router.select(fresh(number)).worker for number in range(4)} == {"w0", "w1"}


def test_a_newcomer_is_neither_flooded_nor_starved() -> None:
    router = Router(ModelIndex(), ["w0", "w1"])
    for number in range(200):
        router.complete(router.select(fresh(number)))
    router.add_worker("w2")
    chosen = []
    for number in range(30):
        decision = router.select(fresh(1000 + number))
        router.complete(decision)
        chosen.append(decision.worker)
    assert [chosen.count(worker) for worker in ("w0", "w1", "w2")] == [10] * 3


def test_being_added_again_keeps_the_load_unless_the_ranks_change() -> None:
    router = Router(ModelIndex(), ["w0"])
    decision = router.select(PROMPT)
    router.add_worker("w0")
    assert router.loads()["w0", 0].requests == 1
    router.add_worker("w0", ranks=2)
    assert [load.requests for load in router.loads().values()] == [0, 0]
    router.complete(decision)
    assert [load.requests for load in router.loads().values()] == [0, 0]
    with pytest.raises(ConfigError, match="at least one rank"):
        router.add_worker("w1", ranks=0)


def test_ranks_are_candidates_of_their_own() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT, dp_rank=1)
    router = Router(index, {"w0": 1, "w1": 2})
    decision = router.select(PROMPT)
    assert (decision.worker, decision.dp_rank) == ("w1", 1)
    assert {(score.worker, score.dp_rank): score.usable for score in decision.scores} == {
        ("w1", 1): 9,
        ("w1", 0): 0,
        ("w0", 0): 0,
    }
    spread = [router.select(fresh(number)) for number in range(2)]
    assert {(one.worker, one.dp_rank) for one in spread} == {("w0", 0), ("w1", 0)}


def test_adapters_and_salts_are_apart() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT, namespace=("adapter", "salt", None))
    router = Router(index, FOUR)
    assert router.select(PROMPT, lora_name="adapter", cache_salt="salt").usable == 9
    assert router.select(PROMPT, lora_name="adapter").usable == 0
    assert router.select(PROMPT).usable == 0


def test_an_adapter_without_a_name_is_known_by_its_number() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT, namespace=(7, None, None))
    router = Router(index, FOUR)
    assert router.select(PROMPT, lora_id=7).usable == 9
    assert router.select(PROMPT, lora_id=8).usable == 0


def test_one_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(ConfigError, match=r"write \['w0'\]"):
        Router(ModelIndex(), "w0")
    with pytest.raises(ConfigError, match="exclude: expected a collection of ids"):
        Router(ModelIndex(), ["w0"]).select(PROMPT, exclude="w0")


def test_a_match_counts_less_while_its_source_is_not_live() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    index.store("w1", PROMPT[: 7 * BLOCK])
    index.states["w0"] = "degraded"
    router = Router(index, FOUR)
    decision = router.select(PROMPT)
    assert decision.worker == "w1"
    scores = {score.worker: score for score in decision.scores}
    assert scores["w0"].state == "degraded"
    assert scores["w0"].usable == 9
    assert scores["w0"].prefill == len(PROMPT) - 9 * BLOCK / 2
    assert scores["w2"].state == "live"


def test_the_policy_can_be_changed_while_requests_are_open() -> None:
    router = Router(ModelIndex(), FOUR, "round_robin")
    decision = router.select(PROMPT)
    router.policy = "kv"
    assert router.policy.name == "kv"
    assert router.loads()[decision.worker, 0].requests == 1
    router.policy = KvPolicy(RoutingSettings(balance_weight=0))
    with pytest.raises(ConfigError, match="kv, approx, round_robin, random, least_loaded, got 'fastest'"):
        router.policy = "fastest"


def test_threads_leave_no_load_behind() -> None:
    index = ModelIndex()
    index.store("w0", PROMPT)
    router = Router(index, FOUR)

    def requests(number: int) -> None:
        for turn in range(100):
            decision = router.select(PROMPT if turn % 2 else fresh(number * 100 + turn))
            router.prefill_done(decision)
            (router.fail if turn % 10 == 0 else router.complete)(decision)

    threads = [threading.Thread(target=requests, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for load in router.loads().values():
        assert (load.requests, load.queued, load.decode) == (0, 0, 0)
