"""Engine time: real time multiplied by a speed, or a clock that a test moves."""

import asyncio
from typing import Protocol


class Clock(Protocol):
    """The time a rank lives in, in engine seconds."""

    def now(self) -> float:
        """Engine seconds since some fixed moment."""
        ...

    async def wait(self, wake: asyncio.Event, until: float | None = None) -> None:
        """Return once `wake` is set or `until` is reached, whichever comes first; None is never."""
        ...


class LoopClock:
    """The running event loop's clock, `speed` times as fast.

    Deadlines are absolute, so a late wake-up is made up for by the next wait.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time()
        self._speed = speed

    def now(self) -> float:
        return (self._loop.time() - self._start) * self._speed

    async def wait(self, wake: asyncio.Event, until: float | None = None) -> None:
        if until is None:
            await wake.wait()
            return
        when = self._start + until / self._speed
        if when <= self._loop.time():
            # Late: let the others run, then go on at once.
            await asyncio.sleep(0)
            return
        timer = self._loop.call_at(when, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()


class VirtualClock:
    """Time that passes only by being waited for: a run takes no real time and is the same each time.

    For one rank at a time: whoever waits moves the clock for all.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    async def wait(self, wake: asyncio.Event, until: float | None = None) -> None:
        if until is None:
            await wake.wait()
            return
        await asyncio.sleep(0)
        if not wake.is_set():
            self._now = max(self._now, until)
