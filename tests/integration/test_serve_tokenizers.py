"""`kvevents serve` reads text and chats as the engine does: tokenizer, template, and what bounds them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvevents.server.prompts import Prompt, PromptReader, PromptSettings, TokenizerSettings
from kvevents.simulation.children import Child
from model_files import SIMULATED, byte_tokenizer, write_model
from serving import post, run, until

pytestmark = pytest.mark.integration

MODEL = "acme/chat-1"
PAGE = 16
EVENTS = json.dumps({"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"})
ENGINE = ("engine", "--port", "0", "--page-size", str(PAGE), "--speed", "100", "--kv-events-config", EVENTS)
CHAT = [{"role": "system", "content": "Be kind, be brief. " * 12}, {"role": "user", "content": "Hé, hello?"}]


def toml(directory: Path, model: Path) -> str:
    file = directory / "serve.toml"
    file.write_text(f'[[prompts.tokenizer]]\nmodels = "acme/*"\npath = "{model}"\n')
    return str(file)


@contextlib.asynccontextmanager
async def reading(model: Path, **settings: Any) -> AsyncIterator[PromptReader]:
    """A reader with one tokenizer, ended afterwards."""
    tokenizer = TokenizerSettings(models="*", path=str(model))
    reader = PromptReader(PromptSettings(**{"tokenizer": (tokenizer,), "timeout_s": 0.5, **settings}))
    try:
        yield reader
    finally:
        await reader.close()


async def read(reader: PromptReader, **fields: Any) -> Prompt:
    return await reader.tokenize(reader.read(json.dumps({"model": MODEL, **fields}).encode()))


async def ready(reader: PromptReader) -> None:
    """Wait until the tokenizer is loaded."""

    async def is_ready() -> bool:
        await reader.start()
        return reader.models()[0].state == "ready"

    await until(is_ready)


def test_a_chat_is_expected_cached_to_the_block_that_the_engine_reuses(tmp_path: Path) -> None:
    async def test() -> None:
        config = toml(tmp_path, write_model(tmp_path / "model", byte_tokenizer(), SIMULATED))
        async with contextlib.AsyncExitStack() as stack:
            engine = await Child.start("engine", [*ENGINE, "--model-name", MODEL])
            stack.push_async_callback(engine.stop)
            router = await Child.start("router", ["serve", "--port", "0", "--config", config, "--worker", engine.url])
            stack.push_async_callback(router.stop)

            async def is_read() -> bool:
                asked = {"model": MODEL, "messages": CHAT}
                return not (await post(router.url, "/route", asked))["prompt"]["approximate"]

            await until(is_read)
            for chat in (
                CHAT,
                CHAT,
                [*CHAT, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "So"}],
            ):
                body = {"model": MODEL, "messages": chat, "max_tokens": 4}
                async with (
                    aiohttp.ClientSession(router.url) as http,
                    http.post("/v1/chat/completions", json=body) as response,
                ):
                    expected = int(response.headers["x-kvevents-expected-cached-tokens"])
                    usage = (await response.json())["usage"]
                matches = await post(router.url, "/query", body)
                assert matches["prompt"] == {
                    "source": "chat",
                    "tokens": usage["prompt_tokens"],
                    "approximate": False,
                    "why_approximate": None,
                }
                assert expected == usage["prompt_tokens_details"]["cached_tokens"]

                async def is_told(body: dict[str, Any] = body, tokens: int = usage["prompt_tokens"]) -> bool:
                    found = (await post(router.url, "/query", body))["matches"]
                    return bool(found) and found[0]["total"] == tokens // PAGE

                await until(is_told)
            assert expected >= len(CHAT[0]["content"]) // PAGE * PAGE
            async with aiohttp.ClientSession(router.url) as http, http.get("/metrics") as response:
                figures = (await response.text()).splitlines()
            assert "kvevents_agreeing_prompts_total 3" in figures
            assert "kvevents_disagreeing_prompts_total 0" in figures

    run(test)


def test_text_and_chats_are_read_in_a_process_of_their_own(tmp_path: Path) -> None:
    async def test() -> None:
        async with reading(write_model(tmp_path, byte_tokenizer(), SIMULATED)) as reader:
            assert reader.models()[0].state == "idle"
            await ready(reader)
            prompts = await asyncio.gather(*(read(reader, prompt=f"é{number}") for number in range(20)))
            assert [bytes(prompt.tokens.tolist()).decode() for prompt in prompts] == [f"é{n}" for n in range(20)]
            chat = await read(reader, messages=CHAT)
            assert bytes(chat.tokens.tolist()).decode().endswith("<|user|>\nHé, hello?\n<|assistant|>\n")
            assert (chat.needs_tokenizing, chat.approximate, chat.unread) == (False, False, None)
            assert reader.counters.tokenized == 21
            reader.observe(chat, len(chat.tokens))
            assert reader.models()[0].verdict == "agrees"

    run(test)


@pytest.mark.parametrize(
    ("template", "settings", "reason"),
    [
        # Nested loops that the sandbox allows, and that say nothing.
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", {}, "timeout"),
        # One call that takes more memory than there is to be had; nothing in Python can interrupt it.
        ("{{ 'x' * 9000000000 }}", {}, "template"),
        ("{{ raise_exception('not today') }}", {}, "template"),
        ("{% for a in range(99999) %}{{ messages }}{% endfor %}", {"max_text_bytes": 1000}, "template"),
    ],
)
def test_a_template_that_goes_astray_costs_its_own_requests_only(
    tmp_path: Path, template: str, settings: dict[str, Any], reason: str
) -> None:
    async def test() -> None:
        guarded = "{% if messages[0].role == 'bad' %}" + template + "{% else %}" + SIMULATED + "{% endif %}"
        async with reading(write_model(tmp_path, byte_tokenizer(), guarded), **settings) as reader:
            await ready(reader)
            astray = await read(reader, messages=[{"role": "bad", "content": "Hello, hello"}])
            assert (astray.approximate, astray.source) == (True, "chat")
            assert astray.unread
            assert len(astray.tokens) > 0
            assert reader.counters.approximate == {reason: 1}
            await ready(reader)  # after a pause, where its process was ended
            prompt = await read(reader, messages=[{"role": "user", "content": "Hello"}])
            assert bytes(prompt.tokens.tolist()) == b"<|user|>\nHello\n<|assistant|>\n"

    run(test)


def test_prompts_wait_for_their_turn_and_not_for_ever(tmp_path: Path) -> None:
    async def test() -> None:
        slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        async with reading(write_model(tmp_path, byte_tokenizer(), slow)) as reader:
            await ready(reader)
            prompts = await asyncio.gather(*(read(reader, messages=CHAT) for _ in range(3)))
            assert all(prompt.approximate for prompt in prompts)
            assert reader.counters.approximate["timeout"] == 1
            assert sum(reader.counters.approximate.values()) == 3

    run(test)


def test_a_tokenizer_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "tokenizer.json").write_text('{"no": "tokenizer"}')
        async with reading(tmp_path, timeout_s=5.0) as reader:
            prompt = await read(reader, prompt="Hello")
            assert prompt.approximate
            assert reader.counters.approximate == {"failed": 1}
            state, _ = reader.models()
            assert state.state == "failed"
            assert state.reason == prompt.unread

    run(test)


def test_a_client_that_leaves_leaves_nothing_behind_for_the_next(tmp_path: Path) -> None:
    async def test() -> None:
        async with reading(write_model(tmp_path, byte_tokenizer(), SIMULATED)) as reader:
            await ready(reader)
            for number in range(5):
                left = asyncio.create_task(read(reader, prompt="x" * 50_000))
                await asyncio.sleep(0)
                left.cancel()
                await asyncio.wait({left})
                assert left.cancelled()
                prompt = await read(reader, prompt=f"next {number}")
                assert bytes(prompt.tokens.tolist()).decode() == f"next {number}"

    run(test)


def test_the_process_knows_none_of_the_routers_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setenv("KVEVENTS_ADMIN_TOKEN", "secret")
        async with reading(write_model(tmp_path, byte_tokenizer(), SIMULATED)) as reader:
            await ready(reader)
            process = reader._models[0]._processes[0]._process
            assert process is not None
            environment = await asyncio.to_thread(Path(f"/proc/{process.pid}/environ").read_bytes)
            assert b"secret" not in environment
            assert b"PATH=" in environment

    run(test)


def test_an_adapter_asked_for_as_a_model_has_blocks_of_its_own() -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            engine = await Child.start("engine", [*ENGINE, "--adapter", "sql"])
            stack.push_async_callback(engine.stop)
            router = await Child.start("router", ["serve", "--port", "0", "--worker", engine.url])
            stack.push_async_callback(router.stop)
            prompt = list(range(10 * PAGE))

            async def held(model: str) -> int:
                matches = (await post(router.url, "/query", {"model": model, "token_ids": prompt}))["matches"]
                return max((match["total"] for match in matches), default=0)

            async def is_told() -> bool:
                return await held("sql") == 10

            async with aiohttp.ClientSession(router.url) as http:
                for expected in (0, 9 * PAGE):
                    body = {"model": "sql", "prompt": prompt, "max_tokens": 2}
                    async with http.post("/v1/completions", json=body) as response:
                        assert response.status == 200, await response.text()
                        assert int(response.headers["x-kvevents-expected-cached-tokens"]) == expected
                        usage = (await response.json())["usage"]
                    assert usage["prompt_tokens_details"]["cached_tokens"] == expected
                    await until(is_told)
            assert await held("kvevents-sim") == 0

    run(test)
