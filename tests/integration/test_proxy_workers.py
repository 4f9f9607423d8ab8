"""The proxy's side to the workers: those that misbehave, are busy, or are not there."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from kvevents.server import Secret, WorkerSettings
from serving import (
    EVENT_STREAM,
    Arrived,
    Reply,
    StubEngine,
    answer,
    chunk,
    engines,
    router,
    routing,
    run,
    until,
)
from wire_client import connected

pytestmark = pytest.mark.integration

BODY = {"model": "stub", "prompt": list(range(64))}
STREAM = {**BODY, "stream": True}
STREAMED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (
    len(json.dumps(STREAM)),
    json.dumps(STREAM).encode(),
)
EVENT = b'data: {"choices":[{"text":"a"}]}\n\n'


def saying(data: bytes, *, ends: bool = True) -> Reply:
    """An engine that answers with these bytes, and then closes or goes on."""

    async def reply(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if ends:
            writer.close()

    return reply


async def hang(_request: Arrived, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def post(http: aiohttp.ClientSession, body: object = BODY) -> tuple[int, dict[str, str], Any]:
    async with http.post("/v1/completions", json=body) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}, await response.json()


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
GARBAGE = [
    b"\x00\x01 not http at all\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 abc\r\n\r\n",
    OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    OK + b"content-length: -2\r\n\r\n{}",
    OK + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    OK + b"content-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    OK + b"content-length: 2\r\n\r\n{}{}{}",
    OK + b"x: " + b"a" * 5000,
    b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx\x00: a\r\ncontent-length: 2\r\n\r\n{}",
]


def test_garbage_is_a_502_and_counted_and_harms_nobody_else() -> None:
    async def test() -> None:
        said = iter(GARBAGE)

        async def garbage(_request: Arrived, writer: asyncio.StreamWriter) -> None:
            writer.write(next(said))
            await asyncio.sleep(5)

        async with (
            engines(garbage) as (engine,),
            router(engine, max_head_bytes=4000, probe_interval_s=0.05) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            for number, data in enumerate(GARBAGE):
                status, _, body = await post(http)
                assert (data, status, body["error"]["code"]) == (data, 502, "worker_failed")
                assert service.proxy.counters.garbage == number + 1

                async def is_up() -> bool:
                    return service.fleet.workers[0].up

                await until(is_up)
            engine.reply = answer
            assert (await post(http))[0] == 200

    run(test)


@pytest.mark.parametrize(
    ("data", "received"),
    [
        (OK + b"content-length: 2\r\n\r\n{}", b"{}"),
        (OK + b"\r\n{}", b"{}"),
        (b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + OK + b"content-length: 2\r\n\r\n{}", b"{}"),
        (OK + b"transfer-encoding: chunked\r\n\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\nx-trailer: a\r\n\r\n", b"{}"),
        (OK + b"connection: close, x-secret\r\nx-secret: a\r\ncontent-length: 2\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_every_sane_reply_passes(data: bytes, received: bytes) -> None:
    async def test() -> None:
        async with (
            engines(saying(data)) as (engine,),
            routing(engine) as url,
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=BODY) as response,
        ):
            assert response.status in {200, 204}
            assert await response.read() == received
            assert not {"x-secret", "link"} & response.headers.keys()

    run(test)


def test_chunks_pass_as_they_were_framed() -> None:
    async def test() -> None:
        framed = b"1;a=b\r\nd\r\n5\r\nata: \r\n3\r\na\n\n\r\n0\r\nx-trailer: a\r\n\r\n"
        reply = saying(EVENT_STREAM + framed, ends=False)
        async with engines(reply) as (engine,), routing(engine) as url, connected(url) as wire:
            wire.send(STREAMED)
            await wire.reader.readuntil(b"\r\n\r\n")
            assert await wire.reader.readexactly(len(framed)) == framed
            wire.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await wire.reply())[0] == 200

    run(test)


def test_a_stream_that_does_not_begin_is_not_waited_for_long() -> None:
    async def test() -> None:
        async with (
            engines(hang, answer) as (silent, other),
            router(silent, other, policy="round_robin", first_byte_timeout_s=0.2) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            status, _, body = await post(http, STREAM)
            assert (status, body["error"]["code"]) == (504, "worker_timeout")
            assert other.completions == []
            assert service.proxy.counters.first_byte_timeouts == 1
            assert service.proxy.admission.in_flight == {}

    run(test)


def test_a_stream_that_stops_ends_with_an_error_event() -> None:
    async def stop(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(EVENT))
        await asyncio.sleep(60)

    async def test() -> None:
        async with (
            engines(stop) as (engine,),
            router(engine, idle_timeout_s=0.2) as (url, service),
            aiohttp.ClientSession(url) as http,
            http.post("/v1/completions", json=STREAM) as response,
        ):
            received = await response.read()
            assert received.startswith(EVENT)
            assert b"sent nothing for too long" in received
            assert service.proxy.counters.idle_timeouts == service.proxy.counters.broken_streams == 1

    run(test)


def test_a_stream_that_ends_within_a_chunk_is_cut() -> None:
    async def test() -> None:
        for rest in (b"f", b"ff", b"ff\r", b"ff\r\n", b"ff\r\ndata: half a", b"5\r\nhello", b"5\r\nhello\r"):
            data = EVENT_STREAM + chunk(EVENT) + rest
            async with engines(saying(data)) as (engine,), routing(engine) as url, connected(url) as wire:
                wire.send(STREAMED)
                assert (await wire.ended()).endswith(data.removeprefix(EVENT_STREAM))

    run(test)


def test_garbage_in_the_middle_of_a_stream_is_not_passed_on() -> None:
    async def garble(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(EVENT))
        await garbling.wait()
        writer.write(b"xyz\r\n")
        await asyncio.sleep(60)

    garbling = asyncio.Event()

    async def test() -> None:
        async with engines(garble) as (engine,), router(engine) as (url, service), connected(url) as wire:
            wire.send(STREAMED)
            await wire.reader.readuntil(chunk(EVENT))
            garbling.set()
            received = await wire.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"xyz" not in received
            assert b"worker_failed" in received
            wire.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")  # it was not told that it must not
            assert (await wire.reply())[0] == 200
            assert service.proxy.counters.garbage == service.proxy.counters.broken_streams == 1

    run(test)


def test_a_connection_closed_as_it_is_used_again_is_no_failure() -> None:
    async def test() -> None:
        closing = False

        async def fickle(request: Arrived, writer: asyncio.StreamWriter) -> None:
            nonlocal closing
            if closing:
                closing = False
                writer.transport.abort()
            else:
                await answer(request, writer)

        async with (
            engines(fickle) as (engine,),
            router(engine) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            assert (await post(http))[0] == 200
            closing = True
            assert (await post(http))[0] == 200
            assert service.proxy.pool.opened == 2
            assert service.proxy.counters.reconnected == 1
            assert service.fleet.workers[0].up
            assert service.ledger.outcomes[engine.id, "ok"] == 2
            closing = True
            await engine.stop()  # now it is gone for good: both connections count as one delivery
            assert (await post(http))[0] == 502

    run(test)


def limited(stub: StubEngine, **fields: Any) -> WorkerSettings:
    return WorkerSettings(url=stub.url, max_in_flight=1, **fields)


class Gate:
    """An engine that answers one request for each time it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Semaphore(0)

    async def __call__(self, request: Arrived, writer: asyncio.StreamWriter) -> None:
        await self.open.acquire()
        await answer(request, writer)


def waiting(service: Any, number: int) -> Callable[[], Any]:
    async def condition() -> bool:
        return bool(service.proxy.gauges()["waiting"] == number)

    return condition


def test_requests_wait_for_room_in_the_order_they_came() -> None:
    async def test() -> None:
        gate = Gate()
        async with (
            engines(gate) as (engine,),
            router(workers=(limited(engine),), max_waiting=3) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            order: list[int] = []

            async def ask(number: int) -> int:
                status, _, _ = await post(http)
                order.append(number)
                return status

            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(ask(number)))
                await until(waiting(service, number))
            status, headers, body = await post(http)
            assert (status, body["error"]["code"], headers["retry-after"]) == (429, "queue_full", "1")
            assert body["error"]["type"] == "rate_limit_error"
            assert len(engine.completions) == 1
            for _ in tasks:
                gate.open.release()
            assert await asyncio.gather(*tasks) == [200] * 4
            assert order == [0, 1, 2, 3]
            assert service.proxy.counters.queued == 3
            assert service.proxy.counters.rejected == {"queue_full": 1}
            assert service.proxy.admission.in_flight == {}

    run(test)


def test_route_passes_over_a_worker_without_room_and_says_so() -> None:
    async def test() -> None:
        gate = Gate()
        async with (
            engines(gate, answer) as (full, other),
            router(workers=(limited(full), WorkerSettings(url=other.url))) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            first = asyncio.create_task(post(http))

            async def is_full() -> bool:
                return full.id in service.proxy.admission.full

            await until(is_full)
            async with http.post("/route", json=BODY) as response:
                asked = await response.json()
            assert (asked["worker"], asked["excluded"]) == (other.id, {full.id: "full"})
            async with http.post("/v1/completions", json=BODY) as response:
                assert response.headers["x-kvevents-worker"] == other.id
            gate.open.release()
            assert (await first)[0] == 200

    run(test)


def test_whoever_waits_too_long_or_leaves_gives_up_the_place() -> None:
    async def test() -> None:
        gate = Gate()
        async with (
            engines(gate) as (engine,),
            router(workers=(limited(engine),), waiting_timeout_s=0.3) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            first = asyncio.create_task(post(http))
            await until(waiting(service, 0))
            leaving = asyncio.create_task(post(http))
            late = asyncio.create_task(post(http))
            await until(waiting(service, 2))
            leaving.cancel()
            await until(waiting(service, 1))
            status, _, body = await late
            assert (status, body["error"]["code"]) == (503, "queue_timeout")
            gate.open.release()
            assert (await first)[0] == 200
            assert service.proxy.gauges()["waiting"] == 0
            assert len(engine.completions) == 1
            assert service.proxy.counters.queue_timeouts == service.proxy.counters.client_left == 1

    run(test)


def test_who_waits_for_one_model_does_not_hold_up_those_of_another() -> None:
    async def test() -> None:
        gate = Gate()
        async with engines(gate, answer) as (one, other):
            other.model = "other"
            async with (
                router(workers=(limited(one), limited(other))) as (url, service),
                aiohttp.ClientSession(url) as http,
            ):
                tasks = [asyncio.create_task(post(http)) for _ in range(2)]
                await until(waiting(service, 1))
                assert (await post(http, {**BODY, "model": "other"}))[1]["x-kvevents-worker"] == other.id
                gate.open.release()
                gate.open.release()
                assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200, 200]

    run(test)


def test_an_unknown_model_is_refused_unless_told() -> None:
    async def test() -> None:
        body = {**BODY, "model": "nobody's"}
        async with engines(answer) as (engine,):
            async with routing(engine) as url, aiohttp.ClientSession(url) as http:
                status, _, error = await post(http, body)
                assert (status, error["error"]["code"]) == (404, "model_not_found")
                assert engine.completions == []
                assert (await post(http, {**BODY, "model": "stub:adapter"}))[0] == 200
            async with routing(engine, unknown_models="pass") as url, aiohttp.ClientSession(url) as http:
                assert (await post(http, body))[0] == 200

    run(test)


def test_a_worker_gets_its_own_key_and_never_the_clients() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,):
            worker = WorkerSettings(url=engine.url, api_key=Secret("for-the-engine"))
            async with routing(workers=(worker,), client_token=Secret("c")) as url, aiohttp.ClientSession(url) as http:
                async with http.post("/v1/completions", json=BODY, headers={"authorization": "Bearer c"}) as response:
                    assert response.status == 200
                assert engine.completions[0].headers["authorization"] == "Bearer for-the-engine"

    run(test)


def test_a_client_that_never_reads_is_cut_off_in_the_end() -> None:
    async def flood(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM)
        while not writer.transport.is_closing():
            writer.write(chunk(b"x" * 65_536))
            await writer.drain()

    async def test() -> None:
        async with (
            engines(flood) as (engine,),
            router(engine, write_timeout_s=0.3) as (url, service),
            connected(url, limit=1) as wire,
        ):
            wire.send(STREAMED)

            async def is_cut_off() -> bool:
                return service.proxy.counters.client_stalled == 1

            await until(is_cut_off)

            async def is_in_the_books() -> bool:
                return service.ledger.outcomes == {(engine.id, "client_left"): 1}

            await until(is_in_the_books)
            assert service.proxy.admission.in_flight == {}

    run(test)
