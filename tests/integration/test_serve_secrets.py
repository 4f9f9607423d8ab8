"""What is secret comes out nowhere: not in logs, answers, errors, metrics, pages or checks."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from kvevents import cli
from serving import answer, engines, run

pytestmark = pytest.mark.integration

CLIENT, ADMIN, SHARED, OWN = "c11e4t-t0ken", "adm14-t0ken", "sh4red-key", "0wn-key"
SALT = "s4lt-of-a-tenant"
SECRETS = (CLIENT, ADMIN, SHARED, OWN, SALT)
COMMAND = (sys.executable, "-m", "kvevents", "serve")


def environment() -> dict[str, str]:
    tokens = {"KVEVENTS_CLIENT_TOKEN": CLIENT, "KVEVENTS_ADMIN_TOKEN": ADMIN, "KVEVENTS_WORKER_API_KEY": SHARED}
    return {**os.environ, **tokens, "ENGINE_KEY": OWN}


def settings(folder: Path, url: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(
        f"""
        [listen]
        port = 0
        [telemetry]
        log_level = "debug"
        log_format = "json"
        access_log = "info"
        [[worker]]
        url = "{url}"
        api_key_env = "ENGINE_KEY"
        events = "http://127.0.0.1:1"
        [[worker]]
        url = "http://127.0.0.1:1"
        """
    )
    return path


@contextlib.asynccontextmanager
async def serving(path: Path, said: list[str]) -> AsyncIterator[str]:
    """The URL of a router in a process of its own; what it writes goes to `said`."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--config", str(path), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    try:
        yield msgspec.json.decode(line)["url"]
    finally:
        process.terminate()
        out, err = await process.communicate()
        said += [line.decode(), out.decode(), err.decode()]


async def everything(url: str) -> list[str]:
    """Every answer of the router: all there is to see, and what it says to requests of every wrong kind."""
    said = []
    admin, client, wrong = ({"authorization": f"Bearer {token}"} for token in (ADMIN, CLIENT, f"{ADMIN}x"))
    async with aiohttp.ClientSession(url) as http:
        paths = ["/", "/stats", "/stats?history=1", "/workers", "/metrics", "/ready", "/health", "/openapi.json"]
        asked: list[tuple[str, str, object, dict[str, str]]] = [("GET", path, None, admin) for path in paths]
        prompt = {"model": "stub", "prompt": list(range(100)), "cache_salt": SALT, "stream": False}
        asked += [
            ("GET", "/stats", None, wrong),
            ("POST", "/v1/completions", prompt, client),
            ("POST", "/v1/completions", {**prompt, "max_tokens": "x"}, wrong),
            ("GET", "/v1/models", None, client),
            ("POST", "/route?explain=1", {"token_ids": [1], "cache_salt": SALT}, admin),
            ("POST", "/query", {"token_ids": [1] * 99, "cache_salt": SALT}, admin),
            ("POST", "/query", {"token_ids": ["x"], "cache_salt": SALT}, admin),
            ("POST", "/workers", {"url": f"http://u:{OWN}@127.0.0.1"}, admin),
            ("POST", "/workers", {"url": "http://127.0.0.1:2", "api_key": OWN}, admin),
            ("POST", "/workers", {"url": "http://127.0.0.1:2", "api_key_env": "KVEVENTS_ADMIN_TOKEN"}, admin),
            ("POST", "/workers", {"url": "http://127.0.0.1:2"}, admin),
            ("POST", "/login", {"token": f"{ADMIN}x"}, {}),
            ("POST", "/login", {"token": ADMIN}, {}),
        ]
        for method, path, body, headers in asked:
            async with http.request(method, path, json=body, headers=headers) as response:
                said += [await response.text(), str(response.headers)]
        async with http.get("/stream", headers=admin) as response:
            said.append((await response.content.readany()).decode())
    return said


def check(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What checks of the settings say, of right ones and of wrong ones."""
    for options in ([], ["--json"]):
        assert cli.main(["serve", "--config", str(path), "--check", *options]) == cli.DONE
    for wrong in ("listen.port=x", f"security.admin_token={ADMIN}x"):
        assert cli.main(["serve", "--config", str(path), "--check", "--set", wrong]) == cli.USAGE
    return list(capsys.readouterr())


def test_no_secret_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test() -> None:
        async with engines(answer) as (engine,):
            path = settings(tmp_path, engine.url)
            async with serving(path, said) as url:
                said.extend(await everything(url))
            assert {request.headers.get("authorization") for request in engine.asked} == {f"Bearer {OWN}"}
            (arrived,) = engine.completions
            assert arrived.headers["authorization"] == f"Bearer {OWN}"
            assert CLIENT not in str(arrived.headers)

    said: list[str] = []
    run(test)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    said += check(tmp_path / "serve.toml", capsys)
    text = "\n".join(said)
    assert "kvevents_worker_up" in text
    for secret in SECRETS:
        at = text.find(secret)
        assert at < 0, text[max(0, at - 200) : at + 100]
