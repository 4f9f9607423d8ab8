"""Who may send to which worker now, and who waits."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

TRIED = "tried"
FULL = "full"
OTHER_MODEL = "model"
"""Why a request is not sent to a worker that is up: it failed over it, has no room, or does not serve its model."""


class Waiter(Protocol):
    """A request that waits for a worker with room."""

    @property
    def barred(self) -> Collection[str]:
        """Workers that it must not be sent to, whatever room they have."""

    def admit(self) -> None:
        """A worker that it may be sent to has room. It enters one, or keeps its place, or withdraws."""


class Admission:
    """Counts requests in flight per worker, and keeps those that found no room, in the order they came.

    No newcomer passes one who waits for the same worker: as soon as room appears, the first waiter who may use it is
    admitted, before anybody else asks. Pure: no clock, no sockets.

    Args:
        limit: how many requests may be in flight on a worker; None is no limit.
        max_waiting: how many requests may wait.

    Attributes:
        full: workers that have no room.
    """

    def __init__(self, limit: Callable[[str], int | None], *, max_waiting: int) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._in_flight: Counter[str] = Counter()
        self._waiting: dict[Waiter, None] = {}
        self.full: set[str] = set()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def in_flight(self) -> dict[str, int]:
        """Requests in flight per worker; workers without any are not in it."""
        return dict(self._in_flight)

    def enter(self, worker: str) -> None:
        """A request is sent to a worker."""
        self._in_flight[worker] += 1
        self._look_at(worker)

    def leave(self, worker: str) -> None:
        """It has ended there. Whoever waits for that worker is admitted."""
        if self._in_flight[worker] <= 1:
            del self._in_flight[worker]
        else:
            self._in_flight[worker] -= 1
        self._look_at(worker)
        if self._waiting:
            self._admit({worker})

    def wait(self, waiter: Waiter) -> bool:
        """Take a place at the end of the queue, or keep the place one has. False when the queue is full."""
        if waiter not in self._waiting and len(self._waiting) >= self._max_waiting:
            return False
        self._waiting[waiter] = None
        return True

    def withdraw(self, waiter: Waiter) -> None:
        """Wait no more."""
        self._waiting.pop(waiter, None)

    def refresh(self, workers: Collection[str]) -> None:
        """These workers take requests now, and limits may have changed: admit whoever can be."""
        for worker in list(self._in_flight):
            self._look_at(worker)
        if self._waiting:
            self._admit(set(workers))

    def check_integrity(self) -> None:
        """Raises AssertionError when the books contradict each other."""
        assert all(count > 0 for count in self._in_flight.values()), self._in_flight
        assert len(self._waiting) <= self._max_waiting, len(self._waiting)
        assert self.full <= self._in_flight.keys(), self.full
        for worker in self.full:
            assert self._in_flight[worker] >= (self._limit(worker) or 0), worker

    def _look_at(self, worker: str) -> None:
        limit = self._limit(worker)
        if limit is not None and self._in_flight[worker] >= limit:
            self.full.add(worker)
        else:
            self.full.discard(worker)

    def _admit(self, workers: set[str]) -> None:
        """Admit, in order, who may be sent to one of these workers, while they have room."""
        for waiter in list(self._waiting):
            free = workers - self.full
            if not free:
                return
            if waiter in self._waiting and not free <= set(waiter.barred):
                waiter.admit()
