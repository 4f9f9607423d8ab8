"""Completions through the router when engines fail."""

import asyncio
import json

import aiohttp
import pytest

from kvevents.server.proxy.reply import HELD_BYTES
from serving import EVENT_STREAM, Arrived, StubEngine, answer, chunk, engines, get, routing, run, whole

pytestmark = pytest.mark.integration

BODY = {"model": "stub", "prompt": list(range(256)), "max_tokens": 4}
EVENTS = [b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[{"text":"b"}]}\n\n']
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":256,"prompt_tokens_details":{"cached_tokens":192}}}\n\n'
DONE = b"data: [DONE]\n\n"


async def hang_up(_request: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


def test_another_worker_takes_over_while_nothing_was_sent() -> None:
    async def test() -> None:
        async with (
            engines(hang_up, answer) as (bad, good),
            routing(bad, good, policy="round_robin") as url,
            aiohttp.ClientSession(url) as http,
        ):
            async with http.post("/v1/completions", json=BODY) as response:
                assert response.status == 200
                assert response.headers["x-kvevents-worker"] == good.id
            assert len(bad.completions) == 1
            figures = await get(url, "/stats")
            assert figures["outcomes"] == {bad.id: {"unanswered": 1}, good.id: {"ok": 1}}

    run(test)


def test_headers_without_a_body_are_nothing_sent() -> None:
    async def only_headers(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM)
        await writer.drain()
        writer.close()

    async def test() -> None:
        async with (
            engines(only_headers, answer) as (bad, good),
            routing(bad, good, policy="round_robin") as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 200
            assert response.headers["x-kvevents-worker"] == good.id

    run(test)


def test_a_request_that_fails_its_workers_stops_at_the_second() -> None:
    async def test() -> None:
        async with (
            engines(hang_up, hang_up, hang_up) as stubs,
            routing(*stubs) as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 502
            error = (await response.json())["error"]
            assert error["code"] == "worker_failed"
            assert error["type"] == "server_error"
            assert sorted(len(stub.completions) for stub in stubs) == [0, 1, 1]

    run(test)


def test_a_dead_worker_is_passed_by_and_comes_back() -> None:
    async def test() -> None:
        async with (
            engines(answer, answer) as (dead, alive),
            routing(dead, alive, policy="round_robin", probe_interval_s=0.05) as url,
            aiohttp.ClientSession(url) as http,
        ):
            port = int(dead.url.rpartition(":")[2])
            await dead.stop()
            for _ in range(6):
                async with http.post("/v1/completions", json=BODY) as response:
                    assert response.status == 200
                    assert response.headers["x-kvevents-worker"] == alive.id
            down = (await get(url, "/stats"))["workers"][0]
            assert not down["up"]
            assert down["reason"].startswith("no connection")
            await dead.start(port)
            chosen = set()
            async with asyncio.timeout(10):
                while dead.id not in chosen:
                    async with http.post("/v1/completions", json=BODY) as response:
                        assert response.status == 200
                        chosen.add(response.headers["x-kvevents-worker"])

    run(test)


@pytest.mark.parametrize("cut", [len(EVENTS[1]), 9], ids=["between events", "within an event"])
def test_a_stream_whose_worker_dies_ends_with_an_error_event(cut: int) -> None:
    async def die(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(EVENTS[0]) + chunk(EVENTS[1][:cut]))
        await writer.drain()
        writer.close()

    async def test() -> None:
        async with engines(die) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            async with http.post("/v1/completions", json=BODY) as response:
                received = await response.content.read()
            assert received.startswith(EVENTS[0] + EVENTS[1][:cut])
            *_, last, nothing = received.split(b"\n\n")
            assert nothing == b""
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["code"] == "worker_failed"
            assert engine.id in error["message"]
            assert (await get(url, "/stats"))["outcomes"] == {engine.id: {"broken": 1}}

    run(test)


def test_half_a_short_reply_is_nothing_sent() -> None:
    async def half(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(whole({"choices": []}).replace(b"content-length: ", b"content-length: 1"))
        await writer.drain()
        writer.close()

    async def test() -> None:
        async with (
            engines(half, answer) as (bad, good),
            routing(bad, good, policy="round_robin") as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 200
            assert response.headers["x-kvevents-worker"] == good.id

    run(test)


def test_half_a_long_reply_is_not_made_to_look_whole() -> None:
    async def half(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b" " * HELD_BYTES).replace(b"content-length: ", b"content-length: 1"))
        await writer.drain()
        writer.close()

    async def test() -> None:
        async with engines(half) as (engine,), routing(engine) as url, aiohttp.ClientSession(url) as http:
            response = await http.post("/v1/completions", json=BODY)
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
            response.close()

    run(test)


def test_garbage_from_a_worker_is_a_502() -> None:
    async def garbage(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 not http at all\r\n\r\n")
        await writer.drain()
        writer.close()

    async def test() -> None:
        async with (
            engines(garbage) as (engine,),
            routing(engine) as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 502

    run(test)


def test_a_worker_that_says_nothing_is_a_504() -> None:
    async def silence(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(5)

    async def test() -> None:
        async with (
            engines(silence, answer) as (silent, other),
            routing(silent, other, policy="round_robin", idle_timeout_s=0.2) as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 504
            assert (await response.json())["error"]["code"] == "worker_timeout"
            assert other.completions == []

    run(test)


def test_no_worker_is_a_503() -> None:
    async def test() -> None:
        engine = StubEngine(answer)
        await engine.start()
        await engine.stop()
        async with (
            routing(engine) as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status == 503
            error = (await response.json())["error"]
            assert error["code"] == "no_worker"
            assert error["type"] == "server_error"
            async with http.get("/v1/models") as models:
                assert models.status == 503

    run(test)
