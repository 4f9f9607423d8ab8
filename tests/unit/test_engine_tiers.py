"""Scheduling over a cache with host memory below it."""

from array import array

import pytest

from kvevents.engine.config import EngineConfig
from kvevents.engine.memory import KVMemory
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request
from kvevents.engine.scheduler import Scheduler
from kvevents.engine.timing import TimingModel
from kvevents.engine.trees import make_tree
from kvevents.index import PrefixIndex

PAGE = 4


class Bench:
    """A scheduler over 80 tokens of device and 400 of host memory, and an index of its events."""

    def __init__(self, **settings: object) -> None:
        config = EngineConfig(
            cache="hierarchical",
            page_size=PAGE,
            max_total_tokens=80,
            host_tokens=400,
            **settings,  # type: ignore[arg-type]  # settings by name
        )
        self.cache = make_tree(config, records=True)
        self.memory = KVMemory(self.cache, page_size=PAGE, sliding_window=config.window_size)
        self.timing = TimingModel(prefill_tokens_per_second=1000, load_back_tokens_per_second=10_000)
        self.scheduler = Scheduler(self.memory, self.timing, chunk_size=1000, max_running=8)
        self.index = PrefixIndex(PAGE)

    def run(self, prompt: list[int]) -> tuple[int, float]:
        """Prompt tokens that were found, and the seconds of the first step."""
        tokens = array("q", prompt)
        answer = output_tokens(tokens, 1, seed=0, alphabet=range(1000, 2000))
        request = Request(id="", tokens=tokens + answer, prompt_length=len(prompt))
        self.scheduler.add(request)
        seconds = []
        while (step := self.scheduler.plan()) is not None:
            seconds.append(step.seconds)
            self.scheduler.commit(step)
            self.scheduler.check_integrity()
            self.cache.check_integrity()
        assert request.cached is not None
        return request.cached, seconds[0]

    def differences(self) -> set[object]:
        """What the index knows and the cache does not have, and the other way round."""
        if (batch := self.cache.take_batch()) is not None:
            self.index.apply("engine", batch)
        known = self.index.holdings("engine").get(0, {})
        return {(block, tier) for tier, blocks in known.items() for block in blocks} ^ self.cache.holdings()


def prompt(start: int) -> list[int]:
    return list(range(start, start + 60))


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
@pytest.mark.parametrize(
    "layers", [{}, {"components": ("swa",), "sliding_window": 10}, {"components": ("mamba",), "mamba_slots": 6}]
)
def test_what_the_device_has_lost_is_loaded_and_counts_as_cached(write_policy: str, layers: dict[str, object]) -> None:
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


def test_what_is_on_the_device_takes_no_time_to_load() -> None:
    bench = Bench()
    bench.run(prompt(0))
    assert bench.run([*prompt(0), 7, 8, 9, 7]) == (60, 0.004)
