"""The proxy's side to the client: HTTP as it is spoken, badly spoken, and spoken with bad intent."""

import asyncio
import json
from typing import Any

import pytest

from serving import EVENT_STREAM, Arrived, answer, chunk, engines, router, routing, run, until
from wire_client import connected

pytestmark = pytest.mark.integration

BODY = json.dumps({"model": "stub", "prompt": list(range(64))}).encode()


def request(body: bytes = BODY, *, path: str = "/v1/completions", version: str = "1.1", headers: str = "") -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def code_of(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]


def test_one_connection_mixes_control_and_data() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            for _ in range(2):
                wire.send(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
                status, _, body = await wire.reply()
                assert (status, json.loads(body)["data"][0]["id"]) == (200, "stub")
                wire.send(request())
                status, headers, body = await wire.reply()
                assert (status, headers["x-kvevents-worker"]) == (200, engine.id)
                assert json.loads(body)["choices"] == [{"text": "a"}]

    run(test)


def test_requests_sent_ahead_are_answered_in_order() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            ids = [f"request-{number}" for number in range(40)]
            wire.send(b"".join(request(headers=f"x-request-id: {one}\r\n") for one in ids))
            wire.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert [(await wire.reply())[1]["x-request-id"] for _ in ids] == ids
            assert json.loads((await wire.reply())[2]) == {"status": "ok"}
            assert [one.headers["x-request-id"] for one in engine.completions] == ids

    run(test)


def test_a_request_in_single_bytes_and_in_chunks_arrives_whole() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            small = b'{"prompt":[1,2]}'
            for byte in request(small):
                wire.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await wire.reply())[0] == 200
            head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            wire.send(head + chunk(small[:5]) + chunk(small[5:]) + chunk(b""))
            assert (await wire.reply())[0] == 200
            assert [one.body for one in engine.completions] == [small, small]
            assert all(one.headers["content-length"] == "16" for one in engine.completions)

    run(test)


def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            head, _, body = request(headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
            wire.send(head + b"\r\n\r\n")
            assert (await wire.reply())[0] == 100
            wire.send(body)
            assert (await wire.reply())[0] == 200
            assert "expect" not in engine.completions[0].headers

    run(test)


def test_a_client_that_asks_first_is_refused_before_it_sends() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine, max_body_bytes=100) as url, connected(url) as wire:
            head, _, _ = request(headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
            wire.send(head + b"\r\n\r\n")
            status, _, body = await wire.reply()
            assert (status, code_of(body)) == (413, "body_too_large")
            assert await wire.ended() == b""
            assert engine.completions == []

    run(test)


def test_head_has_the_headers_and_no_body() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            wire.send(
                b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
            )
            head = await wire.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: 15\r\n" in head
            assert json.loads((await wire.reply())[2]) == {"status": "ok"}

    run(test)


def test_http_1_0_gets_no_chunks() -> None:
    async def stream(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(b"data: a\n\n") + chunk(b"data: [DONE]\n\n") + chunk(b""))

    async def test() -> None:
        async with engines(stream) as (engine,), routing(engine) as url:
            async with connected(url) as wire:
                wire.send(request(version="1.0"))
                _, _, received = (await wire.ended()).partition(b"\r\n\r\n")
                assert received == b"data: a\n\ndata: [DONE]\n\n"
            async with connected(url) as wire:
                wire.send(b"GET /health HTTP/1.0\r\n\r\n")
                assert (await wire.ended()).endswith(b'{"status":"ok"}')

    run(test)


def test_another_protocol_that_is_offered_is_left_alone() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            offer = (
                "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
            )
            for _ in range(2):
                wire.send(request(headers=offer))
                status, _, body = await wire.reply()
                assert (status, json.loads(body)["choices"]) == (200, [{"text": "a"}])
            wire.send(f"GET /health HTTP/1.1\r\nhost: localhost\r\n{offer}\r\n".encode())
            assert (await wire.reply())[0] == 200
            assert all(one.body == BODY for one in engine.completions)
            assert not {"upgrade", "http2-settings"} & engine.completions[0].headers.keys()

    run(test)


START = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
AMBIGUOUS = [
    START + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    START + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    START + b"content-length: 4\r\ncontent-length: 5\r\n\r\nabcd",
    START + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
    START + b"content-length: -4\r\n\r\nabcd",
    START + b"content-length: +4\r\n\r\nabcd",
    START + b"content-length: 4, 4\r\n\r\nabcd",
    START + b"content-length: 0x4\r\n\r\nabcd",
    START + b"content-length: 99999999999999999999\r\n\r\nabcd",
    START + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    START + b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
    START + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    START + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.0\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    START + b"transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    START + b"host: b\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
    START + b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\nhost: localhost\ncontent-length: 0\n\n",
    START + b"x: a\rcontent-length: 1\r\n\r\n",
    b"POST /v1/completions HTTP/9.9\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client's first words \r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
]


def test_what_two_servers_may_read_differently_is_answered_by_none() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url:
            for sent in AMBIGUOUS:
                async with connected(url) as wire:
                    wire.send(sent + request())
                    status, headers, body = await wire.reply()
                    assert (sent, status, code_of(body), headers["connection"]) == (sent, 400, "bad_http", "close")
                    assert await wire.ended() == b""
            assert engine.completions == []

    run(test)


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"a" * 3000 + b"\r\n",
        b"".join(b"x%d: a\r\n" % number for number in range(30)),
        b"x: " + b"a" * 3000,
    ],
    ids=["long", "many", "without an end"],
)
def test_heads_have_a_limit(head: bytes) -> None:
    async def test() -> None:
        async with (
            engines(answer) as (engine,),
            routing(engine, max_head_bytes=2000, max_headers=20) as url,
            connected(url) as wire,
        ):
            wire.send(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n" + head)
            if head.endswith(b"\r\n"):
                wire.send(b"\r\n")
            status, _, body = await wire.reply()
            assert (status, code_of(body)) == (431, "head_too_large")
            assert await wire.ended() == b""

    run(test)


@pytest.mark.parametrize(
    ("sent", "counter"),
    [(b"POST /v1/comp", "slow_heads"), (request()[:-4], "slow_bodies")],
    ids=["head", "body"],
)
def test_slow_clients_are_not_waited_for(sent: bytes, counter: str) -> None:
    async def test() -> None:
        async with (
            engines(answer) as (engine,),
            router(engine, head_timeout_s=0.2, body_timeout_s=0.2) as (url, service),
            connected(url) as wire,
        ):
            wire.send(sent)
            assert (await wire.reply())[0] == 408
            assert await wire.ended() == b""
            assert getattr(service.proxy.counters, counter) == 1

    run(test)


def test_idle_connections_end() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), router(engine, keep_alive_s=0.2, head_timeout_s=0.2) as (url, service):
            async with connected(url) as wire:
                assert await wire.ended() == b""
            async with connected(url) as wire:
                wire.send(request())
                assert (await wire.reply())[0] == 200
                assert await wire.ended() == b""
            assert service.proxy.counters.idle_closed == 2

    run(test)


def test_connections_have_a_limit() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine, max_connections=1) as url, connected(url) as wire:
            wire.send(request())
            assert (await wire.reply())[0] == 200
            async with connected(url) as other:
                status, _, body = await other.reply()
                assert (status, code_of(body)) == (503, "too_many_connections")
                assert await other.ended() == b""
            wire.send(request())
            assert (await wire.reply())[0] == 200

    run(test)


def test_bodies_have_a_limit_together() -> None:
    async def test() -> None:
        async with (
            engines(answer) as (engine,),
            router(engine, max_buffered_bytes=1000) as (url, service),
            connected(url) as one,
            connected(url) as other,
        ):
            one.send(request(b" " * 900)[:-1])

            async def is_held() -> bool:
                return service.proxy.gauges()["buffered_bytes"] >= 899

            await until(is_held)
            other.send(request(b" " * 900))
            status, headers, body = await other.reply()
            assert (status, code_of(body), headers["retry-after"]) == (503, "out_of_memory", "1")
            one.writer.transport.abort()

            async def is_free() -> bool:
                return service.proxy.gauges()["buffered_bytes"] == 0

            await until(is_free)
            other.send(request())
            assert (await other.reply())[0] == 200

    run(test)


def test_a_body_is_not_kept_once_its_answer_has_begun() -> None:
    async def stream(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(b"data: a\n\n"))
        await asyncio.sleep(60)

    async def test() -> None:
        async with engines(stream) as (engine,), router(engine) as (url, service), connected(url) as wire:
            wire.send(request())
            await wire.reader.readuntil(b"data: a\n\n")
            assert service.proxy.gauges()["in_flight"] == 1
            assert service.proxy.gauges()["buffered_bytes"] == 0

    run(test)


def test_a_request_that_comes_round_is_refused() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            wire.send(request(headers="x-kvevents-hop: someone-else\r\n"))
            assert (await wire.reply())[0] == 200
            hops = engine.completions[0].headers["x-kvevents-hop"]
            assert hops.startswith("someone-else, ")
            wire.send(request(headers=f"x-kvevents-hop: {hops}\r\n"))
            status, _, body = await wire.reply()
            assert (status, code_of(body)) == (508, "loop")

    run(test)


def test_ids_are_the_clients_when_they_are_sane() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            for sent, is_kept in (("abc-1", True), ("a b", False), ("x" * 200, False), ("", False)):
                wire.send(request(headers=f"x-request-id: {sent}\r\n"))
                _, headers, _ = await wire.reply()
                assert (headers["x-request-id"] == sent) is is_kept
                assert engine.completions[-1].headers["x-request-id"] == headers["x-request-id"]
            wire.send(request(b"{"))
            status, headers, _ = await wire.reply()
            assert (status, bool(headers["x-request-id"])) == (400, True)

    run(test)


def test_what_is_not_passed_on_is_answered_here() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url:
            for method, path, status, code in (
                ("GET", "/v1/completions", 405, "method_not_allowed"),
                ("POST", "/v1/load_lora_adapter", 404, "not_found"),
                ("POST", "/v1/files", 404, "not_found"),
                ("GET", "/v1/", 404, "not_found"),
                ("CONNECT", "a:80", 405, "method_not_allowed"),
                ("OPTIONS", "*", 405, "method_not_allowed"),
            ):
                async with connected(url) as wire:
                    wire.send(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
                    got, _, body = await wire.reply()
                    assert (path, got, code_of(body)) == (path, status, code)
            assert engine.completions == []

    run(test)


def test_targets_may_be_written_in_several_ways() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), routing(engine) as url, connected(url) as wire:
            for target in ("http://a/v1/completions", "/v1/%63ompletions", "/v1/completions?a=b"):
                wire.send(request(path=target))
                assert (await wire.reply())[0] == 200
                assert engine.completions[-1].path == target.removeprefix("http://a")

    run(test)
