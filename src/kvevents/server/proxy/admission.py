"""Who may send to which worker now, and who waits."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol


class Waiter(Protocol):
    """A request that waits for a worker with room."""

    @property
    def barred(self) -> Collection[str]:
        """Workers that it must not be sent to, whatever room they have."""

    def admit(self) -> None:
        """A worker that it may be sent to has room. It enters one, or waits again in its old place, or leaves."""


class Admission:
    """Counts requests in flight per worker, and keeps those that found no room, in the order they came.

    No newcomer passes one who waits for the same worker: whenever room appears, the first waiter who may use it is
    admitted before anybody else asks. Pure: no clock, no sockets.

    Args:
        limit: how many requests may be in flight on a worker; None is no limit.
        max_waiting: how many requests may wait.
    """

    def __init__(self, limit: Callable[[str], int | None], *, max_waiting: int) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._in_flight: Counter[str] = Counter()
        self._waiting: dict[Waiter, None] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def in_flight(self) -> dict[str, int]:
        """Requests in flight per worker; workers without any are not in it."""
        return dict(self._in_flight)

    def full(self) -> set[str]:
        """Workers that have no room."""
        return {
            worker
            for worker, count in self._in_flight.items()
            if (limit := self._limit(worker)) is not None and count >= limit
        }

    def enter(self, worker: str) -> None:
        """A request is sent to a worker."""
        self._in_flight[worker] += 1

    def leave(self, worker: str) -> None:
        """It has ended there. Whoever waits for that worker is admitted."""
        if self._in_flight[worker] <= 1:
            del self._in_flight[worker]
        else:
            self._in_flight[worker] -= 1
        if self._waiting:
            self.admit_waiting({worker})

    def wait(self, waiter: Waiter) -> bool:
        """Take a place at the end of the queue, or keep the place one has. False when the queue is full."""
        if waiter not in self._waiting and len(self._waiting) >= self._max_waiting:
            return False
        self._waiting[waiter] = None
        return True

    def withdraw(self, waiter: Waiter) -> None:
        """Wait no more."""
        self._waiting.pop(waiter, None)

    def admit_waiting(self, workers: Collection[str]) -> None:
        """Admit, in order, who may be sent to one of these workers, while they have room."""
        for waiter in list(self._waiting):
            free = set(workers) - self.full()
            if not free:
                return
            if waiter in self._waiting and not free <= set(waiter.barred):
                waiter.admit()
