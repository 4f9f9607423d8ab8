"""Prompts computed by one worker and answers given by another."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from kvevents.server import WorkerSettings
from kvevents.server.service import Service
from serving import EVENT_STREAM, Arrived, Reply, StubEngine, answer, chunk, engines, router, run, until, whole

pytestmark = pytest.mark.integration

BODY = {"model": "stub", "prompt": list(range(64))}


def divided(decode: StubEngine, *prefills: StubEngine) -> tuple[WorkerSettings, ...]:
    return (
        WorkerSettings(url=decode.url, role="decode"),
        *(WorkerSettings(url=one.url, role="prefill", bootstrap_port=8998) for one in prefills),
    )


async def post(http: aiohttp.ClientSession) -> tuple[int, dict[str, str], Any]:
    async with http.post("/v1/completions", json=BODY) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}, await response.json()


def nothing_is_in_flight(service: Service) -> bool:
    return service.proxy.admission.in_flight == {} and not any(
        load.requests for load in service.router.loads().values()
    )


async def hang_up(_request: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def refuse(_request: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.write(whole({"error": {"message": "no"}}, status="500 Internal Server Error"))


def test_both_get_the_request_and_the_decoding_worker_answers() -> None:
    async def test() -> None:
        async with (
            engines(answer, answer) as (decode, prefill),
            router(workers=divided(decode, prefill)) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            for number in range(3):
                status, headers, _ = await post(http)
                assert (status, headers["x-kvevents-worker"]) == (200, decode.id)

                async def has_both(number: int = number) -> bool:
                    return len(decode.completions) == len(prefill.completions) == number + 1

                await until(has_both)
                sent = json.loads(decode.completions[-1].body)
                assert decode.completions[-1].body == prefill.completions[-1].body
                assert sent.pop("bootstrap_host") == "127.0.0.1"
                assert sent.pop("bootstrap_port") == 8998
                assert 0 <= sent.pop("bootstrap_room") < 2**63
                assert sent == BODY
            assert nothing_is_in_flight(service)

    run(test)


@pytest.mark.parametrize("failing", [hang_up, refuse])
def test_a_prefill_that_fails_is_taken_over_by_another(failing: Reply) -> None:
    async def test() -> None:
        computed = asyncio.Event()

        async def compute(request: Arrived, writer: asyncio.StreamWriter) -> None:
            computed.set()
            await answer(request, writer)

        async def decode_what_was_computed(request: Arrived, writer: asyncio.StreamWriter) -> None:
            await computed.wait()
            await answer(request, writer)

        async with (
            engines(decode_what_was_computed, failing, compute) as (decode, bad, good),
            router(workers=divided(decode, bad, good), policy="round_robin") as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            assert (await post(http))[0] == 200
            assert len(bad.completions) == len(good.completions) == 1
            assert nothing_is_in_flight(service)

    run(test)


def test_a_request_that_fails_two_prefills_stops_there() -> None:
    async def hold(_request: Arrived, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async def test() -> None:
        async with (
            engines(hold, hang_up, refuse, answer) as (decode, *prefills),
            router(workers=divided(decode, *prefills), policy="round_robin") as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            status, _, body = await post(http)
            assert (status, body["error"]["code"]) == (502, "worker_failed")
            assert prefills[1].id in body["error"]["message"]
            assert [len(prefill.completions) for prefill in prefills] == [1, 1, 0]
            assert nothing_is_in_flight(service)

    run(test)


def test_a_client_that_leaves_is_told_to_both() -> None:
    async def test() -> None:
        left = [asyncio.Event(), asyncio.Event()]

        def until_left(event: asyncio.Event) -> Any:
            async def reply(request: Arrived, writer: asyncio.StreamWriter) -> None:
                writer.write(EVENT_STREAM + chunk(b"data: a\n\n"))
                while not (request.has_hung_up() or writer.transport.is_closing()):  # noqa: ASYNC110 (it asks a socket)
                    await asyncio.sleep(0.005)
                event.set()

            return reply

        async with (
            engines(*(until_left(event) for event in left)) as (decode, prefill),
            router(workers=divided(decode, prefill)) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            response = await http.post("/v1/completions", json=BODY)
            assert await response.content.readany() == b"data: a\n\n"
            response.close()
            for event in left:
                await event.wait()
            assert nothing_is_in_flight(service)

    run(test)


def test_a_body_that_cannot_be_divided_is_refused() -> None:
    async def test() -> None:
        async with (
            engines(answer, answer) as (decode, prefill),
            router(workers=divided(decode, prefill)) as (url, service),
            aiohttp.ClientSession(url) as http,
            http.post("/v1/audio/transcriptions", data=b"--x", headers={"content-type": "multipart/form-data"}) as got,
        ):
            assert got.status == 400
            assert (await got.json())["error"]["code"] == "bad_request"
            assert decode.completions == prefill.completions == []
            assert nothing_is_in_flight(service)

    run(test)
