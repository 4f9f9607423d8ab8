"""What an engine says when one of its ranks has failed."""

import asyncio

import httpx
import pytest

from kvevents.engine.app import create_app
from kvevents.engine.clock import VirtualClock
from kvevents.engine.config import EngineConfig
from kvevents.engine.engine import Engine


def test_a_rank_that_fails_is_told_to_whoever_waits_or_comes_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    async def story() -> None:
        async with Engine(EngineConfig(page_size=4, max_total_tokens=400), clock=VirtualClock()) as engine:
            monkeypatch.setattr(engine.ranks[0].scheduler, "commit", failing)
            transport = httpx.ASGITransport(create_app(engine), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                body = {"prompt": [1, 2, 3], "max_tokens": 2}
                answer = await client.post("/v1/completions", json=body)
                assert answer.status_code == 503
                assert answer.json()["error"]["message"] == "the engine has failed and has given this request up"
                for later in (await client.post("/v1/completions", json=body), await client.get("/health")):
                    assert later.status_code == 503
                    assert "a rank has failed: RuntimeError('a fault')" in later.text

    asyncio.run(story())
    assert "a rank has failed and runs no step any more" in caplog.text
    assert "RuntimeError: a fault" in caplog.text
