"""Processes that hang are ended and say why."""

import asyncio
import os
import signal

import pytest

from kvevents.simulation.children import Child
from kvevents.simulation.silence import ending_the_silent

pytestmark = pytest.mark.integration


def test_an_engine_that_hangs_is_ended_and_the_others_go_on() -> None:
    async def scenario() -> None:
        names = ("engine 0", "engine 1")
        engines = await asyncio.gather(*(Child.start(name, ["engine", "--port", "0"]) for name in names))
        hung, healthy = engines
        try:
            async with ending_the_silent(engines, patience_s=1.0):
                os.kill(hung.pid, signal.SIGSTOP)
                async with asyncio.timeout(20):
                    await hung.ended()
            assert hung.obituary() == (f"engine 0 (pid {hung.pid}) was ended by SIGKILL: it had not answered for 1 s")
            assert healthy.is_running
        finally:
            await asyncio.gather(*(engine.stop() for engine in engines))

    asyncio.run(scenario())


def test_one_that_has_ended_by_itself_is_left_alone() -> None:
    async def scenario() -> None:
        engine = await Child.start("engine 0", ["engine", "--port", "0"])
        try:
            async with ending_the_silent([engine], patience_s=1.0):
                os.kill(engine.pid, signal.SIGKILL)
                await engine.ended()
            assert engine.obituary() == f"engine 0 (pid {engine.pid}) was ended by SIGKILL"
        finally:
            await engine.stop()

    asyncio.run(scenario())
