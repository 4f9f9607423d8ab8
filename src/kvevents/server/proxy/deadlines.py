"""Time limits that cost nothing to set."""

import asyncio
import math
from typing import Protocol

NEVER = math.inf
_TICK_S = 0.1


class Timed(Protocol):
    """Something with a time limit: `deadline` in the loop's time, `NEVER` when there is none."""

    deadline: float

    def late(self) -> None: ...


class Deadlines:
    """Looks ten times a second at everything that has a time limit, and tells those whose time is over.

    A timer for every request and chunk would cost more than the request; a limit kept to a tenth of a second does.
    """

    def __init__(self) -> None:
        self._watched: set[Timed] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.watch = self._watched.add
        self.forget = self._watched.discard

    def start(self) -> None:
        """Begin to look."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_TICK_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._look)
        now = self._loop.time()
        for one in [one for one in self._watched if one.deadline <= now]:
            if one.deadline <= now:  # what one does may give another more time
                one.late()
