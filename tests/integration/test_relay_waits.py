"""A relay that is there before its engine."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from chaos.process import Process, free_ports
from serving import until

pytestmark = pytest.mark.integration

HERE = "127.0.0.1"


def test_a_relay_waits_for_an_engine_that_does_not_answer_yet_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        http, live, replay = free_ports(3, HERE)
        said = tmp_path / "relay.log"
        relay = Process("relay", "relay", f"http://{HERE}:{http}", log=said)
        config = {"endpoint": f"tcp://{HERE}:{live}", "replay_endpoint": f"tcp://{HERE}:{replay}"}
        engine = Process(
            "engine",
            *("engine", "--port", str(http), "--kv-events-config", json.dumps(config)),
            log=tmp_path / "engine.log",
        )

        async def is_waiting() -> bool:
            return said.exists() and "waiting for it" in said.read_text()

        starting = asyncio.create_task(relay.start())
        try:
            async with asyncio.timeout(20):
                await until(is_waiting)
            assert not starting.done()
            await engine.start()
            ready = await starting
            assert [worker["worker_id"] for worker in ready["workers"]] == [f"{HERE}:{http}"]
            assert said.read_text().count("waiting for it") == 1
        finally:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            await relay.kill()
            await engine.kill()

    asyncio.run(story())
