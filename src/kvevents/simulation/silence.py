"""Processes that hang are ended, so that whoever waits for them learns of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import aiohttp

from kvevents.simulation.children import Child

PATIENCE_S = 20.0
"""A process that listens and says nothing for this long has hung, however busy the machine is."""

POLL_S = 1.0


@contextlib.asynccontextmanager
async def ending_the_silent(children: Iterable[Child], *, patience_s: float = PATIENCE_S) -> AsyncIterator[None]:
    """Ask every process again and again for its health, and end one that does not answer in time.

    Args:
        children: processes with `GET /health`.
        patience_s: how long an answer, of whatever kind, may take.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=patience_s)) as session:
        watches = [asyncio.create_task(_watch(session, child, patience_s)) for child in children]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def _watch(session: aiohttp.ClientSession, child: Child, patience_s: float) -> None:
    while child.is_running:
        try:
            async with session.get(f"{child.url}/health") as response:
                await response.read()
        except TimeoutError:
            child.end(f"it had not answered for {patience_s:g} s")
            return
        except aiohttp.ClientError:
            pass  # it is ending, or has ended
        await asyncio.sleep(POLL_S)
