"""The replay: in order, at the trace's pace, every failure an outcome, against a router that misbehaves."""

import asyncio
import json
import re
from array import array
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from kvevents.simulation.replay import Outcome, replay
from kvevents.simulation.traces import TraceRequest

pytestmark = pytest.mark.integration

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def requests(count: int, *, every_s: float = 0.0, tokens: int = 700) -> list[TraceRequest]:
    blocks = -(-tokens // 512)
    return [TraceRequest(n + 1, n * every_s, tokens, 3, tuple(range(blocks))) for n in range(count)]


def run(handler: Handler, trace: list[TraceRequest], *, speed: float = 1.0) -> tuple[list[Outcome], list[Outcome]]:
    """Replay against a server; what came back, and what `on_end` was told."""
    told: list[Outcome] = []

    async def scenario() -> list[Outcome]:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0]
            return await replay(f"http://{host}:{port}", trace, speed=speed, held=held, on_end=told.append)
        finally:
            await runner.cleanup()

    return asyncio.run(scenario()), told


def held(tokens: "array[int]") -> int:
    return len(tokens) - 1


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"x-kvevents-worker": "w1", "content-type": "text/event-stream"})
    await response.prepare(request)
    return response


async def say(response: web.StreamResponse, *values: object) -> web.StreamResponse:
    for value in values:
        await response.write(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode())
    return response


def token(text: str = "a") -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text}]}


def usage(prompt: int, cached: int = 640, outputs: int = 3) -> dict[str, object]:
    details = {"cached_tokens": cached}
    numbers = {"prompt_tokens": prompt, "completion_tokens": outputs, "prompt_tokens_details": details}
    return {"choices": [], "usage": numbers}


def test_requests_arrive_in_order_as_the_trace_says() -> None:
    bodies = []

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        bodies.append(body)
        return await say(await begin(request), token(), usage(len(body["prompt"])), "[DONE]")

    sizes = [90_000, 5, 60_000, 1, 1, 30_000, 2, 513]
    trace = [TraceRequest(n + 1, 0.0, size, n + 1, tuple(range(-(-size // 512)))) for n, size in enumerate(sizes)]
    outcomes, told = run(handler, trace)
    assert [len(body["prompt"]) for body in bodies] == sizes
    assert [body["prompt"] for body in bodies] == [request.tokens().tolist() for request in trace]
    assert [body["max_tokens"] for body in bodies] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [outcome.line for outcome in outcomes] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(told, key=lambda outcome: outcome.line) == outcomes
    for size, outcome in zip(sizes, outcomes, strict=True):
        assert outcome.error is None
        assert (outcome.worker, outcome.prompt_tokens, outcome.held_tokens) == ("w1", size, size - 1)
        assert (outcome.cached_tokens, outcome.output_tokens) == (640, 3)


def test_the_first_token_is_timed_not_the_last() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await begin(request)
        await asyncio.sleep(0.2)
        await say(response, token())
        await asyncio.sleep(0.5)
        return await say(response, token(), usage(700), "[DONE]")

    (outcome,), _ = run(handler, requests(1))
    assert outcome.first_token_s is not None
    assert 0.2 <= outcome.first_token_s < 0.5


def test_the_pace_is_the_traces_over_speed() -> None:
    loop_times = []

    async def handler(request: web.Request) -> web.StreamResponse:
        loop_times.append(asyncio.get_running_loop().time())
        return await say(await begin(request), usage(700), "[DONE]")

    outcomes, _ = run(handler, requests(3, every_s=2.0), speed=10.0)
    assert 0.35 <= loop_times[-1] - loop_times[0] < 1.0
    assert all(0 <= outcome.sent_late_s < 0.3 for outcome in outcomes)


def test_usage_without_cached_tokens_is_none_cached() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        numbers = {"prompt_tokens": 700, "completion_tokens": 3, "prompt_tokens_details": None}
        return await say(await begin(request), token(), {"choices": [], "usage": numbers}, "[DONE]")

    (outcome,), _ = run(handler, requests(1))
    assert (outcome.error, outcome.cached_tokens) == (None, 0)


async def refuses(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no worker"}}, status=503)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    response = await say(await begin(request), token())
    assert request.transport is not None
    request.transport.abort()
    return response


async def ends_early(request: web.Request) -> web.StreamResponse:
    return await say(await begin(request), token())


async def says_an_error(request: web.Request) -> web.StreamResponse:
    return await say(await begin(request), token(), {"error": {"message": "worker died"}})


async def says_nothing(request: web.Request) -> web.StreamResponse:
    return await begin(request)


async def leaves_the_usage_out(request: web.Request) -> web.StreamResponse:
    return await say(await begin(request), token(), "[DONE]")


async def says_nonsense(request: web.Request) -> web.StreamResponse:
    return await say(await begin(request), "{nonsense", "[DONE]")


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (refuses, "status 503: .*no worker"),
        (breaks_off, "ClientPayloadError|ClientOSError|ServerDisconnected|ClientConnection"),
        (ends_early, r"ends with \[DONE\], got: data: .*choices"),
        (says_an_error, "got: data: .*worker died"),
        (says_nothing, r"ends with \[DONE\], got: $"),
        (leaves_the_usage_out, "usage"),
        (says_nonsense, "last chunk"),
    ],
)
def test_a_failure_is_an_outcome_and_the_next_request_goes_on(handler: Handler, error: str) -> None:
    calls = 0

    async def first_fails(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        await request.read()
        if calls == 1:
            return await handler(request)
        return await say(await begin(request), token(), usage(700), "[DONE]")

    outcomes, told = run(first_fails, requests(3))
    assert len(told) == 3
    assert outcomes[0].error is not None
    assert re.search(error, outcomes[0].error)
    assert [outcome.error for outcome in outcomes[1:]] == [None, None]


def test_nobody_listening_is_an_outcome_too() -> None:
    async def scenario() -> list[Outcome]:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        url = f"http://127.0.0.1:{port}"
        return await replay(url, requests(2), speed=1.0, held=held, on_end=lambda _outcome: None)

    outcomes = asyncio.run(scenario())
    assert all(outcome.error is not None and "Connect" in outcome.error for outcome in outcomes)
