"""Completions through the router, bytes unchanged, both ways."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kvevents.server import Secret
from serving import EVENT_STREAM, Arrived, answer, chunk, engines, get, routing, run, until, whole

pytestmark = pytest.mark.integration

BODY = {"model": "stub", "prompt": list(range(256)), "max_tokens": 4}
EVENTS = [b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[{"text":"b"}]}\n\n']
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":256,"prompt_tokens_details":{"cached_tokens":192}}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_bodies_and_replies_pass_unchanged() -> None:
    async def test() -> None:
        sent = b'{ "prompt":[1,2,3],  "unknown": 1.50, "model":"stub" }'
        async with engines(answer) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            headers = {
                "content-type": "application/json; charset=utf-8",
                "authorization": "Bearer for-the-router",
                "cookie": "a=b",
                "x-request-id": "7",
                "x-data-parallel-rank": "3",
            }
            async with http.post("/v1/completions?version=1", data=sent, headers=headers) as response:
                assert response.status == 200
                assert response.headers["content-type"] == "application/json"
                assert response.headers["x-kvevents-worker"] == engine.id
                assert response.headers["x-kvevents-dp-rank"] == "0"
                assert response.headers["x-kvevents-expected-cached-blocks"] == "0"
                assert json.loads(await response.read())["choices"] == [{"text": "a"}]
            (request,) = engine.completions
            assert request.body == sent
            assert request.path == "/v1/completions?version=1"
            assert request.headers["content-type"] == "application/json; charset=utf-8"
            assert request.headers["x-request-id"] == "7"
            assert not {"authorization", "cookie", "x-data-parallel-rank"} & request.headers.keys()
            figures = await get(url, "/stats")
            assert figures["requests"]["kv"]["reported_cached_tokens"] == 128
            assert figures["requests"]["kv"]["prompt_tokens"] == 3
            assert figures["outcomes"] == {engine.id: {"ok": 1}}

    run(test)


def test_a_stream_passes_byte_for_byte_as_it_comes() -> None:
    async def test() -> None:
        first_read = asyncio.Event()

        async def stream(_request: Arrived, writer: asyncio.StreamWriter) -> None:
            writer.write(EVENT_STREAM + chunk(EVENTS[0]))
            await first_read.wait()
            writer.write(chunk(EVENTS[1][:9]))
            await writer.drain()
            writer.write(chunk(EVENTS[1][9:] + USAGE + DONE) + chunk(b""))
            await writer.drain()

        async with engines(stream) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            async with http.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
            ) as response:
                assert response.headers["content-type"] == "text/event-stream"
                received = await response.content.readany()
                assert received == EVENTS[0]  # while the engine still waits
                first_read.set()
                received += await response.content.read()
            assert received == EVENTS[0] + EVENTS[1] + USAGE + DONE
            assert (await get(url, "/stats"))["requests"]["kv"]["reported_cached_tokens"] == 192

    run(test)


def test_an_engines_own_error_is_passed_on() -> None:
    async def refuse(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(whole({"error": {"message": "too long"}}, status="400 Bad Request"))

    async def test() -> None:
        async with engines(refuse) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            async with http.post("/v1/completions", json=BODY) as response:
                assert response.status == 400
                assert await response.json() == {"error": {"message": "too long"}}
            figures = await get(url, "/stats")
            assert figures["outcomes"] == {engine.id: {"refused": 1}}
            assert figures["workers"][0]["up"]

    run(test)


@pytest.mark.parametrize("has_begun", [False, True], ids=["before the answer", "in the answer"])
def test_a_client_that_leaves_takes_its_request_with_it(has_begun: bool) -> None:
    async def test() -> None:
        came = asyncio.Event()
        left = asyncio.Event()

        async def endless(request: Arrived, writer: asyncio.StreamWriter) -> None:
            came.set()
            if has_begun:
                writer.write(EVENT_STREAM + chunk(EVENTS[0]))
            try:
                while not (request.has_hung_up() or writer.transport.is_closing()):
                    await asyncio.sleep(0.005)
                    if has_begun:
                        writer.write(chunk(EVENTS[1]))
                        await writer.drain()
            except ConnectionError:
                pass
            left.set()

        async with engines(endless) as (engine,), routing(engine) as url:
            async with aiohttp.ClientSession(url) as http:
                request = asyncio.create_task(http.post("/v1/completions", json=BODY))
                await came.wait()
                if has_begun:
                    response = await request
                    await response.content.readany()
                    response.close()
                request.cancel()
            await left.wait()

            async def is_in_the_books() -> bool:
                return bool((await get(url, "/stats"))["outcomes"] == {engine.id: {"client_left": 1}})

            await until(is_in_the_books)
            (rank,) = (await get(url, "/stats"))["workers"][0]["ranks"]
            assert rank == {
                "dp_rank": 0,
                "requests": 0,
                "queued_tokens": 0,
                "decode_tokens": 0,
                "reported": None,
                "blocks": {},
            }

    run(test)


def test_a_client_that_does_not_read_holds_the_engine_back() -> None:
    async def test() -> None:
        written = 0

        async def flood(_request: Arrived, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            writer.write(EVENT_STREAM)
            block = chunk(b"x" * 65_536)
            while not writer.transport.is_closing():
                writer.write(block)
                await writer.drain()
                written += len(block)

        async with engines(flood) as (engine,), routing(engine) as url:
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1)
            body = json.dumps(BODY).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )

            async def stands_still() -> bool:
                before = written
                await asyncio.sleep(0.1)
                return before == written > 0

            await until(stands_still)
            assert written < 32 * 2**20
            writer.transport.abort()
            assert reader is not None

    run(test)


def test_bodies_that_are_too_large_or_not_json_are_refused() -> None:
    async def test() -> None:
        async with (
            engines(answer) as (engine,),
            routing(engine, max_body_bytes=1000) as url,
            aiohttp.ClientSession(url) as http,
        ):

            async def in_pieces() -> Any:
                for _ in range(20):
                    yield b"x" * 100

            for body, status, code in (
                (b"x" * 1001, 413, "body_too_large"),
                (in_pieces(), 413, "body_too_large"),
                (b"{", 400, "not_json"),
                (b'{"prompt":"\xff"}', 400, "not_json"),
                (b"", 400, "not_json"),
            ):
                async with http.post("/v1/completions", data=body) as response:
                    assert response.status == status
                    error = (await response.json())["error"]
                    assert error["code"] == code
                    assert set(error) == {"message", "type", "param", "code"}
            assert engine.completions == []

    run(test)


def test_a_prompt_only_the_engine_can_read_is_passed_on() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            bodies: list[dict[str, object]] = [
                {"prompt_embeds": "AAAA"},
                {"prompt": ["one", "two"]},
                {"messages": []},
            ]
            for body in bodies:
                async with http.post("/v1/completions", json=body) as response:
                    assert response.status == 200
            assert json.loads(engine.completions[0].body) == {"prompt_embeds": "AAAA"}
            assert (await get(url, "/stats"))["unread_prompts"] == 3

    run(test)


def test_a_model_goes_to_the_workers_that_serve_it() -> None:
    async def test() -> None:
        async with engines(answer, answer) as (one, other):
            other.model = "other"
            async with routing(one, other) as url, aiohttp.ClientSession(url) as http:
                for _ in range(3):
                    async with http.post("/v1/completions", json={**BODY, "model": "other"}) as response:
                        assert response.headers["x-kvevents-worker"] == other.id
                async with http.get("/v1/models") as response:
                    models = await response.json()
                assert models["object"] == "list"
                assert [model["id"] for model in models["data"]] == ["stub", "other"]
                assert await get(url, "/v1/models/other") == models["data"][1]
                async with http.get("/v1/models/nobody's/own") as response:
                    assert response.status == 404
                    assert (await response.json())["error"]["code"] == "model_not_found"
            assert one.completions == []

    run(test)


def test_tokens_guard_the_two_scopes() -> None:
    async def test() -> None:
        tokens = {"client_token": Secret("c"), "admin_token": Secret("a")}
        async with engines(answer) as (engine,), routing(engine, **tokens) as url, aiohttp.ClientSession(url) as http:
            for method, path, token, status in (
                ("POST", "/v1/completions", None, 401),
                ("POST", "/v1/completions", "a", 401),
                ("POST", "/v1/completions", "c", 200),
                ("GET", "/stats", None, 401),
                ("GET", "/stats", "c", 401),
                ("GET", "/stats", "a", 200),
                ("GET", "/nothing", None, 401),
                ("GET", "/nothing", "a", 404),
                ("GET", "/health", None, 200),
                ("GET", "/ready", None, 200),
            ):
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                async with http.request(method, path, json=BODY, headers=headers) as response:
                    assert (method, path, token, response.status) == (method, path, token, status)

    run(test)
