"""Engines whose caches are not what their events say, found by a router from what they report; real processes."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvevents.simulation.children import Child
from serving import get, post, run, until

pytestmark = pytest.mark.integration

PAGE = 16
EVENTS = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
FOUND_WITHIN = 15


def prompt(number: int) -> list[int]:
    """Token ids that share no block with those of another number."""
    return [number * 100_000 + position for position in range(20 * PAGE)]


async def start(stack: contextlib.AsyncExitStack, name: str, *arguments: str) -> Child:
    child = await Child.start(name, arguments)
    stack.push_async_callback(child.stop)
    return child


async def start_engines(stack: contextlib.AsyncExitStack, number: int, *arguments: str) -> list[Child]:
    options = ("--port", "0", "--page-size", str(PAGE), "--speed", "50", "--kv-events-config", EVENTS, *arguments)
    return await asyncio.gather(*(start(stack, f"engine {one}", "engine", *options) for one in range(number)))


async def start_router(stack: contextlib.AsyncExitStack, *arguments: str) -> Child:
    router = await start(stack, "router", "serve", "--port", "0", *arguments)

    async def is_ready() -> bool:
        async with aiohttp.ClientSession(router.url) as http, http.get("/ready") as response:
            return response.status == 200

    await until(is_ready)
    return router


async def complete(url: str, tokens: list[int]) -> tuple[str | None, int]:
    """Who answered, and what it found cached."""
    body = {"prompt": tokens, "max_tokens": 2}
    async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return response.headers.get("x-kvevents-worker"), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def held(url: str, worker: str, tokens: list[int]) -> bool:
    matches = (await post(url, "/query", {"token_ids": tokens}))["matches"]
    return any(match["worker"] == worker and match["usable"] >= len(tokens) // PAGE for match in matches)


def test_a_worker_with_events_of_another_engine_is_degraded_within_a_few_answers(tmp_path: Path) -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            liar, other, honest = await start_engines(stack, 3)
            config = tmp_path / "serve.toml"
            config.write_text(
                f'[[worker]]\nid = "liar"\nurl = "{liar.url}"\nevents = "{other.url}"\n'
                f'[[worker]]\nid = "honest"\nurl = "{honest.url}"\n'
            )
            router = await start_router(stack, "--config", str(config))
            chosen = []
            for number in range(FOUND_WITHIN):
                tokens = prompt(number)
                await complete(other.url, tokens)  # the other engine has it now, and says so
                await until(lambda tokens=tokens: held(router.url, "liar", tokens))  # type: ignore[misc]
                worker, cached = await complete(router.url, tokens)
                assert cached == 0
                chosen.append(worker)
            states = {worker["id"]: worker for worker in (await get(router.url, "/workers"))["workers"]}
            assert chosen.count("liar") >= 13
            assert states["liar"]["state"] == "degraded"
            assert "finds less cached than its events promise" in states["liar"]["state_reason"]
            assert states["honest"]["state"] == "live"
            # What comes back under its name is judged anew.
            async with aiohttp.ClientSession(router.url) as http:
                await http.delete("/workers/liar")
            joined = await post(
                router.url, "/workers", {"id": "liar", "url": liar.url, "events": other.url}, status=201
            )
            assert joined["state"] != "degraded"
            assert joined["truth"] is None or joined["truth"]["verdict"] == "new"

    run(test)


def test_engines_that_keep_their_word_under_pressure_stay_live() -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            engines = await start_engines(stack, 2, "--max-total-tokens", str(60 * PAGE))
            workers = [word for engine in engines for word in ("--worker", engine.url)]
            router = await start_router(stack, *workers)
            for turn in range(20):  # five prompts of 20 pages in flight, room for three an engine
                await asyncio.gather(*(complete(router.url, prompt((turn + place) % 7)) for place in range(5)))
            for worker in (await get(router.url, "/workers"))["workers"]:
                assert worker["state"] == "live"

    run(test)
