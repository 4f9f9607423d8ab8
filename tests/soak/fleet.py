"""What is soaked: a router over engines with real caches and events, all as processes."""

import asyncio
import json
from pathlib import Path
from typing import Any, Self

import httpx

from chaos.process import Process, free_ports

HOST = "127.0.0.1"
ENGINES = 3
ENGINE = (
    *("--page-size", "16", "--max-total-tokens", "32768", "--speed", "20"),
    *("--max-running-requests", "256", "--max-queued-requests", "1000"),
)
ROUTER = tuple(
    word
    for setting in (
        "routing.learned_max_blocks=16384",
        "dashboard.known_blocks=16384",
        "dashboard.fine_buckets=60",
        "dashboard.coarse_buckets=60",
    )
    for word in ("--set", setting)
)
"""What it remembers of prompts and of the past has bounds that are reached after hours: here, while it warms up."""
AGREE_S = 20.0

Holdings = dict[int, dict[str, set[int]]]


class Fleet:
    """Engines and a router.

    Args:
        logs: folder for what the processes write.

    Attributes:
        engines: by the name that the router gives them.
        url: of the router.
    """

    def __init__(self, logs: Path) -> None:
        self.engines: dict[str, Process] = {}
        for number in range(ENGINES):
            http, live, replay = free_ports(3, HOST)
            events = {"endpoint": f"tcp://{HOST}:{live}", "replay_endpoint": f"tcp://{HOST}:{replay}"}
            self.engines[f"{HOST}:{http}"] = Process(
                f"engine-{number}",
                *("engine", "--host", HOST, "--port", str(http), *ENGINE, "--kv-events-config", json.dumps(events)),
                log=logs / f"engine-{number}.log",
            )
        workers = [word for worker in self.engines for word in ("--worker", f"http://{worker}")]
        self.router = Process("router", "serve", "--port", "0", *ROUTER, *workers, log=logs / "router.log")
        self.url = ""

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(engine.start() for engine in self.engines.values()))
        self.url = (await self.router.start())["url"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(process.kill() for process in (self.router, *self.engines.values())))

    def router_memory(self) -> int:
        """Resident bytes of the router."""
        status = Path(f"/proc/{self.router.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    async def differences(self) -> list[str]:
        """In what index and engines differ when nothing happens any more; what is on its way is waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AGREE_S
        async with httpx.AsyncClient(timeout=10) as http:
            while True:
                found = [await self._difference(http, worker) for worker in self.engines]
                differences = [one for one in found if one]
                if not differences or loop.time() > deadline:
                    return differences
                await asyncio.sleep(0.1)

    async def _difference(self, http: httpx.AsyncClient, worker: str) -> str:
        engine = _held((await http.get(f"http://{worker}/holdings")).json())
        index = _held((await http.get(f"{self.url}/holdings/{worker}")).json())
        if engine == index:
            return ""
        counts = [{tier: len(blocks) for tier, blocks in held.get(0, {}).items()} for held in (engine, index)]
        return f"{worker}: the engine holds {counts[0]}, the index says {counts[1]}"


def _held(answer: dict[str, Any]) -> Holdings:
    return {
        rank["dp_rank"]: tiers
        for rank in answer["ranks"]
        if (tiers := {tier: set(blocks) for tier, blocks in rank["tiers"].items() if blocks})
    }
