"""Each policy alone, and what they find cached on the recorded trace."""

import json
from array import array
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from kvevents.errors import ConfigError
from kvevents.events import BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.routing import POLICIES, KvPolicy, RandomPolicy, Router, RoutingSettings, Score, make_policy
from routing_index import BLOCK, ModelIndex

PROMPT = list(range(10 * BLOCK))
FOUR = ["w0", "w1", "w2", "w3"]
TRACE = Path(__file__).parents[2] / "data" / "mooncake_conversation_first1000.jsonl"


def test_kv_counts_every_kind_of_work() -> None:
    policy = KvPolicy(RoutingSettings(prefill_weight=2, held_weight=0.5, balance_weight=0.25))
    score = Score("w0", 0, prefill=100, queued=10, held=8, surplus=4, shared=9)
    assert policy.cost(score) == 200 + 10 + 4 + 1
    assert policy.cost(msgspec.structs.replace(score, shared=2)) == 200 + 10 + 4 + 0.5


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_explains_itself(policy: str) -> None:
    router = Router(ModelIndex(), FOUR, policy)
    decision = router.select(PROMPT)
    assert decision.policy == policy
    assert decision.worker in decision.reason
    assert [one.cost for one in decision.scores] == sorted(one.cost for one in decision.scores)
    assert (decision.scores[0].worker, decision.scores[0].dp_rank) == (decision.worker, decision.dp_rank)
    alone = Router(ModelIndex(), ["w0"], policy).select(PROMPT)
    assert "w0" in alone.reason


def test_kv_says_how_close_the_next_was() -> None:
    index = ModelIndex()
    index.store("w1", PROMPT)
    router = Router(index, FOUR)
    assert "the next (w0 rank 0) 80" in router.select(PROMPT).reason
    assert "costs the same" in Router(ModelIndex(), FOUR).select(PROMPT).reason


def test_an_unknown_policy_names_the_choices() -> None:
    with pytest.raises(
        ConfigError, match="expected one of kv, approx, round_robin, random, least_loaded, got 'fastest'"
    ):
        make_policy("fastest")


def test_round_robin_goes_round_in_a_changing_fleet() -> None:
    router = Router(ModelIndex(), ["w0", "w1", "w2"], "round_robin")
    assert [router.select(PROMPT).worker for _ in range(4)] == ["w0", "w1", "w2", "w0"]
    router.set_up("w1", False)
    assert [router.select(PROMPT).worker for _ in range(3)] == ["w2", "w0", "w2"]
    router.add_worker("w3")
    router.set_up("w1", True)
    assert Counter(router.select(PROMPT).worker for _ in range(8)) == dict.fromkeys(FOUR, 2)


def test_random_reaches_everyone_about_equally() -> None:
    router = Router(ModelIndex(), FOUR, RandomPolicy(seed=1))
    counts = Counter(router.select(PROMPT).worker for _ in range(800))
    assert all(150 < counts[worker] < 250 for worker in FOUR)


def test_least_loaded_fills_the_gap() -> None:
    router = Router(ModelIndex(), FOUR, "least_loaded")
    opened = [router.select(PROMPT) for _ in range(8)]
    router.complete(opened[2])
    assert router.select(PROMPT).worker == opened[2].worker
    router.complete(opened[0])
    router.prefill_done(opened[1])
    assert router.select(PROMPT).worker == opened[0].worker


def replay(policy: str, requests: int) -> tuple[float, float]:
    """The share of prompt tokens found cached, and the busiest worker's prefill over the mean, one by one.

    An id of the trace stands for one token, and a block is a token; caches are endless.
    """
    index = PrefixIndex(1)
    router = Router(index, FOUR, policy, settings=RoutingSettings(request_tokens=0, memory_tokens=500))
    prefill: Counter[str] = Counter()
    cached = total = 0
    with TRACE.open() as lines:
        for line, _ in zip(lines, range(requests), strict=False):
            prompt = array("Q", json.loads(line)["hash_ids"])
            decision = router.select(prompt)
            blocks = array("q", (block + 1 for block in prompt)).tolist()
            store = BlockStored(blocks, None, prompt.tolist(), block_size=1, medium="GPU")
            index.apply(decision.worker, KVEventBatch(ts=0.0, events=[store]))
            router.complete(decision)
            cached += decision.cached_tokens
            total += len(prompt)
            prefill[decision.worker] += len(prompt) - decision.cached_tokens
    return cached / total, max(prefill.values()) * len(FOUR) / prefill.total()


@pytest.mark.parametrize(("requests", "round_robin", "kv"), [(500, 0.078, 0.125), (1000, 0.090, 0.163)])
def test_kv_finds_what_round_robin_misses_and_keeps_the_balance(requests: int, round_robin: float, kv: float) -> None:
    turns, _ = replay("round_robin", requests)
    assert turns == pytest.approx(round_robin, abs=0.02)
    found, busiest = replay("kv", requests)
    assert found >= kv
    assert found >= 1.5 * turns
    assert busiest <= 1.3
