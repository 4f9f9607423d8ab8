"""Which worker a session was on."""

from collections import OrderedDict


class Sessions:
    """The last worker of each session: bounded in number and in age.

    Args:
        ttl_s: a session that was silent for so long is forgotten.
        limit: the longest silent ones above this number are forgotten.
    """

    def __init__(self, *, ttl_s: float, limit: int) -> None:
        self._ttl_s = ttl_s
        self._limit = limit
        self._places: OrderedDict[str, tuple[tuple[str, int], float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, session: str, now: float) -> tuple[str, int] | None:
        """The worker and rank of a session; None when it is new or was silent too long."""
        place, at = self._places.get(session, (None, 0.0))
        return place if place is not None and now - at <= self._ttl_s else None

    def keep(self, session: str, place: tuple[str, int], now: float) -> None:
        """A session's request went there."""
        self._places[session] = (place, now)
        self._places.move_to_end(session)
        while len(self._places) > self._limit or self._is_old(now):
            self._places.popitem(last=False)

    def _is_old(self, now: float) -> bool:
        _, at = next(iter(self._places.values()))
        return now - at > self._ttl_s
