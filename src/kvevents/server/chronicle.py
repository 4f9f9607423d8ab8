"""What happened to workers and their events: changes of state, gaps, recoveries. Bounded."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from kvevents.server.dashboard.settings import DashboardSettings
from kvevents.transport import SourceState

_NOTED = ("gaps", "missing", "restarts", "reconnects", "expired", "snapshots", "refused", "skipped")
"""Counters of a source whose growth is an entry."""


class Entry(msgspec.Struct, frozen=True):
    """Something that happened to a source of events or to a worker.

    Attributes:
        id: rising.
        at: when it was noticed, unix seconds.
        worker: the worker's id.
        dp_rank: the rank; None where it is about the worker, or the engine does not say.
        kind: `state` for a change of a source's state; `joined`, `up`, `down`, `left` of a worker; otherwise the
            counter of the source that grew.
        count: how often since the entry before.
        before: state before, for a change of state.
        after: state after.
        code: why, as a stable name.
        reason: why, for people.
    """

    id: int
    at: float
    worker: str
    dp_rank: int | None
    kind: str
    count: int
    before: str | None = None
    after: str | None = None
    code: str | None = None
    reason: str | None = None


class Chronicle:
    """Compares what is known of every source with what was known before, and notes what is new.

    A source counts its own moves, so none is missed however short a state lasted.
    """

    def __init__(self, settings: DashboardSettings, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=settings.log_entries)
        self._numbers = itertools.count(1)
        self._taken = 0
        self._sources: dict[tuple[str, int | None], dict[str, int]] = {}
        self._workers: dict[str, bool] = {}

    @property
    def entries(self) -> list[Entry]:
        """What is kept, oldest first."""
        return list(self._entries)

    def take_new(self) -> list[Entry]:
        """What is new since the last call, as far as it is kept."""
        new = [entry for entry in self._entries if entry.id > self._taken]
        self._taken = self._entries[-1].id if self._entries else 0
        return new

    def look(
        self, workers: Mapping[str, tuple[bool, str]], sources: Mapping[tuple[str, int | None], SourceState]
    ) -> None:
        """Note what is new.

        Args:
            workers: whether each takes requests, and why.
            sources: the state of every source, by worker and rank.
        """
        self._entries.extend(self._look_at_workers(workers))
        self._entries.extend(self._look_at_sources(sources))

    def _look_at_workers(self, workers: Mapping[str, tuple[bool, str]]) -> Iterable[Entry]:
        for worker, (up, reason) in workers.items():
            before = self._workers.get(worker)
            if before is None:
                yield self._entry(worker, None, "joined", 1, reason=reason)
            elif before is not up:
                yield self._entry(worker, None, "up" if up else "down", 1, reason=reason)
        for worker in self._workers.keys() - workers.keys():
            yield self._entry(worker, None, "left", 1)
        self._workers = {worker: up for worker, (up, _) in workers.items()}

    def _look_at_sources(self, sources: Mapping[tuple[str, int | None], SourceState]) -> Iterable[Entry]:
        known, self._sources = self._sources, {}
        for key, state in sources.items():
            counts = {name: getattr(state.counters, name) for name in _NOTED}
            moves = state.counters.transitions
            self._sources[key] = counts | moves
            before = known.get(key, {})
            if any(before.get(name, 0) > count for name, count in self._sources[key].items()):
                before = {}  # it was taken out and put in again: its counters began anew
            grown = [(name, count - before.get(name, 0)) for name, count in self._sources[key].items()]
            # What led to where it is now comes last, whatever was counted first.
            grown.sort(key=lambda one: (one[0] not in moves, one[0].endswith(f">{state.state}:{state.code}")))
            for name, count in grown:
                if count > 0 and name in moves:
                    path, _, code = name.partition(":")
                    origin, _, target = path.partition(">")
                    reason = state.reason if (target, code) == (state.state, state.code) else None
                    yield self._entry(*key, "state", count, before=origin, after=target, code=code, reason=reason)
                elif count > 0:
                    yield self._entry(*key, name, count)

    def _entry(self, worker: str, dp_rank: int | None, kind: str, count: int, **more: str | None) -> Entry:
        return Entry(next(self._numbers), self._clock(), worker, dp_rank, kind, count, **more)
