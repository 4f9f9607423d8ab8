"""One round: faults drawn by a seed while requests flow, then peace, then every picture has to be right."""

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from chaos.fleet import PAGE, Fleet, Site
from chaos.process import Process

TROUBLE_S = 3.0
PEACE_S = 20.0
"""How long everything may take to be right again once the faults are over."""


@dataclass
class Round:
    """What happened in one round.

    Attributes:
        seed: draws the same faults again.
        faults: what was done, when.
        healed_s: from the end of the faults until every picture was right.
        failures: what was not as it should be.
    """

    seed: int
    faults: list[str] = field(default_factory=list)
    healed_s: float = 0.0
    failures: list[str] = field(default_factory=list)


async def run_round(fleet: Fleet, seed: int) -> Round:
    """Hurt the fleet for a while and see that it converges."""
    done = Round(seed)
    chance = random.Random(seed)
    judged = len(fleet.observer.violations)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_watch(fleet))
        asking = [group.create_task(_ask(fleet, random.Random(f"{seed} {who}"), who)) for who in range(3)]
        faults = _faults(fleet, chance)
        pauses = sorted(chance.uniform(0, TROUBLE_S / 2) for _ in range(chance.randint(2, 4)))
        await asyncio.gather(*(_strike(done, pause, *next(faults), chance) for pause in pauses))
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        healed = time.monotonic()
        done.failures += await _converge(fleet)
        done.healed_s = time.monotonic() - healed
        watching.cancel()
    done.failures += fleet.observer.violations[judged:]
    for process in fleet.processes:
        done.failures += [f"{process.name}: {text}" for text in process.exceptions()]
    return done


async def _watch(fleet: Fleet) -> None:
    while True:
        await asyncio.gather(
            *(
                fleet.observer.look(site.worker, site.url, site.engine.starts, relayed=site.relay is not None)
                for site in fleet.sites
            ),
            asyncio.sleep(0.2),
        )


async def _ask(fleet: Fleet, chance: random.Random, who: int) -> None:
    """Requests of a few families, so that prompts share prefixes and caches are full; some past the router."""
    for number in itertools.count():
        family = chance.randrange(6)
        shared = [1_000 * family + position for position in range(PAGE * chance.randint(1, 20))]
        own = [100_000 * (1 + who) + number * 50 + position for position in range(PAGE * chance.randint(1, 10))]
        site = chance.choice(fleet.sites) if chance.random() < 0.4 else None
        await fleet.ask(shared + own, site=site)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.02, 0.3]))


Fault = tuple[str, Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]


def _faults(fleet: Fleet, chance: random.Random) -> Iterator[Fault]:
    """Names, ways to hurt and ways to heal; nothing is drawn twice in a round."""
    faults = [fault(process) for process in fleet.processes for fault in (_killed, _frozen)]
    for site in fleet.sites:
        faults += [_cut_off(site, chance), _cut_off(site, chance), _flushed(fleet, site)]
    chance.shuffle(faults)
    seen: set[str] = set()
    for fault in faults:
        target = fault[0].split(": ")[0]
        if target not in seen:  # what is frozen cannot be killed as well: the ends would meet
            seen.add(target)
            yield fault


def _killed(process: Process) -> Fault:
    async def start() -> None:
        await process.start()

    return f"{process.name}: killed", process.kill, start


def _frozen(process: Process) -> Fault:
    async def freeze() -> None:
        process.freeze()

    async def thaw() -> None:
        process.thaw()

    return f"{process.name}: frozen", freeze, thaw


def _cut_off(site: Site, chance: random.Random) -> Fault:
    link = chance.choice(site.links)
    fault = chance.choice(link.faults)
    return f"{site.engine.name}: {fault} on link {site.links.index(link)}", lambda: link.hurt(fault), link.heal


def _flushed(fleet: Fleet, site: Site) -> Fault:
    async def flush() -> None:
        await fleet.flush(site)

    return f"{site.engine.name}: flushed", flush, flush


async def _strike(
    done: Round,
    pause: float,
    name: str,
    hurt: Callable[[], Awaitable[None]],
    heal: Callable[[], Awaitable[None]],
    chance: random.Random,
) -> None:
    lasts = chance.choice([0.05, 0.5, 1.5, 3.0])
    await asyncio.sleep(pause)
    done.faults.append(f"{name} after {pause:.2f} s for {lasts:g} s")
    await hurt()
    await asyncio.sleep(lasts)
    await heal()


async def _converge(fleet: Fleet) -> list[str]:
    """What is still wrong when peace is over.

    Engines get a request now and then: behind a network that keeps connections open, a restart is taken for one when
    the live socket agrees.
    """
    deadline = time.monotonic() + PEACE_S
    for number in itertools.count():
        if number % 10 == 5:
            own = [900_000 + 10 * number + position for position in range(2 * PAGE)]
            await asyncio.gather(
                *(fleet.ask(own, site=site, rank=rank) for site in fleet.sites for rank in range(site.ranks))
            )
        wrong = [fault for site in fleet.sites for fault in await _unsettled(fleet, site)]
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.1)
    raise AssertionError("counting ends nowhere")


async def _unsettled(fleet: Fleet, site: Site) -> list[str]:
    states = await fleet.observer.states(site.worker)
    if not states:
        return [f"{site.engine.name}: the router follows no source of it"]
    if not site.is_repairable:  # it may have lost what nobody can tell it: it must say so, or be right
        if set(states.values()) <= {"live", "degraded"}:
            fault = await fleet.observer.disagreement(site.worker, site.url)
            return [f"live, and {fault}"] if fault and "live" in states.values() else []
        return [f"{site.engine.name}: {states}"]
    if set(states.values()) != {"live"}:
        return [f"{site.engine.name}: {states}"]
    fault = await fleet.observer.disagreement(site.worker, site.url)
    return [f"{site.engine.name}: {fault}"] if fault else []
