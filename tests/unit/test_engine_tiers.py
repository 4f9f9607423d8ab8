"""Scheduling over a cache with host memory below it."""

import contextlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents.engine.config import EngineConfig
from kvevents.engine.memory import KVMemory
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request
from kvevents.engine.scheduler import Scheduler, Step
from kvevents.engine.storage import open_store
from kvevents.engine.timing import TimingModel
from kvevents.engine.trees import make_tree
from kvevents.index import PrefixIndex

PAGE = 4
LAYERS: list[dict[str, Any]] = [
    {},
    {"components": ("swa",), "sliding_window": 10},
    {"components": ("mamba",), "mamba_slots": 6},
    {"components": ("swa", "mamba"), "sliding_window": 10, "mamba_slots": 6},
]


class Bench:
    """A scheduler over 80 tokens of device memory and what lies below it, and an index of its events."""

    def __init__(self, host_tokens: int = 400, **settings: Any) -> None:
        config = EngineConfig(
            cache="hierarchical",
            page_size=PAGE,
            max_total_tokens=80,
            host_tokens=host_tokens,
            **settings,
        )
        self.cache = make_tree(config, records=True, store=open_store(config, 0, contextlib.ExitStack()))
        self.memory = KVMemory(self.cache, page_size=PAGE, sliding_window=config.window_size)
        self.timing = TimingModel(
            prefill_tokens_per_second=1000, load_back_tokens_per_second=10_000, storage_tokens_per_second=5_000
        )
        self.scheduler = Scheduler(self.memory, self.timing, chunk_size=1000, max_running=8)
        self.index = PrefixIndex(PAGE)

    def run(self, prompt: list[int]) -> tuple[int, float]:
        """Prompt tokens that were found, and the seconds of the first step."""
        request = self.add(prompt, 1)
        seconds = []
        while (step := self.step()) is not None:
            seconds.append(step.seconds)
        assert request.cached is not None
        return request.cached, seconds[0]

    def add(self, prompt: list[int], outputs: int) -> Request:
        tokens = array("q", prompt)
        answer = output_tokens(tokens, outputs, seed=0, alphabet=range(1000, 2000))
        request = Request(id="", tokens=tokens + answer, prompt_length=len(prompt))
        self.scheduler.add(request)
        return request

    def step(self) -> Step | None:
        step = self.scheduler.plan()
        if step is not None:
            self.scheduler.commit(step)
            self.scheduler.check_integrity()
            self.cache.check_integrity()
        return step

    def differences(self) -> set[object]:
        """What the index knows and the cache does not have, and the other way round."""
        if (batch := self.cache.take_batch()) is not None:
            self.index.apply("engine", batch)
        known = self.index.holdings("engine").get(0, {})
        return {(block, tier) for tier, blocks in known.items() for block in blocks} ^ self.cache.holdings()


def prompt(start: int) -> list[int]:
    return list(range(start, start + 60))


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
@pytest.mark.parametrize("layers", LAYERS)
def test_what_the_device_has_lost_is_loaded_and_counts_as_cached(write_policy: str, layers: dict[str, Any]) -> None:
    bench = Bench(write_policy=write_policy, **layers)
    assert bench.run(prompt(0)) == (0, 0.06)
    assert bench.run(prompt(100))[0] == 0
    assert not bench.differences()
    assert {tier for _, tier in bench.cache.holdings()} == {"GPU", "CPU_PINNED"}
    found, seconds = bench.run([*prompt(0), 7, 8, 9, 7])
    assert found == 60
    loaded = 60
    assert seconds == pytest.approx(4 / 1000 + loaded / 10_000)
    assert not bench.differences()


@pytest.mark.parametrize("layers", LAYERS)
def test_what_only_a_store_has_is_read_first_and_takes_longer(layers: dict[str, Any]) -> None:
    bench = Bench(host_tokens=64, storage="memory", storage_tokens=400, **layers)
    for start in (0, 100, 200):
        bench.run(prompt(start))
    assert not bench.differences()
    held = {tier: sum(each == tier for _, each in bench.cache.holdings()) for tier in ("CPU_PINNED", "EXTERNAL")}
    assert held == {"CPU_PINNED": 15, "EXTERNAL": 45}
    found, seconds = bench.run([*prompt(0), 7, 8, 9, 7])
    assert found == 60
    assert seconds == pytest.approx(4 / 1000 + 60 / 10_000 + 60 / 5_000)
    assert not bench.differences()


def test_what_is_on_the_device_takes_no_time_to_load() -> None:
    bench = Bench()
    bench.run(prompt(0))
    assert bench.run([*prompt(0), 7, 8, 9, 7]) == (60, 0.004)


def test_what_cannot_be_loaded_is_not_locked_against_the_request_that_wants_it() -> None:
    """36 tokens are on the device, 12 in host memory, and the window at 36 is gone: all 48 are of use, or none."""
    bench = Bench(write_policy="write_through", components=("swa",), sliding_window=10)
    for kind, length, outputs in [(1, 48, 1), (0, 22, 12), (0, 25, 9)]:
        bench.add(list(range(kind * 100, kind * 100 + length)), outputs)
        bench.step()
    last = bench.add(list(range(100, 149)), 1)
    while bench.step():
        pass
    assert bench.scheduler.is_idle
    assert last.cached == 48
    bench.memory.check_integrity([])
    assert not bench.differences()


@pytest.mark.parametrize("layers", LAYERS)
def test_a_backup_that_nobody_has_asked_about_blocks_no_request(layers: dict[str, Any]) -> None:
    bench = Bench(**layers)
    bench.cache.insert(prompt(0))
    assert bench.cache.sizes("full").protected == 60
    assert bench.run(prompt(100))[0] == 0
    assert bench.scheduler.is_idle
    assert not bench.differences()


def test_a_match_that_is_not_loaded_keeps_its_branch_and_nothing_else_locked() -> None:
    bench = Bench(components=("mamba",), mamba_slots=6)
    bench.run(prompt(0))
    bench.run(prompt(100))
    neighbour = bench.add(prompt(200)[:40], 30)
    bench.step()
    request = bench.add([*prompt(0), 7, 8, 9, 7], 1)
    assert bench.memory.attach(request) == 0, "there is no room beside its neighbour"
    assert (request.node.is_root, request.branch) == (True, 60)
    bench.memory.release(request, keep=False)
    while bench.step():
        pass
    assert neighbour.is_done
    assert request.is_done
    bench.memory.check_integrity([])


def test_what_a_request_has_left_at_its_end_is_backed_up_though_no_step_follows() -> None:
    bench = Bench()
    request = bench.add(prompt(0)[:40], 30)
    for _ in range(8):
        bench.step()
    bench.scheduler.abort(request)
    assert bench.step() is None
    assert bench.cache.sizes("full").protected == 0
    assert {tier for _, tier in bench.cache.holdings()} == {"GPU", "CPU_PINNED"}
    assert not bench.differences()


@given(
    write_policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
    layers=st.sampled_from(LAYERS),
    below=st.sampled_from([{}, {"storage": "memory"}, {"storage": "memory", "storage_tokens": 40}]),
    host_tokens=st.sampled_from([16, 60, 400]),
    requests=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=25),
)
def test_nothing_is_lost_or_overdrawn(
    write_policy: str,
    layers: dict[str, Any],
    below: dict[str, Any],
    host_tokens: int,
    requests: list[tuple[int, int, int]],
) -> None:
    bench = Bench(write_policy=write_policy, host_tokens=host_tokens, **layers, **below)
    for kind, length, outputs in requests:
        bench.add(list(range(kind * 100, kind * 100 + length)), outputs)
        bench.step()
    while bench.step():
        pass
    assert bench.scheduler.is_idle
    bench.memory.check_integrity([])
    assert not bench.differences()
