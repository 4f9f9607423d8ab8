"""Health and readiness as Kubernetes and load balancers see them."""

import asyncio
import time

import aiohttp
import pytest

from kvevents.server.configuration import Secret, SecuritySettings
from kvevents.transport import State
from serving import answer, engines, fleet, routing, run, until

pytestmark = pytest.mark.integration

PATIENCE_S = 2.0
"""Probes of the manifests wait no longer."""


async def probe(url: str, path: str) -> int:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as http, http.get(path) as response:
        await response.read()
        return response.status


def test_a_router_without_a_living_worker_is_alive_and_not_ready() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,):
            port = int(engine.url.rpartition(":")[2])
            await engine.stop()
            async with routing(engine, probe_interval_s=0.05) as url:
                assert (await probe(url, "/health"), await probe(url, "/ready")) == (200, 503)
                await engine.start(port)

                async def is_ready() -> bool:
                    return await probe(url, "/ready") == 200

                await until(is_ready)
                await engine.stop()

                async def is_not() -> bool:
                    return await probe(url, "/ready") == 503

                await until(is_not)
                assert await probe(url, "/health") == 200

    run(test)


def test_workers_that_hang_hold_no_probe_up() -> None:
    async def test() -> None:
        async with engines(*[answer] * 3) as stubs, routing(*stubs, probe_interval_s=0.05, probe_timeout_s=0.2) as url:
            for stub in stubs:
                stub.health = None
            began = time.monotonic()
            while time.monotonic() < began + 0.5:
                asked = time.monotonic()
                assert await probe(url, "/health") == 200
                await probe(url, "/ready")
                assert time.monotonic() < asked + PATIENCE_S / 2
                await asyncio.sleep(0)

    run(test)


def test_a_picture_that_is_being_built_is_waited_for_and_one_that_is_known_to_lack_something_is_not() -> None:
    async def test() -> None:
        async with fleet(2) as (url, _, (one, other)):
            assert await probe(url, "/ready") == 503
            one.say(State.LIVE)
            other.say(State.RECOVERING)
            assert await probe(url, "/ready") == 503
            other.say(State.DEGRADED)
            assert await probe(url, "/ready") == 200
            assert await probe(url, "/health") == 200

    run(test)


def test_probes_need_no_token() -> None:
    async def test() -> None:
        security = SecuritySettings(client_token=Secret("of-clients"), admin_token=Secret("of-the-admin"))
        async with engines(answer) as stubs, routing(*stubs, security=security) as url:
            assert [await probe(url, path) for path in ("/health", "/ready", "/metrics")] == [200, 200, 401]

    run(test)
