"""Virtual time: what is to happen when, and engines that live in it without an event loop."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine, Generator

from kvevents.engine.rank import Rank


class Agenda:
    """Does what is due in order of time; what is due at the same time, in the order it was put down.

    Time passes only from one entry to the next, so a run takes no longer than its work and is the same each time.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something at a time; at once, but after what is due already, where that has passed."""
        heapq.heappush(self._due, (max(when, self._now), next(self._numbers), action))

    def run(self) -> None:
        """Do everything, what is put down meanwhile too."""
        while self._due:
            self._now, _, action = heapq.heappop(self._due)
            action()


class RankDriver:
    """The clock of one rank, and what runs it: each wait of the rank becomes an entry of the agenda.

    The rank itself is the engine's own, unchanged; its coroutine is stepped by hand.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._turn = 0

    def now(self) -> float:
        """As the agenda says."""
        return self._agenda.now()

    async def wait(self, wake: asyncio.Event, until: float | None = None) -> None:
        """Return once `wake` is set or `until` is reached."""
        if not wake.is_set() and (until is None or until > self._agenda.now()):
            await _Wait(until)

    def start(self, rank: Rank) -> None:
        """Run a rank from now on."""
        self._steps: Coroutine[_Wait, None, None] = rank.run()
        self._go_on()

    def wake(self) -> None:
        """The rank has something to look at."""
        self._go_on()

    def close(self) -> None:
        """End the rank; what it has not ended is given up."""
        self._turn += 1
        self._steps.close()

    def _go_on(self) -> None:
        self._turn += 1
        until = self._steps.send(None).until
        if until is not None:
            turn = self._turn
            self._agenda.at(until, lambda: self._due(turn))

    def _due(self, turn: int) -> None:
        if turn == self._turn:  # else it was woken before
            self._go_on()


class _Wait:
    def __init__(self, until: float | None) -> None:
        self.until = until

    def __await__(self) -> "Generator[_Wait, None, None]":
        yield self
