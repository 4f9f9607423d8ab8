"""A rank in virtual time: when steps run, and when events are published."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from kvevents.caches import RadixCache
from kvevents.engine.announcer import DECODE_INTERVAL, Announcer
from kvevents.engine.clock import LoopClock, VirtualClock
from kvevents.engine.memory import KVMemory
from kvevents.engine.rank import Rank
from kvevents.engine.request import Request, RequestState
from kvevents.engine.scheduler import Progress, Scheduler
from kvevents.engine.timing import TimingModel
from kvevents.recorder import EventRecorder
from kvevents.transport import PublisherStats

PAGE = 4


class Outbox:
    """A publisher that keeps what it is given, with the moment."""

    def __init__(self, clock: VirtualClock) -> None:
        self.sent: list[tuple[float, list[str]]] = []
        self.is_closed = False
        self._clock = clock

    def publish(self, batch: bytes, /) -> int:
        _, events, dp_rank = msgspec.msgpack.decode(batch)
        assert dp_rank == 1
        self.sent.append((round(self._clock.now(), 6), [event["type"] for event in events]))
        return len(self.sent) - 1

    def stats(self) -> PublisherStats:
        return msgspec.convert(dict.fromkeys(PublisherStats.__struct_fields__, 0) | {"dropped": 2}, PublisherStats)

    def close(self) -> None:
        self.is_closed = True


async def until(condition: Callable[[], bool]) -> None:
    """Let the others run until something is so."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")


class Bench:
    def __init__(self, *, events: bool = True, capacity: int = 4000) -> None:
        self.clock = VirtualClock()
        self.outbox = Outbox(self.clock)
        self.cache = RadixCache(page_size=PAGE, capacity=capacity, recorder=EventRecorder(PAGE, enabled=events))
        memory = KVMemory(self.cache, page_size=PAGE)
        timing = TimingModel(prefill_tokens_per_second=1000, decode_step_ms=10, decode_step_per_request_ms=0)
        scheduler = Scheduler(memory, timing, chunk_size=100, max_running=8)
        announcer = Announcer(self.cache, self.outbox if events else None, dp_rank=1)
        self.rank = Rank(scheduler, self.cache, announcer, self.clock)
        self.finished: list[tuple[str, float]] = []

    def submit(self, name: str, start: int, length: int, outputs: int, **options: Any) -> Request:
        tokens = array("q", [*range(start, start + length), *range(10**6, 10**6 + outputs)])
        request = Request(id=name, tokens=tokens, prompt_length=length, **options)
        request.on_update = lambda: self.finished.append((name, round(self.clock.now(), 6)))
        self.rank.submit(request)
        return request

    async def drain(self) -> None:
        await until(lambda: self.rank.scheduler.is_idle)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            task = asyncio.create_task(self.rank.run())
            await asyncio.sleep(0)
            await story()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(whole())


def test_steps_take_their_time() -> None:
    bench = Bench()

    async def story() -> None:
        bench.submit("a", 0, 50, 3)
        bench.submit("b", 1000, 250, 1)
        await bench.drain()
        assert bench.clock.now() == pytest.approx(0.32)

    bench.run(story)
    # Chunks of 100, 100 and 100 tokens at 1 ms each; "a" decodes beside the second and the third for 10 ms more.
    assert bench.finished == [("b", 0.32), ("a", 0.32)]


def test_events_go_out_after_prefill_each_40th_decode_step_and_when_idle() -> None:
    bench = Bench()

    async def story() -> None:
        bench.submit("short", 0, 8, 6)
        bench.submit("long", 1000, 8, 100)
        await bench.drain()

    bench.run(story)
    assert DECODE_INTERVAL == 40
    assert bench.finished == [("short", 0.066), ("long", 1.006)]
    assert bench.outbox.sent == [
        (0.0, ["AllBlocksCleared"]),
        (0.016, ["BlockStored", "BlockStored"]),
        # The page with outputs of "short" is stored at 0.066 and told with the 40th decode step.
        (0.416, ["BlockStored"]),
        (1.006, ["BlockStored"]),
    ]


def test_without_events_nothing_is_sent() -> None:
    bench = Bench(events=False)

    async def story() -> None:
        bench.submit("a", 0, 8, 3)
        await bench.drain()
        assert bench.rank.flush()

    bench.run(story)
    assert bench.outbox.sent == []
    assert bench.rank.announcer.sequence is None


def test_an_idle_flush_is_announced_at_once() -> None:
    bench = Bench()

    async def story() -> None:
        bench.submit("a", 0, 8, 1)
        assert not bench.rank.flush(), "a request is waiting"
        await bench.drain()
        assert bench.rank.flush()
        assert bench.outbox.sent[-1][1] == ["AllBlocksCleared"]
        assert bench.rank.announcer.sequence == len(bench.outbox.sent) - 1
        assert bench.cache.total == 0

    bench.run(story)


def test_a_pause_stops_steps_and_publishes_what_there_is() -> None:
    bench = Bench()

    async def story() -> None:
        request = bench.submit("a", 0, 8, 1000)
        await until(lambda: request.produced >= 5)
        bench.rank.pause()
        for _ in range(20):
            await asyncio.sleep(0)
        produced = request.produced
        for _ in range(20):
            await asyncio.sleep(0)
        assert request.produced == produced
        bench.rank.resume()
        await bench.drain()
        assert request.state is RequestState.FINISHED

    bench.run(story)


def test_an_arrival_waits_for_the_step_under_way_only() -> None:
    """A row of decode steps is run as one wait; a request that arrives in it starts at the next step's edge."""

    class Interruptible(VirtualClock):
        """Stops at 0.143 s, in the 13th decode step, for an arrival."""

        arrival_s = 0.143

        async def wait(self, wake: asyncio.Event, until: float | None = None) -> None:
            if until is not None and self._now < self.arrival_s < until:
                self._now = self.arrival_s
                bench.submit("late", 1000, 20, 1)
            else:
                await super().wait(wake, until)

    bench = Bench()
    bench.clock = bench.outbox._clock = bench.rank._clock = Interruptible()

    async def story() -> None:
        bench.submit("long", 0, 8, 40)
        await bench.drain()

    bench.run(story)
    # Decode steps end at 0.018, 0.028, ... 0.148; then one with 20 prompt tokens beside it: 0.148 + 0.020 + 0.010.
    assert bench.finished == [("late", 0.178), ("long", 0.418)]


def test_an_abort_during_a_pause_gives_the_memory_back() -> None:
    bench = Bench()

    async def story() -> None:
        request = bench.submit("a", 0, 8, 1000)
        await until(lambda: request.produced >= 5)
        bench.rank.pause()
        bench.rank.abort(request)
        await until(lambda: request.state is RequestState.ABORTED)
        assert bench.rank.scheduler.used == bench.cache.total
        assert bench.rank.flush()

    bench.run(story)


def test_requests_are_told_when_the_rank_stops() -> None:
    bench = Bench()
    requests = []

    async def story() -> None:
        requests.extend([bench.submit("a", 0, 8, 10**4 // PAGE), bench.submit("b", 1000, 8, 5)])
        await asyncio.sleep(0)

    bench.run(story)
    assert [request.state for request in requests] == [RequestState.ABORTED] * 2
    assert [name for name, _ in bench.finished] == ["a", "b"]


def test_a_row_of_steps_that_crosses_the_interval_reports_once() -> None:
    clock = VirtualClock()
    outbox = Outbox(clock)
    cache = RadixCache(page_size=PAGE, capacity=400)
    announcer = Announcer(cache, outbox, dp_rank=1)
    announcer.after(Progress(0, 39, []))
    assert outbox.sent == []
    assert announcer.steps_to_report == 1
    announcer.after(Progress(0, 3, []))
    assert len(outbox.sent) == 1
    assert announcer.steps_to_report == 38
    assert announcer.dropped == 2
    announcer.close()
    announcer.close()
    assert outbox.is_closed


def test_the_loop_clock_runs_at_its_speed_and_makes_up_for_late_wakes() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(speed=100)
        wake = asyncio.Event()
        start, begin = loop.time(), clock.now()
        for step in range(1, 21):
            wake.clear()
            while clock.now() < begin + step * 0.2:
                wake.clear()
                await clock.wait(wake, begin + step * 0.2)
        # 20 steps of 2 ms of real time: rounding up a wait must not add up.
        assert 0.04 <= loop.time() - start < 0.2
        wake.clear()
        loop.call_soon(wake.set)
        await clock.wait(wake, clock.now() + 10**6)
        await clock.wait(wake)
        before = clock.now()
        await clock.wait(wake, before - 5)

    asyncio.run(story())
