"""The fleet of the chaos rounds: engines behind links, and a router, all as processes."""

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp

from chaos.link import OUTSIDE, Link, Loss, Wire
from chaos.observer import Observer
from chaos.process import Process, free_ports

INSIDE = "127.0.0.2"
PAGE = 16
ENGINE = ("--page-size", str(PAGE), "--max-total-tokens", "8192", "--speed", "50", "--max-queued-requests", "200")


@dataclass
class Site:
    """An engine, the links to it, and how it is reached.

    Attributes:
        engine: its process.
        links: to its HTTP port, and to its event sockets.
        url: the engine past its links.
        worker: its id in the router.
        is_repairable: whether what is lost can be asked for again; else its source ends `degraded`.
        ranks: how many it has.
        relay: stands between the engine's events and the router; None: nothing does.
    """

    engine: Process
    links: Sequence[Link]
    url: str
    worker: str
    is_repairable: bool
    ranks: int = 1
    relay: Process | None = None

    @property
    def processes(self) -> Sequence[Process]:
        return [self.engine] if self.relay is None else [self.engine, self.relay]


def make_site(name: str, logs: Path, chance: random.Random, *, kind: str, ranks: int = 1, replay: bool = True) -> Site:
    """An engine whose event sockets are behind wires (`kind="wire"`) or a network that loses messages (`"loss"`)."""
    http, *events = free_ports(1 + 2 * ranks, OUTSIDE, INSIDE)
    live, replays = events[:ranks], events[ranks:]
    engine = _engine(name, logs, http, live[0], replays[0] if replay else None, ranks=ranks)
    links: list[Link] = [Wire(INSIDE, http)]
    if kind == "wire":
        links += [Wire(INSIDE, port) for port in (*live, *(replays if replay else ()))]
    else:
        links += [Loss(INSIDE, live[r], replays[r] if replay else None, chance) for r in range(ranks)]
    return Site(engine, links, f"http://{INSIDE}:{http}", f"{OUTSIDE}:{http}", is_repairable=replay, ranks=ranks)


def make_relayed_site(name: str, logs: Path) -> Site:
    """An engine whose events come to the router through a relay; its requests do not."""
    http, live, replay, front, out, again, info = free_ports(7, OUTSIDE, INSIDE)
    relay = Process(
        f"{name}-relay",
        *("relay", f"http://{OUTSIDE}:{http}", "--log", str(logs / f"{name}-log"), "--http", f"{OUTSIDE}:{info}"),
        *("--endpoint", f"tcp://{OUTSIDE}:{out}", "--replay-endpoint", f"tcp://{OUTSIDE}:{again}"),
        log=logs / f"{name}-relay.log",
    )
    links = [
        Wire(INSIDE, front, there=http, apart=(b"GET /server_info", info)),
        *(Wire(INSIDE, port) for port in (http, live, replay)),
    ]
    engine = _engine(name, logs, http, live, replay)
    return Site(engine, links, f"http://{INSIDE}:{http}", f"{OUTSIDE}:{front}", is_repairable=True, relay=relay)


def _engine(name: str, logs: Path, http: int, live: int, replay: int | None, *, ranks: int = 1) -> Process:
    config = {"endpoint": f"tcp://{INSIDE}:{live}", "topic": "kv", "buffer_steps": 100_000, "snapshot": name == "wired"}
    if replay is not None:
        config["replay_endpoint"] = f"tcp://{INSIDE}:{replay}"
    return Process(
        name,
        "engine",
        *("--host", INSIDE, "--port", str(http), "--dp-size", str(ranks), *ENGINE),
        *("--kv-events-config", json.dumps(config)),
        log=logs / f"{name}.log",
    )


class Fleet:
    """Engines, links and a router that run over many rounds.

    Args:
        logs: folder for what the processes write.
        chance: decides which messages links lose.
    """

    def __init__(self, logs: Path, chance: random.Random) -> None:
        self.sites = [
            make_site("wired", logs, chance, kind="wire"),
            make_site("lossy", logs, chance, kind="loss"),
            make_site("ranks", logs, chance, kind="loss", ranks=2),
            make_site("no-replay", logs, chance, kind="wire", replay=False),
            make_relayed_site("relayed", logs),
        ]
        [port] = free_ports(1, OUTSIDE)
        workers = [word for site in self.sites for word in ("--worker", f"http://{site.worker}")]
        self.router = Process(
            "router",
            *("serve", "--port", str(port), "--set", "fleet.probe_interval_s=0.3", *workers),
            log=logs / "router.log",
        )
        self.url = f"http://{OUTSIDE}:{port}"
        self.observer = Observer(self.url)
        self.answered = 0
        self.refused = 0
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=4.0))

    @property
    def processes(self) -> Sequence[Process]:
        return [self.router, *(process for site in self.sites for process in site.processes)]

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(site.engine.start() for site in self.sites))
        await asyncio.gather(*(link.open() for site in self.sites for link in site.links))
        await asyncio.gather(*(site.relay.start() for site in self.sites if site.relay is not None))
        await self.router.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        await self.observer.close()
        await asyncio.gather(*(link.close() for site in self.sites for link in site.links))
        await asyncio.gather(*(process.kill() for process in self.processes))

    async def ask(self, prompt: Sequence[int], *, site: Site | None = None, rank: int | None = None) -> None:
        """A request through the router, or to an engine past its link. Whatever comes back is fine: faults are on."""
        base = self.url if site is None else site.url
        body = {"model": "kvevents-sim", "prompt": list(prompt), "max_tokens": 2, "data_parallel_rank": rank}
        try:
            async with self._http.post(f"{base}/v1/completions", json=body) as response:
                await response.read()
                self.answered += response.status == 200
                self.refused += response.status != 200
        except (aiohttp.ClientError, TimeoutError):
            self.refused += 1

    async def flush(self, site: Site) -> None:
        """Empty an engine's cache; it refuses while it works."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._http.post(f"{site.url}/flush_cache") as response:
                await response.read()
