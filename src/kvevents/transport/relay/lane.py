"""The window of one rank."""

import time
from typing import Literal

import msgspec

from kvevents._core.relay import CompactedLog, Remains
from kvevents.coalescing import Coalescer, Level
from kvevents.events import AllBlocksCleared, KVEventBatch, SkippedEvent
from kvevents.transport.relay.dialects import recognise
from kvevents.transport.relay.stats import StreamStats
from kvevents.wire import Dialect, encode_batch

_TRIES = 100
"""Batches that are looked at to tell the source's dialect."""
_REMAINS_S = 600.0
"""How long blocks from before a loss may come back."""


class Lane:
    """Batches of one rank go in, one batch of a window comes out.

    Args:
        rank: what the batches name.
        coalesce: the level.
        dialect: how to write.
        stats: where its counts go.

    Attributes:
        rank: as given.
        dialect: as far as it is known.
    """

    def __init__(
        self, rank: int | None, coalesce: Level, dialect: Dialect | Literal["auto"], stats: StreamStats
    ) -> None:
        self.rank = rank
        self.dialect: Dialect = "sglang" if dialect == "auto" else dialect
        self._level = coalesce
        self._stats = stats
        self._tries = _TRIES if dialect == "auto" else 0
        self._coalescer = Coalescer(coalesce, dialect=self.dialect)
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._counted = (0, 0, 0, 0, 0)
        self._remains: Remains | None = None
        self._remains_until = 0.0

    @property
    def pending_bytes(self) -> int:
        """What waits."""
        return self._ready_bytes + self._coalescer.pending_bytes

    def add(self, payload: bytes) -> list[SkippedEvent]:
        """Adds a batch; which of its events could not be read.

        Raises:
            WireError: it is no batch.
        """
        if self._tries:
            self._look_at(payload)
        if self._remains is not None:
            self._give_back(self._remains, payload)
        try:
            return self._coalescer.add(payload)
        except ValueError:  # an array has no place for all of it: a map has, and readers take both
            self._begin("vllm")
            skipped = self._coalescer.add(payload)
            self._begin(self.dialect)
            return skipped

    def lose(self, held: CompactedLog | None) -> None:
        """Something was lost: nothing is held any more, but what later batches show to be.

        Args:
            held: what was held at the time; None: what was held at the last loss.
        """
        if held is not None:
            self._remains = held.remains()
            self._remains_until = time.monotonic() + _REMAINS_S
        self._say_clear()

    def clear(self) -> None:
        """Adds that nothing is held any more."""
        self._remains = None
        self._say_clear()

    def seal(self) -> list[bytes]:
        """What waits, as batches that do not grow any more; they still wait."""
        self._ready = self.take()
        self._ready_bytes = sum(map(len, self._ready))
        return self._ready

    def _say_clear(self) -> None:
        batch = KVEventBatch(time.time(), [AllBlocksCleared()], self.rank)
        self._coalescer.add(encode_batch(batch, dialect=self.dialect))

    def take(self) -> list[bytes]:
        """What waits, as batches; nearly always one."""
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        last = self._coalescer.take_batch()
        self._count()
        return ready if last is None else [*ready, last]

    def learn(self, payload: bytes) -> None:
        """Looks at a batch that was written for this rank before, if the dialect is not known."""
        if self._tries:
            self._look_at(payload)

    def _look_at(self, payload: bytes) -> None:
        try:
            found = recognise(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, KeyError, IndexError):
            return  # who reads it says what is wrong with it
        self._tries = 0 if found.is_sure else self._tries - 1
        if found.dialect != self.dialect:
            self.dialect = found.dialect
            self._begin(found.dialect)

    def _begin(self, dialect: Dialect) -> None:
        """Writes in another dialect from here on."""
        self.seal()
        self._coalescer = Coalescer(self._level, dialect=dialect)
        self._counted = (0, 0, 0, 0, 0)

    def _give_back(self, remains: Remains, payload: bytes) -> None:
        confirmed = remains.confirm(payload)
        if confirmed is not None:
            self._coalescer.add(confirmed[0])
            self._stats.revived_blocks += confirmed[1]
        if not len(remains) or time.monotonic() >= self._remains_until:
            self._remains = None

    def _count(self) -> None:
        now = self._coalescer.stats()
        counted = (now.events, now.coalesced_events, now.unread_events, now.unread_fields, now.cancelled_blocks)
        names = ("received_events", "sent_events", "unread_events", "unread_fields", "cancelled_blocks")
        for name, new, old in zip(names, counted, self._counted, strict=True):
            setattr(self._stats, name, getattr(self._stats, name) + new - old)
        self._counted = counted
