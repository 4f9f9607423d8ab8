"""Workers of every kind in front of which the router stands: how their events come, how they leave, who may join."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine_process import running_engine
from kvevents.events import BlockStored, KVEventBatch
from kvevents.server import Secret, WorkerSettings
from kvevents.server.configuration.events import EventsSettings, JetStreamEvents
from kvevents.server.service import Service
from kvevents.transport import State, discover
from kvevents.transport.jetstream import JetStreamPublisher, JetStreamSettings
from nats_server import running_nats
from relay_process import running_relay
from serving import Arrived, answer, engines, fleet, get, post, router, run, until

pytestmark = pytest.mark.integration

PROMPT = list(range(256))
TOPIC = "kv-events"
CONFIG = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "topic": TOPIC})


@contextlib.asynccontextmanager
async def in_front_of(worker: WorkerSettings, **options: Any) -> AsyncIterator[tuple[str, Service]]:
    """A router with the real discovery and the real subscriber in front of one described worker."""
    async with router(workers=(worker,), discover=discover, **options) as (url, service):
        yield url, service


async def is_ready(url: str) -> bool:
    async with aiohttp.ClientSession(url) as http, http.get("/ready") as response:
        return response.status == 200


async def holds(url: str, blocks: int) -> bool:
    matches = (await post(url, "/query", {"token_ids": PROMPT}))["matches"]
    return [(match["total"], match["state"]) for match in matches] == [(blocks, "live")]


async def check_events(url: str, model: str) -> None:
    """A prompt that was answered is found where it was computed."""
    await until(lambda: is_ready(url))
    async with aiohttp.ClientSession(url) as http:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 1}
        async with http.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
    await until(lambda: holds(url, 16))


def test_an_engine_like_vllm_has_its_sockets_given() -> None:
    with running_engine(
        "--cache", "block_pool", "--page-size", "16", "--kv-events-config", CONFIG, "--speed", "50"
    ) as engine:
        events = engine.kv_events
        worker = WorkerSettings(
            url=engine.url,
            events=f"tcp://127.0.0.1:{events['endpoint_port_base']}",
            replay=f"tcp://127.0.0.1:{events['replay_endpoint_port_base']}",
            topic=TOPIC,
            block_size=16,
            residency="set",
        )

        async def test() -> None:
            async with in_front_of(worker, probe_interval_s=0.05) as (url, service):
                await check_events(url, "kvevents-sim")
                (known,) = (await get(url, "/workers"))["workers"]
                assert known["sources"][0]["endpoint"] == worker.events
                assert service.fleet[worker.worker_id].load_path == "/metrics"
                assert service.fleet.counters.load_reads > 0

        run(test)


def test_a_wrong_block_size_or_number_of_ranks_is_told() -> None:
    with running_engine("--kv-events-config", CONFIG, "--page-size", "16") as engine:

        async def test() -> None:
            for wrong, says in (
                (WorkerSettings(url=engine.url, block_size=32), "expected 32 as its settings say, found 16"),
                (WorkerSettings(url=engine.url, ranks=2), "ranks: expected 2 as its settings say, found 1"),
            ):
                async with in_front_of(wrong) as (url, _):
                    (known,) = (await get(url, "/workers"))["workers"]
                    assert says in known["events"]
                    assert known["up"]

        run(test)


def test_events_may_come_by_a_relay_beside_the_engine() -> None:
    with (
        running_engine("--page-size", "16", "--kv-events-config", CONFIG, "--speed", "50") as engine,
        running_relay(engine.url) as relay,
    ):
        worker = WorkerSettings(url=engine.url, events=relay.url)

        async def test() -> None:
            async with in_front_of(worker) as (url, _):
                await check_events(url, "kvevents-sim")
                (known,) = (await get(url, "/workers"))["workers"]
                assert str(relay.kv_events["endpoint_port_base"]) in known["sources"][0]["endpoint"]

        run(test)


def test_events_may_come_from_a_log(tmp_path: Path) -> None:
    with running_nats(tmp_path) as broker:
        section = JetStreamEvents(servers=(broker.url,), fleet="f")
        publishing = JetStreamSettings(servers=(broker.url,), fleet="f", lease_s=1.5, max_bytes=64 << 20)

        async def test() -> None:
            async with engines(answer) as (engine,):
                stored = BlockStored(list(range(1, 17)), None, PROMPT, 16, medium="GPU")
                with JetStreamPublisher(publishing, "host-7", block_size=16, url=engine.url) as publisher:
                    publisher.publish(KVEventBatch(0.0, [stored], 0))
                    await until(lambda: _published(publisher))
                    worker = WorkerSettings(url=engine.url)
                    events = EventsSettings(jetstream=section)
                    async with in_front_of(worker, events=events) as (url, service):
                        await until(lambda: holds(url, 16))
                        await until(lambda: is_ready(url))
                        (known,) = (await get(url, "/workers"))["workers"]
                        assert (known["id"], known["state"]) == ("host-7", "live")
                        assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == "host-7"
                        assert service.fleet.index.block_size == 16
                        async with aiohttp.ClientSession(url) as http, http.delete("/workers/host-7") as response:
                            assert response.status == 204

        run(test)


async def _published(publisher: JetStreamPublisher) -> bool:
    return publisher.stats().published >= 1


def test_a_fleet_whose_broker_is_away_serves_and_says_so() -> None:
    async def test() -> None:
        events = EventsSettings(jetstream=JetStreamEvents(servers=("nats://127.0.0.1:1",)))
        async with engines(answer) as (engine,):
            worker = WorkerSettings(url=engine.url)
            async with in_front_of(worker, events=events, probe_timeout_s=0.2) as (url, _):
                (known,) = (await get(url, "/workers"))["workers"]
                assert known["up"]
                assert "the broker is away" in known["events"]
                assert not await is_ready(url)

    run(test)


class Gate:
    """A reply that waits."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, request: Arrived, writer: asyncio.StreamWriter) -> None:
        await self.opened.wait()
        await answer(request, writer)


def test_a_draining_worker_ends_what_it_has_and_gets_no_more() -> None:
    async def test() -> None:
        gate = Gate()
        async with (
            engines(gate, answer) as (leaving, staying),
            router(leaving, staying, policy="round_robin") as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            body = {"model": "stub", "prompt": PROMPT}
            open_request = asyncio.create_task(_post(http, body))
            await until(lambda: _true(bool(leaving.completions)))
            async with http.delete(f"/workers/{leaving.id}", params={"drain": ""}) as response:
                assert response.status == 202
                assert (await response.json())["id"] == leaving.id
            for _ in range(3):
                assert await _post(http, body) == staying.id
            known = {worker["id"]: worker["draining"] for worker in (await get(url, "/workers"))["workers"]}
            assert known == {leaving.id: True, staying.id: False}
            gate.opened.set()
            assert await open_request == leaving.id
            await until(lambda: _true(leaving.id not in service.fleet))
            assert (service.fleet.counters.drains, service.fleet.counters.leaves) == (1, 1)
            assert len(leaving.completions) == 1

    run(test)


def test_a_drain_has_a_limit_and_may_be_taken_back() -> None:
    async def test() -> None:
        gate = Gate()
        async with (
            engines(gate) as (engine,),
            router(engine) as (url, service),
            aiohttp.ClientSession(url) as http,
        ):
            open_request = asyncio.create_task(_post(http, {"model": "stub", "prompt": PROMPT}))
            await until(lambda: _true(bool(engine.completions)))
            async with http.delete(f"/workers/{engine.id}?drain=60") as response:
                assert response.status == 202
            assert (await post(url, "/route", {"token_ids": PROMPT}, status=503))["error"]["code"] == "no_worker"
            await post(url, "/workers", {"url": engine.url}, status=201)
            assert (await post(url, "/route", {"token_ids": PROMPT}))["worker"] == engine.id
            for wrong in ("x", "-1", "nan", "inf"):
                async with http.delete(f"/workers/{engine.id}", params={"drain": wrong}) as response:
                    assert response.status == 400
            async with http.delete(f"/workers/{engine.id}?drain=0.05") as response:
                assert response.status == 202
            await until(lambda: _true(engine.id not in service.fleet))
            gate.opened.set()
            await open_request
            async with http.delete("/workers/nobody?drain") as response:
                assert response.status == 404

    run(test)


async def _post(http: aiohttp.ClientSession, body: object) -> str:
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == 200
        return response.headers["x-kvevents-worker"]


async def _true(value: bool) -> bool:
    return value


def test_a_worker_that_breaks_its_promises_is_degraded_until_it_is_trusted() -> None:
    async def test() -> None:
        async with fleet(1) as (url, (engine,), (events,)):
            events.store(PROMPT, block_size=64)
            events.say(State.LIVE)
            service = _services.pop()

            async def state() -> tuple[str, str]:
                (worker,) = (await get(url, "/workers"))["workers"]
                (match,) = (await post(url, "/query", {"token_ids": PROMPT}))["matches"]
                return worker["state"], match["state"]

            assert await state() == ("live", "live")
            service.fleet.distrust(engine.id, "reports 3 % of what was expected")
            assert await state() == ("degraded", "degraded")
            (worker,) = (await get(url, "/workers"))["workers"]
            assert worker["state_reason"] == "reports 3 % of what was expected"
            assert worker["sources"][0]["code"] == "distrusted"
            events.say(State.LIVE)
            assert await state() == ("degraded", "degraded")
            assert await is_ready(url)
            service.fleet.trust(engine.id)
            assert await state() == ("live", "live")
            assert service.fleet.counters.distrusts == 1

    run(test)


_services: list[Service] = []


@pytest.fixture(autouse=True)
def _note_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets tests reach the service behind a router that a helper made."""
    made: Callable[..., None] = Service.__init__

    def note(self: Service, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        _services.append(self)

    monkeypatch.setattr(Service, "__init__", note)
    yield
    _services.clear()


def test_a_router_that_is_its_own_worker_notices() -> None:
    async def test() -> None:
        async with router(worker_hosts=("127.0.0.1", "localhost")) as (url, service):
            error = (await post(url, "/workers", {"url": "http://localhost:8080"}, status=400))["error"]
            assert "the router's own address" in error["message"]  # as its settings have it
            added = await post(url, "/workers", {"url": url}, status=201)
            assert not added["up"]
            assert "this router itself" in added["reason"]
            assert service.fleet.counters.refused_joins == 1

    run(test)


def test_routers_that_are_each_others_workers_ask_each_other_once() -> None:
    async def test() -> None:
        async with (
            engines(answer) as (engine,),
            router(engine, worker_hosts=("127.0.0.1",)) as (one, _),
            router(workers=(WorkerSettings(url=one),)) as (other, _),
        ):
            added = await post(one, "/workers", {"url": other}, status=201)
            assert added["up"]
            for url in (one, other):
                async with asyncio.timeout(2):
                    assert [model["id"] for model in (await get(url, "/v1/models"))["data"]] == ["stub"]
            routers = [request.headers["x-kvevents-router"].split(", ") for request in engine.asked]
            assert max(len(names) for names in routers) == 2, "a question went round"

    run(test)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"events": "http://169.254.169.254"}, "host_not_allowed"),
        ({"events": "tcp://169.254.169.254:5557"}, "host_not_allowed"),
        ({"events": "tcp://127.0.0.1:5557", "replay": "tcp://10.0.0.1:5558"}, "host_not_allowed"),
        ({"events": "ipc:///run/other.sock"}, "socket_not_allowed"),
        ({"events": "tcp://127.0.0.1:5557", "bind": True}, "socket_not_allowed"),
        ({"api_key_file": "/etc/passwd"}, "file_not_allowed"),
        ({"api_key_env": "KVEVENTS_ADMIN_TOKEN"}, "file_not_allowed"),
        ({"keys": "/etc/passwd"}, "file_not_allowed"),
        ({"models": ["m"], "tokenizer": "/etc"}, "file_not_allowed"),
        ({"api_key": "hunter2"}, "bad_request"),
        ({"ranks": 0}, "bad_request"),
        ({"residency": "sett"}, "bad_request"),
        ({"rank": 1}, "bad_request"),
    ],
)
def test_a_request_points_the_router_nowhere_else(fields: dict[str, Any], code: str) -> None:
    async def test() -> None:
        async with router(worker_hosts=("127.0.0.1",)) as (url, service):
            body = {"url": "http://127.0.0.1:1", **fields}
            status = 400 if code == "bad_request" else 403
            error = (await post(url, "/workers", body, status=status))["error"]
            assert error["code"] == code
            assert "hunter2" not in error["message"]
            assert not service.fleet.workers

    run(test)


def test_a_worker_is_asked_with_its_key_and_a_late_one_with_that_for_all() -> None:
    async def test() -> None:
        async with engines(answer, answer) as (one, late):
            worker = WorkerSettings(url=one.url, api_key=Secret("own-key"), max_in_flight=3)
            async with in_front_of(worker, worker_api_key=Secret("shared-key")) as (url, service):
                await post(url, "/workers", {"url": late.url, "role": "decode", "models": ["n"]}, status=201)
                for engine, key in ((one, "own-key"), (late, "shared-key")):
                    assert {request.headers.get("authorization") for request in engine.asked} == {f"Bearer {key}"}
                known = service.fleet[late.id]
                assert (known.role, set(known.models)) == ("decode", {"n"})
                assert service.fleet[one.id].max_in_flight == 3
                for path in ("/workers", "/stats", "/openapi.json"):
                    assert "-key" not in json.dumps(await get(url, path))

    run(test)


def test_roles_are_as_the_engines_say() -> None:
    async def test() -> None:
        async with engines(answer, answer) as (prefill, decode):
            for engine, mode in ((prefill, "prefill"), (decode, "decode")):
                engine.server_info = {"disaggregation_mode": mode, "disaggregation_bootstrap_port": 8998}
            async with router(prefill, decode) as (_, service):
                known = [(worker.role, worker.bootstrap_port) for worker in service.fleet.workers]
                assert known == [("prefill", 8998), ("decode", None)]

    run(test)
