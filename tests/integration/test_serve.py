"""`kvevents serve` before real engines, all as processes of their own."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from kvevents.errors import TransportError
from kvevents.simulation.children import Child
from serving import get, post, run, until

pytestmark = pytest.mark.integration

PAGE = 16
EVENTS = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})


def prompt(number: int, tokens: int = 20 * PAGE) -> list[int]:
    """Token ids that share no block with those of another number."""
    return [number * 100_000 + position for position in range(tokens)]


@contextlib.asynccontextmanager
async def children() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


async def start(stack: contextlib.AsyncExitStack, name: str, *arguments: str) -> Child:
    child = await Child.start(name, arguments)
    stack.push_async_callback(child.stop)
    return child


async def start_engines(
    stack: contextlib.AsyncExitStack, number: int, *arguments: str, speed: float = 20
) -> Sequence[Child]:
    options = ("--port", "0", "--page-size", str(PAGE), "--speed", str(speed), "--kv-events-config", EVENTS, *arguments)
    return await asyncio.gather(*(start(stack, f"engine {one}", "engine", *options) for one in range(number)))


async def start_router(stack: contextlib.AsyncExitStack, engines: Sequence[Child], *arguments: str) -> Child:
    workers = [word for engine in engines for word in ("--worker", engine.url)]
    router = await start(stack, "router", "serve", "--port", "0", *workers, *arguments)

    async def is_ready() -> bool:
        async with aiohttp.ClientSession(router.url) as http, http.get("/ready") as response:
            return response.status == 200

    await until(is_ready)
    return router


async def complete(url: str, tokens: Sequence[int], **fields: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body of a whole completion."""
    body = {"prompt": list(tokens), "max_tokens": 4, **fields}
    async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return {name.lower(): value for name, value in response.headers.items()}, await response.json()


async def held(url: str, tokens: Sequence[int], blocks: int) -> None:
    """Wait until the router's index says that some worker holds this much of a prompt."""

    async def is_held() -> bool:
        matches = (await post(url, "/query", {"token_ids": list(tokens)}))["matches"]
        return max((match["usable"] for match in matches), default=0) >= blocks

    await until(is_held)


def test_a_prefix_goes_back_to_where_it_is_cached_and_the_engine_agrees() -> None:
    async def test() -> None:
        async with children() as stack:
            router = await start_router(stack, await start_engines(stack, 2))
            for number in range(4):
                first, _ = await complete(router.url, prompt(number))
                await held(router.url, prompt(number), 20)
                for tokens in (prompt(number), [*prompt(number), *prompt(10 + number, 3 * PAGE)]):
                    headers, body = await complete(router.url, tokens)
                    assert headers["x-kvevents-worker"] == first["x-kvevents-worker"]
                    expected = int(headers["x-kvevents-expected-cached-blocks"]) * PAGE
                    assert expected == (19 if len(tokens) == 20 * PAGE else 20) * PAGE
                    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
            figures = await get(router.url, "/stats")
            assert all(worker["events"] == "received" for worker in figures["workers"])
            counts = figures["requests"]["kv"]
            assert counts["reported_cached_tokens"] == counts["expected_cached_tokens"] == 8 * 19.5 * PAGE
            outcomes = figures["outcomes"].values()
            assert sorted(outcome["ok"] for outcome in outcomes) == [6, 6]

    run(test)


def test_text_and_chat_find_their_prefix_too() -> None:
    async def test() -> None:
        async with children() as stack:
            router = await start_router(stack, await start_engines(stack, 2))
            chat = {"messages": [{"role": "user", "content": "tell me more " * 20}]}
            for path, body in (
                ("/v1/completions", {"prompt": "once upon a time " * 20}),
                ("/v1/chat/completions", chat),
            ):
                decision = await post(router.url, path, body)
                tokens = decision["usage"]["prompt_tokens"]

                async def is_held(body: dict[str, Any] = body, tokens: int = tokens) -> bool:
                    return bool((await post(router.url, "/route", body))["usable"] == (tokens - 1) // PAGE)

                await until(is_held)
                async with aiohttp.ClientSession(router.url) as http, http.post(path, json=body) as response:
                    expected = int(response.headers["x-kvevents-expected-cached-blocks"]) * PAGE
                    usage = (await response.json())["usage"]
                    assert usage["prompt_tokens_details"]["cached_tokens"] == expected > 0

    run(test)


def test_a_stream_is_the_engines_byte_for_byte() -> None:
    async def test() -> None:
        async with children() as stack:
            (engine,) = await start_engines(stack, 1)
            router = await start_router(stack, [engine])
            body = {
                "prompt": prompt(0),
                "max_tokens": 30,
                "stream": True,
                "stream_options": {"include_usage": True},
                "rid": "same",
            }
            received = []
            for url in (engine.url, engine.url, router.url):  # the first fills the cache
                async with aiohttp.ClientSession(url) as http, http.post("/v1/completions", json=body) as response:
                    assert response.headers["content-type"].startswith("text/event-stream")
                    received.append(re.sub(rb'"created":\d+', b'"created":0', await response.read()))
            assert received[1] == received[2]
            assert received[2].endswith(b"data: [DONE]\n\n")
            counts = (await get(router.url, "/stats"))["requests"]["kv"]
            assert counts["reported_cached_tokens"] == 19 * PAGE

    run(test)


def test_a_killed_engine_is_passed_by() -> None:
    async def test() -> None:
        async with children() as stack:
            engines = await start_engines(stack, 2)
            router = await start_router(stack, engines)
            first, _ = await complete(router.url, prompt(0))
            await held(router.url, prompt(0), 20)
            owner = next(engine for engine in engines if engine.url.endswith(first["x-kvevents-worker"]))
            os.kill(owner.pid, signal.SIGKILL)
            await owner.ended()
            for number in range(6):
                headers, _ = await complete(router.url, prompt(0 if number % 2 else number))
                assert headers["x-kvevents-worker"] != first["x-kvevents-worker"]
            up = {worker["id"]: worker["up"] for worker in (await get(router.url, "/workers"))["workers"]}
            assert up == {engine.url.removeprefix("http://"): engine is not owner for engine in engines}

    run(test)


def test_a_killed_engine_ends_its_streams_with_an_error() -> None:
    async def test() -> None:
        async with children() as stack:
            (engine,) = await start_engines(stack, 1, speed=0.5)
            router = await start_router(stack, [engine])
            body = {"prompt": prompt(0), "max_tokens": 1000, "stream": True}
            async with aiohttp.ClientSession(router.url) as http, http.post("/v1/completions", json=body) as response:
                received = await response.content.readany()
                os.kill(engine.pid, signal.SIGKILL)
                received += await response.content.read()
            assert b'"code":"worker_failed"' in received.split(b"\n\n")[-2]

    run(test)


def test_an_engine_killed_under_load_loses_nothing_that_had_not_begun() -> None:
    async def test() -> None:
        async with children() as stack:
            engines = await start_engines(stack, 2, speed=1)
            router = await start_router(stack, engines, "--policy", "round_robin")
            begun = 0

            async def stream(http: aiohttp.ClientSession, number: int) -> tuple[str, bytes]:
                nonlocal begun
                body = {"prompt": prompt(number), "max_tokens": 20, "stream": True}
                async with http.post("/v1/completions", json=body) as response:
                    assert response.status == 200
                    received = await response.content.readany()
                    begun += 1
                    return response.headers["x-kvevents-worker"], received + await response.content.read()

            async def some_have_begun() -> bool:
                return begun > 4

            async with aiohttp.ClientSession(router.url) as http, asyncio.TaskGroup() as group:
                tasks = [group.create_task(stream(http, number)) for number in range(40)]
                await until(some_have_begun)
                os.kill(engines[0].pid, signal.SIGKILL)
                tasks += [group.create_task(stream(http, number)) for number in range(40, 50)]
            killed = engines[0].url.removeprefix("http://")
            for worker, received in (task.result() for task in tasks):
                if worker != killed or b"worker_failed" not in received:
                    assert received.endswith(b"data: [DONE]\n\n")
            assert {task.result()[0] for task in tasks[40:]} == {engines[1].url.removeprefix("http://")}
            for worker in (await get(router.url, "/stats"))["workers"]:
                assert worker["ranks"][0].items() >= {"requests": 0, "queued_tokens": 0, "decode_tokens": 0}.items()

    run(test)


def test_ranks_are_chosen_by_what_they_hold() -> None:
    async def test() -> None:
        async with children() as stack:
            router = await start_router(stack, await start_engines(stack, 1, "--dp-size", "2"))
            chosen = []
            for number in range(4):
                first, _ = await complete(router.url, prompt(number))
                await held(router.url, prompt(number), 20)
                headers, body = await complete(router.url, prompt(number))
                assert headers["x-kvevents-dp-rank"] == first["x-kvevents-dp-rank"] == headers["x-data-parallel-rank"]
                assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 19 * PAGE
                chosen.append(first["x-kvevents-dp-rank"])
            assert sorted(chosen) == ["0", "0", "1", "1"]

    run(test)


def test_an_engine_without_events_is_served_all_the_same() -> None:
    async def test() -> None:
        async with children() as stack:
            silent = await start(stack, "silent engine", "engine", "--port", "0", "--speed", "20")
            router = await start_router(stack, [silent])
            headers, _ = await complete(router.url, prompt(0))
            assert headers["x-kvevents-expected-cached-blocks"] == "0"
            (worker,) = (await get(router.url, "/workers"))["workers"]
            assert "publishes no KV cache events" in worker["events"]

    run(test)


def test_open_requests_end_before_the_router_does() -> None:
    async def test() -> None:
        async with children() as stack:
            router = await start_router(stack, await start_engines(stack, 1, speed=1))
            body = {"prompt": prompt(0), "max_tokens": 40, "stream": True}
            async with aiohttp.ClientSession(router.url) as http:
                async with http.post("/v1/completions", json=body) as response:
                    received = await response.content.readany()
                    os.kill(router.pid, signal.SIGTERM)
                    received += await response.content.read()
                assert received.endswith(b"data: [DONE]\n\n")
                await router.ended()
                assert "ended with exit code 0" in router.obituary()
                with pytest.raises(aiohttp.ClientConnectorError):
                    await http.get("/health")

    run(test)


def test_a_port_in_use_is_one_clear_line() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(TransportError, match=rf"exit code 3: kvevents: http://127.0.0.1:{port}: cannot listen"):
                await Child.start("router", ["serve", "--port", str(port)])

    run(test)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "set KVEVENTS_CLIENT_TOKEN and KVEVENTS_ADMIN_TOKEN"),
        (["--policy", "fastest"], "expected one of kv, approx, round_robin, random, least_loaded"),
        (["--worker", "nonsense"], "expected http://host:port"),
        (["--nonsense"], "nonsense"),
    ],
)
def test_wrong_settings_are_refused_at_once(arguments: list[str], says: str) -> None:
    async def test() -> None:
        with pytest.raises(TransportError, match=rf"exit code 2: .*{says}"):
            await Child.start("router", ["serve", "--port", "0", *arguments])

    run(test)
