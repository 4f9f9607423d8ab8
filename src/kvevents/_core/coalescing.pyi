"""`kvevents._core.coalescing`: see `kvevents.coalescing`."""

from typing import Literal, TypeAlias, final

from _typeshed import ReadableBuffer

from kvevents.events import SkippedEvent

__all__ = ["Coalescer", "CoalescerStats"]

# Public as kvevents.wire.Dialect; stubs import no higher layer.
_Dialect: TypeAlias = Literal["sglang", "sglang-array", "vllm", "vllm-array"]

@final
class Coalescer:
    """Merges the events of a window of batches: for whoever passes events on.

    Batches of one source and rank go in, one batch with the events of all of them comes out, which leaves every
    consumer with the same blocks in the same tiers and groups. Events keep every field, hashes their form. Thread-safe.

    Args:
        coalesce: how far events are merged, as in `EventRecorder`.
        dialect: how events are written. Maps carry what their dialect does not declare, arrays have no place for it.
        from_start: consumers hold nothing yet. If not, the level `compact` does what `chain` does up to the first
            clear, since it cannot know what consumers hold.
        max_event_blocks: how many blocks a merged event may have.
        max_event_bytes: how many bytes a merged event may have on the wire. A single event that is larger stays whole.

    Raises:
        ConfigError: a setting is not one of its choices.
    """

    def __new__(
        cls,
        coalesce: Literal["off", "adjacent", "chain", "compact"] = "chain",
        *,
        dialect: _Dialect = "sglang",
        from_start: bool = False,
        max_event_blocks: int = 16_384,
        max_event_bytes: int = 1_048_576,
    ) -> Coalescer: ...
    def add(self, data: ReadableBuffer, /) -> list[SkippedEvent]:
        """Add a batch to the window, in whatever dialect.

        Returns:
            The events that could not be read. They go on as they came, in their place, and nothing moves past them.
            After one that is of a known type, `compact` does what `chain` does up to the next clear.

        Raises:
            WireError: it is no batch.
            ValueError: its rank is another than that of the batches before, or one of its events says what the
                dialect has no place for. In every case nothing was added.
        """

    def take_batch(self, *, ts: float | None = None) -> bytes | None:
        """Take what waits as one batch of the rank that the batches have; None if there is nothing.

        Args:
            ts: the batch's time in unix seconds; that of the last batch added, if None.
        """

    @property
    def pending(self) -> int:
        """Events that wait."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the batch that waits, within a few an event."""

    def stats(self) -> CoalescerStats:
        """What came and what goes on, taken or not."""

@final
class CoalescerStats:
    """Totals of a `Coalescer` since it was made.

    Attributes:
        batches: batches that were added.
        events: their events.
        unread_events: those among them that could not be read and go on as they came.
        unread_fields: values that do not go on: elements of arrays after the last field that is known.
        coalesced_events: events after merging.
        cancelled_blocks: announcements of a block that were left out of what was taken because they undo each other.
    """

    @property
    def batches(self) -> int: ...
    @property
    def events(self) -> int: ...
    @property
    def unread_events(self) -> int: ...
    @property
    def unread_fields(self) -> int: ...
    @property
    def coalesced_events(self) -> int: ...
    @property
    def cancelled_blocks(self) -> int: ...
