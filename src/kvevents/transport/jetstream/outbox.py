"""A publisher's batches on their way to the broker."""

import threading
from collections import deque
from collections.abc import Collection
from typing import NamedTuple


class Queued(NamedTuple):
    """A batch with its number."""

    sequence: int
    payload: bytes


class Outbox:
    """Numbers batches, keeps them until the broker has them, and a while longer, in case it loses them.

    waiting -> in flight -> kept. `put` may be called by any thread; everything else belongs to one.

    Args:
        max_batches: how many may wait or be in flight.
        max_bytes: the same in bytes; one batch fits at any rate.
        keep_batches: how many acknowledged ones are kept.
        keep_bytes: the same in bytes.
    """

    def __init__(self, *, max_batches: int, max_bytes: int, keep_batches: int, keep_bytes: int) -> None:
        self._max_batches, self._max_bytes = max_batches, max_bytes
        self._keep_batches, self._keep_bytes = keep_batches, keep_bytes
        self._lock = threading.Lock()
        self._next = 0
        self._waiting: deque[Queued] = deque()
        self._in_flight: dict[int, bytes] = {}
        self._kept: deque[Queued] = deque()
        self._queued_bytes = self._kept_bytes = 0
        self._dropped = 0

    @property
    def last(self) -> int | None:
        """The last number used."""
        return self._next - 1 if self._next else None

    @property
    def dropped(self) -> int:
        """Batches that found no room, or that the broker refused for good; each has used up its number."""
        return self._dropped

    @property
    def waiting(self) -> int:
        """How many wait to be sent."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many are sent and not acknowledged."""
        return len(self._in_flight)

    @property
    def is_settled(self) -> bool:
        """Whether every batch so far is with the broker or dropped."""
        return not self._waiting and not self._in_flight

    @property
    def settled(self) -> int | None:
        """The highest number up to which every batch is with the broker or dropped; None before the first."""
        with self._lock:
            if self._in_flight:
                first = next(iter(self._in_flight))  # they are sent in order
            else:
                first = self._waiting[0].sequence if self._waiting else self._next
            return first - 1 if first else None

    def put(self, payload: bytes) -> tuple[int, bool]:
        """Takes a batch; without room it is dropped.

        Returns:
            Its number, and whether whoever sends may be asleep.
        """
        with self._lock:
            sequence = self._next
            self._next += 1
            queued = len(self._waiting) + len(self._in_flight)
            if queued >= self._max_batches or (queued and self._queued_bytes + len(payload) > self._max_bytes):
                self._dropped += 1
                return sequence, False
            self._waiting.append(Queued(sequence, payload))
            self._queued_bytes += len(payload)
            return sequence, len(self._waiting) == 1

    def take(self) -> Queued | None:
        """The next batch to send; None if none waits."""
        with self._lock:
            if not self._waiting:
                return None
            batch = self._waiting.popleft()
            self._in_flight[batch.sequence] = batch.payload
            return batch

    def acknowledge(self, sequence: int) -> int | None:
        """The broker has a batch; its size in bytes, None if that was known."""
        with self._lock:
            payload = self._in_flight.pop(sequence, None)
            if payload is None:
                return None
            self._queued_bytes -= len(payload)
            self._keep(Queued(sequence, payload))
            return len(payload)

    def refuse(self, sequence: int) -> None:
        """The broker will never take a batch."""
        with self._lock:
            payload = self._in_flight.pop(sequence, None)
            if payload is not None:
                self._queued_bytes -= len(payload)
                self._dropped += 1

    def rewind(self, last: int | None, failed: Collection[int] = ()) -> int:
        """The broker's last batch of ours is `last` (None: it has none): everything kept above it is sent again.

        Args:
            last: its number.
            failed: batches that the broker did not take; those below `last` are lost, for order is never broken.

        Returns:
            How many of them had been sent before.
        """
        with self._lock:
            lost = [sequence for sequence in failed if last is not None and sequence <= last]
            for sequence in lost:
                self._dropped += self._in_flight.pop(sequence, None) is not None
            sent = sorted([*self._kept, *(Queued(*item) for item in self._in_flight.items())])
            again = [batch for batch in sent if last is None or batch.sequence > last]
            done = sent[: len(sent) - len(again)]
            self._waiting.extendleft(reversed(again))
            self._in_flight.clear()
            self._kept.clear()
            self._kept_bytes = 0
            self._queued_bytes = sum(len(batch.payload) for batch in self._waiting)
            for batch in done:
                self._keep(batch)
            return len(again)

    def _keep(self, batch: Queued) -> None:
        self._kept.append(batch)
        self._kept_bytes += len(batch.payload)
        while self._kept and (len(self._kept) > self._keep_batches or self._kept_bytes > self._keep_bytes):
            self._kept_bytes -= len(self._kept.popleft().payload)
