"""Scheduling for hybrid models: windows and states are held, given back, found again, and never lost or overdrawn."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.engine.config import EngineConfig
from kvevents.engine.memory import KVMemory
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request, RequestState
from kvevents.engine.scheduler import Progress, Scheduler
from kvevents.engine.timing import TimingModel
from kvevents.engine.trees import make_tree
from kvevents.index import PrefixIndex

PAGE = 4
WINDOW = 10
KINDS: dict[str, dict[str, Any]] = {
    "swa": {"cache": "swa", "sliding_window": WINDOW},
    "mamba": {"cache": "mamba", "mamba_slots": 6},
    "unified": {"cache": "unified", "sliding_window": WINDOW, "mamba_slots": 6},
}


class Bench:
    """A scheduler over the cache of an engine, stepped by hand, and an index of its events."""

    def __init__(self, capacity: int = 400, chunk: int = 1000, **settings: Any) -> None:
        config = EngineConfig(
            page_size=PAGE, max_total_tokens=capacity, chunked_prefill_size=chunk, announce_groups=True, **settings
        )
        self.cache = make_tree(config, records=True)
        self.memory = KVMemory(self.cache, page_size=PAGE, sliding_window=config.window_size)
        self.scheduler = Scheduler(self.memory, TimingModel(), chunk_size=chunk, max_running=8)
        self.index = PrefixIndex(PAGE)
        self.index.add_worker("engine", groups=dict(enumerate(config.groups)))

    def add(self, prompt: list[int], outputs: int = 4) -> Request:
        tokens = array("q", prompt)
        answer = output_tokens(tokens, outputs, seed=0, alphabet=range(1000, 2000))
        request = Request(id="", tokens=tokens + answer, prompt_length=len(prompt))
        self.scheduler.add(request)
        return request

    def step(self, most: int = 1) -> Progress | None:
        step = self.scheduler.plan(most=most)
        if step is None:
            return None
        progress = self.scheduler.commit(step, repeats=step.repeats)
        self.scheduler.check_integrity()
        self.cache.check_integrity()
        return progress

    def finish(self, most: int = 1) -> None:
        while self.step(most):
            pass
        assert self.scheduler.is_idle
        self.memory.check_integrity([])
        for component in self.cache.allocators:
            assert self.cache.sizes(component).protected == 0

    def run(self, prompt: list[int], outputs: int = 4) -> int:
        """Prompt tokens that were found cached."""
        request = self.add(prompt, outputs)
        self.finish()
        assert request.cached is not None
        return request.cached

    def predict(self, prompt: list[int]) -> int:
        """What the index of all events so far says that a prompt finds cached."""
        if (batch := self.cache.take_batch()) is not None:
            self.index.apply("engine", batch)
        (match,) = self.index.match(prompt[:-1]) or (None,)
        return match.usable * PAGE if match else 0


def prompt(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def test_a_window_that_has_passed_is_given_back_as_decoding_goes_on() -> None:
    bench = Bench(**KINDS["swa"])
    request = bench.add(prompt(0, 8), outputs=60)
    held = []
    while bench.step():
        if request.state is RequestState.RUNNING:
            held.append(request.allocated - request.window_start)
    assert max(held) == 16, "a window of 10 tokens in whole pages, and the page that is being written"
    assert bench.cache.sizes("full").total == 64
    assert bench.cache.sizes("sliding_window").total == 8 + 12


def test_an_answer_is_gone_on_from_and_its_middle_is_not() -> None:
    bench = Bench(**KINDS["swa"])
    request = bench.add(prompt(0, 8), outputs=61)
    bench.finish()
    tokens = request.tokens.tolist()
    assert bench.run([*tokens[:40], *prompt(5000, 8)]) == 8
    assert bench.run([*tokens, *prompt(6000, 8)]) == 68
    assert bench.run([*tokens[:40], *prompt(7000, 8)]) == 40


def test_a_state_is_taken_where_prompts_have_parted_before() -> None:
    bench = Bench(**KINDS["mamba"])
    shared = prompt(0, 41)
    found = [bench.run([*shared, *prompt(1000 * (number + 1), 7)]) for number in range(4)]
    assert found == [0, 0, 40, 40]


def test_a_state_is_taken_where_the_same_prompt_can_go_on() -> None:
    bench = Bench(**KINDS["mamba"])
    assert [bench.run(prompt(0, 40), outputs=1) for _ in range(3)] == [0, 0, 36]


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_few_states_make_requests_wait_and_no_more(slots: int) -> None:
    bench = Bench(cache="mamba", mamba_slots=slots, chunk=16)
    requests = [bench.add([*prompt(0, 20), *prompt(100 * number, 30)], outputs=9) for number in range(1, 6)]
    most = 0
    while bench.step():
        most = max(most, len(bench.scheduler.running))
    assert all(request.state is RequestState.FINISHED for request in requests)
    assert most <= slots
    bench.finish()


def test_a_request_alone_fits_whatever_windows_the_tree_holds() -> None:
    """A lock takes whole nodes: of a long one no more than the window may be kept from eviction."""
    bench = Bench(chunk=40, cache="swa", sliding_window=8, window_tokens=60)
    bench.run(prompt(0, 40))
    assert bench.run([*prompt(0, 30), *prompt(1000, 60)], outputs=20) == 28


@pytest.mark.parametrize("kind", KINDS)
@given(
    plan=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 25)), max_size=12),
    capacity=st.sampled_from([88, 160, 400]),
    chunk=st.sampled_from([6, 16, 1000]),
)
def test_an_index_of_the_events_predicts_what_is_found_cached(
    kind: str, plan: list[tuple[int, int, int]], capacity: int, chunk: int
) -> None:
    bench = Bench(capacity=capacity, chunk=chunk, **KINDS[kind])
    for family, length, outputs in plan:
        tokens = prompt(1000 * family, length)
        expected = bench.predict(tokens)
        assert bench.run(tokens, outputs) == expected
    bench.predict([])
    held = bench.index.holdings("engine").get(0, {}).get("GPU", set())
    assert held == {block for block, _ in bench.cache.holdings()}


@pytest.mark.parametrize("kind", KINDS)
@given(
    plan=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 25), st.integers(0, 4)), max_size=12),
    capacity=st.sampled_from([88, 160]),
    tight=st.booleans(),
    slots=st.integers(2, 8),
    most=st.sampled_from([1, 7]),
)
def test_requests_side_by_side_all_end_and_nothing_is_overdrawn(
    kind: str, plan: list[tuple[int, int, int, int]], capacity: int, tight: bool, slots: int, most: int
) -> None:
    settings = KINDS[kind] | ({"mamba_slots": slots} if kind != "swa" else {})
    if tight and kind != "mamba":
        settings |= {"window_tokens": 2 * 12 + 8 + PAGE}
    bench = Bench(capacity=capacity, chunk=8, **settings)
    requests = []
    for family, length, outputs, steps in plan:
        request = bench.add(prompt(1000 * family, length), outputs)
        requests.append(request)
        for _ in range(steps):
            bench.step(most)
        if (length + steps) % 5 == 0:
            bench.scheduler.abort(request)
    bench.finish(most)
    assert all(request.is_done for request in requests)
