"""Each policy alone, and what they find cached on the recorded trace."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.routing import POLICIES, KvPolicy, RandomPolicy, Router, Score, make_policy
from routing_index import BLOCK, Held, ModelIndex

PROMPT = list(range(10 * BLOCK))
FOUR = ["w0", "w1", "w2", "w3"]
TRACE = Path(__file__).parents[2] / "data" / "mooncake_conversation_first1000.jsonl"
TRACE_BLOCK = 512


def score(**figures: int) -> Score:
    defaults = {"usable": 0, "prefill": 0, "queued": 0, "decode": 0, "requests": 0, "surplus": 0}
    return Score(worker="w0", dp_rank=0, state="live", **{**defaults, **figures})


def test_kv_counts_every_kind_of_work() -> None:
    policy = KvPolicy(prefill_weight=2, decode_weight=0.5, balance=0.25)
    assert policy.cost(score(prefill=100, queued=10, decode=8, surplus=4)) == 200 + 10 + 4 + 1


@pytest.mark.parametrize("weight", ["prefill_weight", "decode_weight", "balance"])
@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_kv_refuses_a_negative_weight(weight: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{weight}: expected a number >= 0"):
        KvPolicy(**{weight: value})


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
    with pytest.raises(ConfigError, match="expected one of kv, round_robin, random, least_loaded, got 'fastest'"):
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


class Prompt:
    """A prompt of the trace: block ids stand for the blocks, the length is given."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.blocks: list[int] = request["hash_ids"]
        self.length: int = request["input_length"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> "Prompt":
        length = len(range(self.length)[part])
        return Prompt({"hash_ids": self.blocks[: length // TRACE_BLOCK], "input_length": length})


class EndlessCaches:
    """Holds every block that was ever sent to a worker."""

    block_size = TRACE_BLOCK

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {worker: set() for worker in FOUR}

    def match(self, tokens: Prompt, **_namespace: object) -> list[Held]:
        found = []
        for worker, held in self.held.items():
            missing = (place for place, block in enumerate(tokens.blocks) if block not in held)
            found.append(Held(worker, 0, next(missing, len(tokens.blocks))))
        return found


def replay(policy: str, requests: int) -> tuple[float, float]:
    """The share of prompt tokens found cached, and the busiest worker's prefill over the mean, one by one."""
    index = EndlessCaches()
    router = Router(index, FOUR, policy)
    prefill: Counter[str] = Counter()
    cached = total = 0
    with TRACE.open() as lines:
        for line, _ in zip(lines, range(requests), strict=False):
            prompt = Prompt(json.loads(line))
            decision = router.select(prompt)
            index.held[decision.worker].update(prompt.blocks)
            router.prefill_done(decision)
            router.complete(decision)
            cached += decision.cached_tokens
            total += len(prompt)
            prefill[decision.worker] += len(prompt) - decision.cached_tokens
    return cached / total, max(prefill.values()) * len(FOUR) / prefill.total()


@pytest.mark.parametrize(("requests", "round_robin", "kv"), [(500, 0.078, 0.125), (1000, 0.090, 0.163)])
def test_kv_finds_what_round_robin_misses_and_keeps_the_balance(requests: int, round_robin: float, kv: float) -> None:
    turns, _ = replay("round_robin", requests)
    assert turns == pytest.approx(round_robin, abs=0.001)
    found, busiest = replay("kv", requests)
    assert found >= kv
    assert found >= 1.5 * turns
    assert busiest <= 1.3
