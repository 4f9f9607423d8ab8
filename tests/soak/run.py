"""One soak: find the limit, stay below it, kill an engine now and then, and look at everything."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from soak.client import Client
from soak.fleet import Fleet
from soak.verdict import Death, Verdict

SHARE = 0.8
IN_FLIGHT = 32
"""Requests at a time while the limit is measured."""
MOST_IN_FLIGHT = 128
"""At the rate: where the machine has become slower since, the clients wait, and the soak does not turn into a flood."""
FAMILIES = 40
DOWN_S = 1.0
SAMPLE_S = 0.25


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How long what takes.

    Attributes:
        limit_s: measuring the limit.
        warm_up_s: at the rate, before memory is looked at.
        soak_s: at the rate after that.
        kill_every_s: between two deaths of engines.
        growth_bytes: that the router may grow by after warm-up.
    """

    limit_s: float
    warm_up_s: float
    soak_s: float
    kill_every_s: float
    growth_bytes: int = 4 * 2**20


class Outcome(msgspec.Struct, kw_only=True):
    """What came out of it, for people."""

    failures: list[str]
    plan: Plan
    limit_per_s: float
    rate_per_s: float
    answered_per_s: float
    requests: dict[str, int]
    latency_p50_ms: float
    latency_p99_ms: float
    deaths: int
    router_mb: float
    router_grown_kb: float
    router_allowed_kb: float
    router_slope_kb_per_min: float


class Requests:
    """Prompts of a few families, which grow turn by turn; most answers are streamed.

    Args:
        seed: of all of it.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._families = [self._ids(self._chance.randrange(64, 512)) for _ in range(FAMILIES)]

    def next(self) -> dict[str, object]:
        chance = self._chance
        place = min(int(chance.expovariate(0.1)), FAMILIES - 1)
        prompt = self._families[place] + self._ids(chance.randrange(8, 64))
        if chance.random() < 0.2:
            self._families[place] = prompt if len(prompt) < 1024 else self._ids(256)
        is_stream = chance.random() < 0.7
        return {"model": "kvevents-sim", "prompt": prompt, "max_tokens": chance.choice((1, 8, 64)), "stream": is_stream}

    def _ids(self, count: int) -> list[int]:
        return self._chance.choices(range(1000, 30_000), k=count)


async def soak(plan: Plan, logs: Path, *, seed: int = 1, say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run it; what is wrong is in the outcome's `failures`."""
    verdict, times = Verdict(plan.growth_bytes), list[float]()
    async with Fleet(logs) as fleet:
        client, requests = Client(fleet.url), Requests(seed)
        try:
            limit = await _limit(client, requests, plan.limit_s)
            rate = SHARE * limit
            say(f"the limit is {limit:.0f} requests a second; {rate:.0f} for {plan.warm_up_s + plan.soak_s:.0f} s")

            async def ask() -> None:
                answer = await client.ask(requests.next())
                verdict.take(answer)
                times.append(answer.ended - answer.started)

            await _at_rate(rate, plan.warm_up_s, ask)
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(_watch_memory(fleet, verdict)),
                    group.create_task(_kill(fleet, verdict, plan, seed, say)),
                ]
                await _at_rate(rate, plan.soak_s, ask)
                for task in beside:
                    task.cancel()
            await asyncio.gather(*(engine.start() for engine in fleet.engines.values() if not engine.is_running))
            verdict.differences = await fleet.differences()
            processes = (fleet.router, *fleet.engines.values())
            verdict.exceptions = [f"{one.name}: {text}" for one in processes for text in one.exceptions()]
        finally:
            client.close()
    times.sort()
    grown, allowed = verdict.growth
    return Outcome(
        failures=verdict.failures,
        plan=plan,
        limit_per_s=round(limit),
        rate_per_s=round(rate),
        answered_per_s=round(verdict.outcomes.total() / (plan.warm_up_s + plan.soak_s)),
        requests=dict(verdict.outcomes),
        latency_p50_ms=round(times[len(times) // 2] * 1e3, 1),
        latency_p99_ms=round(times[len(times) * 99 // 100] * 1e3, 1),
        deaths=len(verdict.deaths),
        router_mb=round(verdict.memory[-1][1] / 1e6, 1),
        router_grown_kb=round(grown / 1e3),
        router_allowed_kb=round(allowed / 1e3),
        router_slope_kb_per_min=round(verdict.slope / 1e3, 1),
    )


async def _limit(client: Client, requests: Requests, seconds: float) -> float:
    """Requests a second in a closed loop."""
    end = time.monotonic() + seconds
    answered = 0

    async def again() -> None:
        nonlocal answered
        while time.monotonic() < end:
            answer = await client.ask(requests.next())
            assert answer.is_success, answer
            answered += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(again())
    return answered / seconds


async def _at_rate(rate: float, seconds: float, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Ask so often, however long answers take, with so many at a time at most; back when the last one is there."""
    room = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def one() -> None:
        try:
            await ask()
        finally:
            room.release()

    due = began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while (now := time.monotonic()) < began + seconds:
            if due > now:
                await asyncio.sleep(due - now)
            due = max(due, now - 1) + 1 / rate  # what was missed for longer is not made up for
            await room.acquire()
            group.create_task(one())


async def _watch_memory(fleet: Fleet, verdict: Verdict) -> None:
    while True:
        verdict.memory.append((time.monotonic(), fleet.router_memory()))
        await asyncio.sleep(SAMPLE_S)


async def _kill(fleet: Fleet, verdict: Verdict, plan: Plan, seed: int, say: Callable[[str], None]) -> None:
    """Kill an engine in the middle of each period, and start it again on the same ports."""
    chance = random.Random(seed)
    while True:
        await asyncio.sleep(plan.kill_every_s / 2)
        worker = chance.choice(list(fleet.engines))
        death = Death(worker, time.monotonic())
        verdict.deaths.append(death)
        await fleet.engines[worker].kill()
        await asyncio.sleep(DOWN_S)
        await fleet.engines[worker].start()
        death.back = time.monotonic()
        say(f"{worker} was killed and is back after {death.back - death.at:.1f} s; {dict(verdict.outcomes)}")
        await asyncio.sleep(plan.kill_every_s / 2 - (death.back - death.at))
