"""vLLM's scheduler over a real block pool, stepped by hand."""

from array import array
from collections.abc import Iterable
from typing import Any, Literal

from kvevents.caches import BlockPoolCache
from kvevents.engine.outputs import output_tokens
from kvevents.engine.request import Request
from kvevents.engine.scheduler import Progress
from kvevents.engine.timing import TimingModel
from kvevents.engine.vllm.scheduler import VllmScheduler
from kvevents.events import BlockRemoved, BlockStored, KVCacheEvent
from kvevents.recorder import EventRecorder

PAGE = 4
TIMING = TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10, decode_step_per_request_ms=1)


class VllmBench:
    """A rank without a clock; `batches` is what it would have published."""

    def __init__(
        self,
        *,
        blocks: int = 100,
        page_size: int = PAGE,
        max_tokens: int = 1000,
        max_running: int = 8,
        asynchronous: bool = False,
        coalesce: Literal["off", "adjacent", "chain", "compact"] = "off",
    ) -> None:
        recorder = EventRecorder(page_size, coalesce=coalesce)
        self.cache = BlockPoolCache(num_blocks=blocks + 1, page_size=page_size, recorder=recorder)
        self.scheduler = VllmScheduler(
            self.cache, TIMING, max_tokens=max_tokens, max_running=max_running, asynchronous=asynchronous
        )
        self.seconds = 0.0
        self.batches: list[list[KVCacheEvent]] = []

    def add(self, prompt: Iterable[int], outputs: int = 4, **options: Any) -> Request:
        tokens = array("q", prompt)
        answer = output_tokens(tokens, outputs, seed=0, alphabet=range(1000, 2000))
        request = Request(id="r", tokens=tokens + answer, prompt_length=len(tokens), **options)
        self.scheduler.add(request)
        return request

    def step(self, most: int = 1, repeats: int | None = None) -> Progress | None:
        """Run a step; None where there is nothing to do."""
        step = self.scheduler.plan(most=most)
        if step is None:
            return None
        done = min(repeats or step.repeats, step.repeats)
        self.seconds += done * step.seconds
        progress = self.scheduler.commit(step, repeats=done)
        self.scheduler.check_integrity()
        if events := self.cache.take_events():
            self.batches.append(events)
        return progress

    def finish(self, most: int = 1) -> None:
        """Run until everything is done."""
        while self.step(most):
            pass
        assert self.scheduler.is_idle
        assert self.cache.free_blocks * self.cache.page_size == self.cache.capacity

    @property
    def events(self) -> list[KVCacheEvent]:
        """What was published, batches aside."""
        return [event for batch in self.batches for event in batch]


def shape(event: KVCacheEvent) -> str:
    """`S` and how many blocks were stored, or `R` for a removal."""
    match event:
        case BlockStored():
            return f"S{len(event.block_hashes)}"
        case BlockRemoved(block_hashes=[_]):
            return "R"
    raise AssertionError(f"vLLM announces nothing like {event}")
