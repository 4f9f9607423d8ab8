"""Wrong tokens, counted by address, so that nobody tries many."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST_PEERS = 10_000
"""Addresses that are remembered; the one heard of least recently goes first."""


class Guesses:
    """A bucket of wrong tokens for each address, which empties over time.

    An address that has sent the right token before is not locked out by wrong ones: others may share it, behind a
    proxy or a gateway. A login is limited all the same.

    Args:
        per_minute: wrong tokens that an address may send in a minute.
        now: seconds.
    """

    def __init__(self, *, per_minute: int, now: Callable[[], float]) -> None:
        self._most = float(per_minute)
        self._now = now
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def is_over(self, peer: str, *, is_login: bool = False) -> bool:
        """Whether an address has sent so many that its next one is not even looked at."""
        if peer not in self._wrong or (peer in self._known and not is_login):
            return False
        return self._level(peer) > self._most - 1

    def wrong(self, peer: str) -> None:
        """It sent a wrong one."""
        self._wrong[peer] = (self._level(peer) + 1, self._now())
        _shorten(self._wrong, peer)

    def right(self, peer: str) -> None:
        """It sent the right one."""
        if peer not in self._known:
            self._known[peer] = None
            _shorten(self._known, peer)

    def _level(self, peer: str) -> float:
        level, at = self._wrong.get(peer, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * self._most / 60)


def _shorten(table: "OrderedDict[str, Any]", peer: str) -> None:
    table.move_to_end(peer)
    if len(table) > MOST_PEERS:
        table.popitem(last=False)
