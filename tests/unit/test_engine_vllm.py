"""An engine like vLLM in virtual time: which cache, scheduler and announcements belong together."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from kvevents.engine.assembly import make_rank
from kvevents.engine.clock import VirtualClock
from kvevents.engine.config import EngineConfig
from kvevents.engine.rank import Rank
from kvevents.engine.request import Request
from kvevents.engine.timing import TimingModel
from kvevents.transport import PublisherStats

CONFIG = EngineConfig(
    cache="block_pool",
    page_size=4,
    max_total_tokens=42,
    chunked_prefill_size=100,
    timing=TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10, decode_step_per_request_ms=0),
)


class Outbox:
    """A publisher that keeps what it is given, with the moment."""

    def __init__(self, clock: VirtualClock) -> None:
        self.sent: list[tuple[float, list[str]]] = []
        self._clock = clock

    def publish(self, batch: bytes, /) -> int:
        _, events, dp_rank = msgspec.msgpack.decode(batch)
        assert dp_rank == 1
        self.sent.append((round(self._clock.now(), 6), [event["type"] for event in events]))
        return len(self.sent) - 1

    def stats(self) -> PublisherStats:
        return msgspec.convert(dict.fromkeys(PublisherStats.__struct_fields__, 0), PublisherStats)

    def close(self) -> None:
        """Nothing is open."""


class Bench:
    def __init__(self, *, asynchronous: bool = False) -> None:
        self.clock = VirtualClock()
        self.outbox = Outbox(self.clock)
        config = msgspec.structs.replace(CONFIG, async_scheduling=asynchronous)
        self.rank: Rank = make_rank(config, self.clock, publisher=self.outbox, dp_rank=1)

    def submit(self, start: int, length: int, outputs: int) -> Request:
        tokens = array("q", [*range(start, start + length), *range(10**6, 10**6 + outputs)])
        request = Request(id="r", tokens=tokens, prompt_length=length)
        self.rank.submit(request)
        return request

    async def drain(self) -> None:
        for _ in range(10_000):
            if self.rank.scheduler.is_idle:
                return
            await asyncio.sleep(0)
        raise AssertionError("it never came to rest")

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            task = asyncio.create_task(self.rank.run())
            await asyncio.sleep(0)
            await story()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(whole())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_step_that_has_news_tells_it_at_its_end(asynchronous: bool) -> None:
    bench = Bench(asynchronous=asynchronous)

    async def story() -> None:
        # Token 8 is computed in the second decode step, token 12 in the sixth. Asynchronously each is published when
        # the step after is planned, which is while the one itself runs.
        bench.submit(0, 6, 8)
        await bench.drain()

    bench.run(story)
    assert bench.outbox.sent == [(moment, ["BlockStored"]) for moment in (0.006, 0.026, 0.066)]
    assert bench.clock.now() == pytest.approx(0.076)


def test_a_reset_is_told_with_the_next_step_that_has_news() -> None:
    bench = Bench()

    async def story() -> None:
        bench.submit(0, 8, 1)
        assert not bench.rank.flush(), "a request is waiting"
        await bench.drain()
        held = bench.rank.cache.holdings()
        assert len(held) == 2
        assert all(-(2**63) <= block < 2**63 for block, _ in held)
        assert bench.rank.flush()
        assert bench.rank.cache.holdings() == set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(bench.outbox.sent) == 1, "an idle rank stays silent"
        bench.submit(100, 8, 1)
        await bench.drain()

    bench.run(story)
    assert [events for _, events in bench.outbox.sent] == [["BlockStored"], ["AllBlocksCleared", "BlockStored"]]


def test_its_memory_is_whole_blocks_beside_the_placeholder() -> None:
    bench = Bench()
    assert bench.rank.scheduler.capacity == 40
    assert bench.rank.scheduler.used == 0
    bench.rank.scheduler.check_room(32, 9)
