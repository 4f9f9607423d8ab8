"""What a running router tells about requests: spans at a collector, lines of a log, and nothing secret in either."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import aiohttp
import pytest

from kvevents.server.telemetry import TelemetrySettings, set_up_logging
from otlp_receiver import OtlpReceiver, ReceivedSpan
from serving import Arrived, answer, engines, fleet, routing, run, until, whole

pytestmark = pytest.mark.integration

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRETS = ("the prompt's own words", "a salt of a tenant", "token-of-a-client", "4711, 4712", "secret-of-a-query")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The router's log as JSON, with everything in it."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.handlers.clear()
    stream = io.StringIO()
    set_up_logging(TelemetrySettings(log_format="json", log_level="debug"), stream=stream)
    yield stream
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.getLogger("kvevents").setLevel(logging.NOTSET)


def requests_in(log: io.StringIO) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == "kvevents.access"]


async def send(url: str, body: object, **headers: str) -> int:
    async with aiohttp.ClientSession(url, headers=headers) as http, http.post("/v1/completions", json=body) as response:
        await response.read()
        return response.status


def below(spans: list[ReceivedSpan], parent: ReceivedSpan) -> list[str]:
    return [span.name for span in spans if span.parent_id == parent.span_id]


def test_a_trace_goes_from_the_client_through_the_router_to_the_worker(log: io.StringIO) -> None:
    async def test(collector: OtlpReceiver) -> None:
        async with fleet(1, telemetry=TelemetrySettings(otlp_endpoint=collector.url)) as (url, (engine,), _):
            headers = {"Traceparent": TRACEPARENT, "tracestate": "vendor=1", "x-request-id": "mine"}
            assert await send(url, {"model": "stub", "prompt": list(range(256))}, **headers) == 200
            (arrived,) = engine.completions
            assert arrived.headers["tracestate"] == "vendor=1"
            worker_saw = arrived.headers["traceparent"]
        request, *steps = collector.spans
        assert request.parent_id == TRACEPARENT.split("-")[2]
        assert below(collector.spans, request) == ["select", "upstream"]
        upstream = steps[-1]
        assert worker_saw == f"00-{TRACEPARENT.split('-')[1]}-{upstream.span_id}-01"
        assert request.attributes["kvevents.request_id"] == "mine"
        assert request.attributes["http.response.status_code"] == 200
        assert upstream.attributes["kvevents.worker"] == engine.id
        assert upstream.attributes["kvevents.cached_tokens.reported"] == 128
        assert upstream.attributes["kvevents.outcome"] == "ok"
        (line,) = requests_in(log)
        assert (line["request_id"], line["status"], line["worker"]) == ("mine", 200, engine.id)

    with OtlpReceiver() as collector:
        run(lambda: test(collector))


def test_without_traces_the_clients_trace_goes_on_as_it_came() -> None:
    async def test() -> None:
        async with fleet(1) as (url, (engine,), _):
            assert await send(url, {"prompt": [1, 2]}, traceparent=TRACEPARENT) == 200
            assert engine.completions[0].headers["traceparent"] == TRACEPARENT

    run(test)


def test_each_attempt_is_a_span_and_a_client_that_leaves_ends_its_request(log: io.StringIO) -> None:
    async def fail(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def test(collector: OtlpReceiver) -> None:
        arrived = asyncio.Event()

        async def hang(request: Arrived, _writer: asyncio.StreamWriter) -> None:
            arrived.set()

            async def has_left() -> bool:
                return request.has_hung_up()

            await until(has_left)

        async with engines(fail, answer) as stubs, routing(*stubs, **settings(collector)) as url:
            assert await send(url, {"prompt": [1]}) == 200
        async with engines(hang) as stubs, routing(*stubs, **settings(collector)) as url:
            leaving = asyncio.create_task(send(url, {"prompt": [3]}))
            await arrived.wait()
            leaving.cancel()
            await asyncio.wait({leaving})
        outcomes = [span.attributes["kvevents.outcome"] for span in collector.spans if span.name == "upstream"]
        assert outcomes == ["unanswered", "ok", "client_left"]
        assert [line["status"] for line in requests_in(log)] == [200, None]
        assert [line["attempts"] for line in requests_in(log)] == [2, 1]

    def settings(collector: OtlpReceiver) -> dict[str, object]:
        return {"telemetry": TelemetrySettings(otlp_endpoint=collector.url), "policy": "round_robin"}

    with OtlpReceiver() as collector:
        run(lambda: test(collector))


def test_nothing_secret_is_told(log: io.StringIO) -> None:
    async def refuse(_request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(whole({"error": {"message": SECRETS[0]}}, status="400 Bad Request"))
        await writer.drain()

    async def garbage(request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(request.body)
        writer.close()

    async def ask(url: str) -> None:
        bodies = (
            {"prompt": SECRETS[0], "cache_salt": SECRETS[1], "user": SECRETS[1]},
            {"prompt": [4711, 4712] * 40, "cache_salt": SECRETS[1]},
            {"messages": [{"role": "user", "content": SECRETS[0]}]},
        )
        async with aiohttp.ClientSession(url, headers={"authorization": f"Bearer {SECRETS[2]}"}) as http:
            for body in bodies:
                async with http.post(f"/v1/completions?key={SECRETS[4]}", json=body) as response:
                    await response.read()
            async with http.post("/v1/completions", data=SECRETS[0].encode()) as response:
                assert response.status == 400

    async def test(collector: OtlpReceiver) -> None:
        telemetry = TelemetrySettings(otlp_endpoint=collector.url)
        async with engines(answer, refuse, garbage) as stubs, routing(*stubs, telemetry=telemetry) as url:
            for _ in range(3):
                await ask(url)
        told = log.getvalue() + collector.raw.decode("latin-1")
        assert "upstream" in told
        assert requests_in(log)
        for secret in SECRETS:
            assert secret not in told, secret

    with OtlpReceiver() as collector:
        run(lambda: test(collector))
