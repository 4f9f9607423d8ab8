"""When a rank's cache events are published."""

from typing import Protocol

from kvevents.engine.scheduler import Progress
from kvevents.transport import PublisherStats

DECODE_INTERVAL = 40
"""Decode steps between two looks at the event queue, as in SGLang."""


class EventSource(Protocol):
    """A cache that records events."""

    def take_batch(self, *, dp_rank: int = 0) -> bytes | None:
        """Encoded events since the last call; None when there were none."""
        ...


class Publisher(Protocol):
    """Where batches go."""

    def publish(self, batch: bytes, /) -> int:
        """Send a batch; its sequence number."""
        ...

    def stats(self) -> PublisherStats:
        """What was published and what was dropped."""
        ...

    def close(self) -> None:
        """Send the rest and close; again is a no-op."""
        ...


class Announcer:
    """Publishes after steps with prefill, every `DECODE_INTERVAL`-th decode step, and when told to.

    Nothing is sent when there is nothing to tell.

    Args:
        source: the rank's cache.
        publisher: None where events are off.
        dp_rank: the rank that batches name.

    Attributes:
        sequence: number of the last batch published; None before the first.
    """

    def __init__(self, source: EventSource, publisher: Publisher | None, *, dp_rank: int) -> None:
        self.sequence: int | None = None
        self._source = source
        self._publisher = publisher
        self._dp_rank = dp_rank
        self._decode_steps = 0

    @property
    def dropped(self) -> int:
        """Batches that the publisher had to drop."""
        return self._publisher.stats().dropped if self._publisher else 0

    @property
    def steps_to_report(self) -> int:
        """Decode steps until the next look at the queue."""
        return DECODE_INTERVAL - self._decode_steps % DECODE_INTERVAL

    def after(self, progress: Progress) -> None:
        """Publish if this step is one that reports."""
        due = progress.decode_steps >= self.steps_to_report
        self._decode_steps += progress.decode_steps
        if progress.prefilled or due:
            self.publish()

    def at_rest(self) -> None:
        """Publish what there is, since the rank has no step to run, is paused or was flushed."""
        self.publish()

    def publish(self) -> None:
        """Publish what there is, now."""
        if self._publisher is None:
            return
        batch = self._source.take_batch(dp_rank=self._dp_rank)
        if batch is not None:
            self.sequence = self._publisher.publish(batch)

    def close(self) -> None:
        """Publish the rest and close the publisher; again is a no-op."""
        if self._publisher is not None:
            self.publish()
            self._publisher.close()
            self._publisher = None
