"""`kvevents serve` before engines of hybrid models: what it expects cached is what they find."""

import contextlib
import json

import aiohttp
import pytest

from kvevents.simulation.children import Child
from serving import get, run, until

pytestmark = pytest.mark.integration

PAGE = 16
EVENTS = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
ENGINE = (
    *("engine", "--port", "0", "--page-size", str(PAGE), "--speed", "100", "--kv-events-config", EVENTS),
    *("--max-total-tokens", str(60 * PAGE), "--chunked-prefill-size", str(10 * PAGE), "--announce-groups"),
)


async def complete(url: str, prompt: list[int]) -> tuple[int, int]:
    """Cached tokens as the router expected them, and as the engine found them."""
    body = {"prompt": prompt, "max_tokens": 40}
    async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        expected = int(response.headers["x-kvevents-expected-cached-blocks"]) * PAGE
        usage = (await response.json())["usage"]
    return expected, usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        (("--cache", "swa", "--sliding-window", "100"), 9),
        (("--cache", "swa", "--sliding-window", "40", "--window-tokens", str(24 * PAGE)), 9),
        (("--cache", "mamba", "--mamba-slots", "8"), 6),
        (("--cache", "unified", "--sliding-window", "40", "--mamba-slots", "8"), 6),
    ],
)
def test_what_the_router_expects_is_what_the_engine_finds(cache: tuple[str, ...], found: int) -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            engine = await Child.start("engine", [*ENGINE, *cache])
            stack.push_async_callback(engine.stop)
            router = await Child.start("router", ["serve", "--port", "0", "--worker", engine.url])
            stack.push_async_callback(router.stop)
            worker = engine.url.removeprefix("http://")

            async def is_told() -> bool:
                """Whether the index has every batch that the engine has published."""
                (rank,) = (await get(engine.url, "/holdings"))["ranks"]
                known = (await get(router.url, f"/holdings/{worker}"))["ranks"]
                if [one["seq"] for one in known] != [rank["seq"]]:
                    return False
                assert set(known[0]["tiers"]["GPU"]) == set(rank["tiers"]["GPU"])
                return True

            hits = 0
            for number in range(4):
                system = [number % 2 * 1000 + position for position in range(12 * PAGE)]
                for turn in range(3):
                    tail = 5000 * (number + 1) + 1000 * turn
                    prompt = [*system, *range(tail, tail + 50)]
                    for tokens in (prompt, prompt, system):
                        expected, cached = await complete(router.url, tokens)
                        assert cached == expected
                        hits += cached > 0
                        await until(is_told)
            assert hits >= found

    run(test)
