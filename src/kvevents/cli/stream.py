"""A live stream of events, handed from the thread that receives to the thread that prints."""

import contextlib
import queue
import time
from typing import TypeAlias

import msgspec

from kvevents.errors import WireError
from kvevents.events import KVEventBatch
from kvevents.transport import SourceState
from kvevents.wire import decode_batch

QUEUE_BATCHES = 10_000
"""Items that wait to be printed; when there are as many, the receiver waits, and behind it the transport."""

WAIT_S = 0.5


class Origin(msgspec.Struct, frozen=True):
    """Where something came from, and when.

    Attributes:
        received: unix seconds.
        worker: the source's id.
        dp_rank: the batch's own rank, else the source's; None when neither says.
        seq: the publisher's number of the batch; None when it has none.
    """

    received: float
    worker: str
    dp_rank: int | None
    seq: int | None = None


class Batch(msgspec.Struct, frozen=True):
    """A batch that was read."""

    origin: Origin
    batch: KVEventBatch


class Refused(msgspec.Struct, frozen=True):
    """A payload that is not a batch."""

    origin: Origin
    error: WireError
    size_bytes: int


class StateChange(msgspec.Struct, frozen=True):
    """A source is in another state."""

    origin: Origin
    state: str
    reason: str


class Cleared(msgspec.Struct, frozen=True):
    """The subscriber says that what was known of a source no longer holds."""

    origin: Origin


Item: TypeAlias = Batch | Refused | StateChange | Cleared


class EventStream:
    """The sink of a subscriber: a bounded queue of what came, in order."""

    def __init__(self) -> None:
        self._items: queue.Queue[Item] = queue.Queue(QUEUE_BATCHES)
        self._is_open = True

    def apply(self, worker: str, data: bytes, *, seq: int | None, dp_rank: int | None) -> KVEventBatch:
        """Take a batch.

        Returns:
            What was read, so that the subscriber sees what was skipped.

        Raises:
            WireError: it cannot be read; it is in the stream as refused, too.
        """
        received = time.time()
        try:
            batch = decode_batch(data, strict=False)
        except WireError as error:
            self._put(Refused(Origin(received, worker, dp_rank, seq), error, len(data)))
            raise
        rank = dp_rank if batch.attn_dp_rank is None else batch.attn_dp_rank
        self._put(Batch(Origin(received, worker, rank, seq), batch))
        return batch

    def clear_worker(self, worker: str, dp_rank: int | None = None) -> None:
        """Take note that a source starts anew."""
        self._put(Cleared(Origin(time.time(), worker, dp_rank)))

    def on_state(self, worker: str, dp_rank: int | None, state: SourceState) -> None:
        """Take note of a source's state."""
        self._put(StateChange(Origin(time.time(), worker, dp_rank), state.state, state.reason))

    def next(self) -> Item | None:
        """The next item; None when none came for half a second."""
        try:
            return self._items.get(timeout=WAIT_S)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let a receiver that waits for room go on: nobody prints any more."""
        self._is_open = False

    def _put(self, item: Item) -> None:
        while self._is_open:
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=WAIT_S)
                return
