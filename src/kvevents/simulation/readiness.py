"""Waiting until everybody's picture of the fleet is complete."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from kvevents.errors import TransportError

PATIENCE_S = 30.0
POLL_S = 0.05


async def until(condition: Callable[[], str | None], *, within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds.

    Args:
        condition: None when it holds, else what is still missing.
        within_s: how long to wait.

    Raises:
        TransportError: it does not hold in time; with what is missing.
    """
    deadline = time.monotonic() + within_s
    while (missing := condition()) is not None:
        if time.monotonic() >= deadline:
            raise TransportError(f"{missing} (waited {within_s:.0f} s)")
        await asyncio.sleep(POLL_S)


async def until_ready(url: str, *, within_s: float = PATIENCE_S) -> None:
    """Wait until `GET {url}/ready` says 200.

    Raises:
        TransportError: it does not in time; with what it said last.
    """
    deadline = time.monotonic() + within_s
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{url}/ready") as response:
                    said = f"{response.status} {(await response.text())[:200]}"
                    if response.status == 200:
                        return
            except aiohttp.ClientError as error:
                said = str(error)
            if time.monotonic() >= deadline:
                raise TransportError(f"{url}/ready: expected 200 within {within_s:.0f} s, got {said}")
            await asyncio.sleep(POLL_S)
