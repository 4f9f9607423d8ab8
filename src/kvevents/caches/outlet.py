"""The way out for a cache's events."""

from typing import ClassVar

from kvevents.events import KVCacheEvent
from kvevents.recorder import EventRecorder
from kvevents.wire import Dialect


class EventOutlet:
    """What hands out what a cache has announced: every cache is one."""

    dialect: ClassVar[Dialect]
    """The wire format of the engines that have such a cache."""

    _recorder: EventRecorder

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last take, in order."""
        self._before_take()
        return self._recorder.take()

    def take_batch(
        self,
        *,
        ts: float | None = None,
        dp_rank: int | None = 0,
        dialect: Dialect | None = None,
    ) -> bytes | None:
        """The events since the last take as one encoded batch; None where there are none.

        Args:
            ts: seconds since 1970; by default now.
            dp_rank: data-parallel rank of the engine.
            dialect: the wire format, as in `kvevents.wire.encode_batch`; by default the cache's own.
        """
        self._before_take()
        return self._recorder.take_batch(ts=ts, dp_rank=dp_rank, dialect=dialect or self.dialect)

    def _before_take(self) -> None:
        """What is still to be announced, if a cache puts something off."""
