"""How the router ends: what is open may end before, but not for ever, and never with a traceback."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvevents.simulation.children import PROGRAM, Child
from serving import EVENT_STREAM, Arrived, StubEngine, answer, chunk, engines, router, run, until
from wire_client import Wire, connected

pytestmark = pytest.mark.integration

BODY = json.dumps({"prompt": [1, 2, 3], "stream": True}).encode()
ASKED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


@contextlib.asynccontextmanager
async def serving(engine: StubEngine, *options: str) -> AsyncIterator[Child]:
    """A router as a process of its own."""
    child = await Child.start("router", ["serve", "--port", "0", "--worker", engine.url, *options])
    try:
        yield child
    finally:
        await child.stop()


class Streaming:
    """An engine that streams until it is told to end."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, _request: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + chunk(b"data: a\n\n"))
        await self.end.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def is_refused(url: str) -> bool:
    try:
        async with connected(url):
            return False
    except OSError:
        return True


async def begun(wire: Wire) -> None:
    wire.send(ASKED)
    assert await wire.reader.readuntil(b"data: a\n\n")


def test_streams_end_idle_connections_do_not_wait_and_nobody_comes_in() -> None:
    async def test() -> None:
        stream = Streaming()
        async with engines(stream) as (engine,), serving(engine) as child:
            async with connected(child.url) as busy, connected(child.url) as idle, connected(child.url) as watching:
                idle.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert (await idle.reply())[0] == 200
                watching.send(b"GET /stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert await watching.reader.readuntil(b"data: ")
                await begun(busy)
                os.kill(child.pid, signal.SIGTERM)
                assert await idle.ended() == b""
                await watching.ended()
                await until(lambda: is_refused(child.url))
                stream.end.set()
                assert (await busy.ended()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            await child.ended()
            assert "ended with exit code 0" in child.obituary()
            assert "Traceback" not in child.obituary()

    run(test)


def test_a_stream_without_an_end_gets_one(tmp_path: Path) -> None:
    settings = tmp_path / "serve.toml"
    settings.write_text("[listen]\ndrain_s = 0.3\n")

    async def test() -> None:
        async with engines(Streaming()) as (engine,), serving(engine, "--config", str(settings)) as child:
            async with connected(child.url) as busy:
                await begun(busy)
                os.kill(child.pid, signal.SIGTERM)
                assert b"the router is shutting down" in await busy.ended()
            await child.ended()
            assert "ended with exit code 0" in child.obituary()

    run(test)


def test_a_second_signal_ends_it_at_once() -> None:
    async def test() -> None:
        async with engines(Streaming()) as (engine,), serving(engine) as child:
            async with connected(child.url) as busy:
                await begun(busy)
                started = time.monotonic()
                os.kill(child.pid, signal.SIGTERM)
                await until(lambda: is_refused(child.url))
                os.kill(child.pid, signal.SIGTERM)
                await busy.ended()
            await child.ended()
            assert time.monotonic() - started < 5
            assert "ended with exit code 0" in child.obituary()

    run(test)


def test_an_early_interrupt_leaves_no_traceback() -> None:
    async def test() -> None:
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(interrupted(after_s)) for after_s in (0.15, 0.4, 0.8)]
        for end in ends:
            code, said = end.result()
            assert code in {-signal.SIGINT, 130, 0}
            assert "Traceback" not in said

    async def interrupted(after_s: float) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *PROGRAM, "serve", "--port", "0", stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        await asyncio.sleep(after_s)  # wherever it is by then: that is the question
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()

    assert sys.executable == PROGRAM[0]
    run(test)


def test_while_it_ends_it_is_not_ready() -> None:
    async def test() -> None:
        async with engines(answer) as (engine,), router(engine) as (url, service), connected(url) as wire:
            for is_draining, status in ((False, 200), (True, 503)):
                service.proxy.is_draining = is_draining
                wire.send(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert (await wire.reply())[0] == status

    run(test)
