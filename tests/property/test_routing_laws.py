"""Laws of the cost, and of what follows from it over many requests."""

import random
from array import array
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.events import BlockStored, KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.routing import Decision, KvPolicy, Router, RoutingSettings, Score

BLOCK = 64
FOUR = ["w0", "w1", "w2", "w3"]

tokens = st.integers(0, 100_000).map(float)
scores = st.builds(
    Score,
    worker=st.just("w"),
    dp_rank=st.just(0),
    prefill=tokens,
    queued=tokens,
    held=tokens,
    surplus=tokens,
    shared=tokens,
)
weights = st.builds(
    RoutingSettings,
    prefill_weight=st.floats(0, 10),
    held_weight=st.floats(0, 10),
    balance_weight=st.floats(0, 10),
)
LOADS = ("queued", "held", "surplus", "shared")


@given(scores, weights, tokens, st.sampled_from(LOADS))
def test_more_load_is_never_better(score: Score, settings: RoutingSettings, more: float, load: str) -> None:
    policy = KvPolicy(settings)
    busier = msgspec.structs.replace(score, **{load: getattr(score, load) + more})
    assert policy.cost(busier) >= policy.cost(score)


@given(scores, weights, st.floats(0, 1))
def test_more_overlap_is_never_worse(score: Score, settings: RoutingSettings, part: float) -> None:
    policy = KvPolicy(settings)
    better = msgspec.structs.replace(score, prefill=score.prefill * part)
    assert policy.cost(better) <= policy.cost(score)


@given(scores, weights, st.sampled_from([2.0, 4.0, 0.5]))
def test_all_lengths_times_a_number_cost_that_many_times(
    score: Score, settings: RoutingSettings, factor: float
) -> None:
    policy = KvPolicy(settings)
    figures = {name: factor * getattr(score, name) for name in ("prefill", *LOADS)}
    assert policy.cost(msgspec.structs.replace(score, **figures)) == factor * policy.cost(score)


class Engines:
    """Workers with endless caches that tell of what they compute at once, behind a router."""

    def __init__(self, policy: str, workers: list[str] = FOUR) -> None:
        self.index = PrefixIndex(BLOCK)
        self.router = Router(self.index, workers, policy)
        self.open: list[tuple[Decision, array[int]]] = []
        self.requests: dict[str, int] = dict.fromkeys(workers, 0)

    def send(self, prompt: "array[int]") -> str:
        decision = self.router.select(prompt)
        self.open.append((decision, prompt))
        self.requests[decision.worker] += 1
        return decision.worker

    def finish_oldest(self) -> None:
        decision, prompt = self.open.pop(0)
        blocks = len(prompt) // BLOCK
        names = [hash(tuple(prompt[: BLOCK * (place + 1)])) for place in range(blocks)]
        store = BlockStored(names, None, prompt[: BLOCK * blocks].tolist(), BLOCK, medium="GPU")
        self.index.apply(decision.worker, KVEventBatch(ts=0.0, events=[store]))
        self.router.complete(decision)


def draw(dice: random.Random, length: int) -> "array[int]":
    return array("I", (dice.randrange(1 << 20) for _ in range(length)))


@pytest.mark.parametrize("policy", ["kv", "approx"])
@pytest.mark.parametrize("in_flight", [1, 12])
@pytest.mark.parametrize("seed", range(2))
def test_three_hot_families_use_four_workers_and_none_is_cold_on_more_than_two(
    policy: str, in_flight: int, seed: int
) -> None:
    dice = random.Random(seed)
    families = [draw(dice, 32 * BLOCK) for _ in range(3)]
    engines = Engines(policy)
    cold = defaultdict(set)
    for _ in range(300):
        family = dice.randrange(3)
        cold[family].add(engines.send(families[family] + draw(dice, 2 * BLOCK)))
        while len(engines.open) >= in_flight:
            engines.finish_oldest()
    assert min(engines.requests.values()) >= 300 / 4 / 2
    assert all(len(workers) <= 2 for workers in cold.values())


@pytest.mark.parametrize("policy", ["kv", "approx"])
def test_conversations_stay_where_they_are(policy: str) -> None:
    dice = random.Random(7)
    engines = Engines(policy)
    talks = [draw(dice, 8 * BLOCK) for _ in range(12)]
    homes: dict[int, set[str]] = defaultdict(set)
    for _ in range(10):
        for number in dice.sample(range(12), 12):
            homes[number].add(engines.send(talks[number]))
            engines.finish_oldest()
            talks[number] += draw(dice, 4 * BLOCK)
    assert sum(len(workers) for workers in homes.values()) == 12
    assert max(engines.requests.values()) <= 40


@pytest.mark.parametrize("policy", ["kv", "approx", "round_robin", "least_loaded"])
def test_equal_candidates_take_turns(policy: str) -> None:
    dice = random.Random(3)
    engines = Engines(policy)
    chosen = []
    for _ in range(16):
        chosen.append(engines.send(draw(dice, 8 * BLOCK)))
        engines.finish_oldest()
    assert all(set(chosen[turn : turn + 4]) == set(FOUR) for turn in range(0, 16, 4))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60))
def test_whatever_happens_the_books_are_empty_when_nothing_is_open(steps: list[tuple[int, int]]) -> None:
    router = Router(PrefixIndex(BLOCK), ["w0", "w1"])
    opened: list[Decision] = []
    for step, choice in steps:
        if step == 0 or not opened:
            opened.append(router.select(array("I", range(choice * BLOCK))))
        elif step == 1:
            router.prefill_done(opened[choice % len(opened)])
        elif step == 2:
            router.complete(opened.pop(choice % len(opened)))
        elif step == 3:
            router.fail(opened.pop(choice % len(opened)))
        else:
            router.set_up("w1", choice % 2 == 0)
    for decision in opened:
        router.complete(decision)
    for load in router.loads().values():
        assert (load.requests, load.queued, load.decode, load.held) == (0, 0, 0, 0)
        assert not load.prefilling
        assert not load.opened
