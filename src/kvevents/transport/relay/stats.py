"""What a relay did."""

import msgspec


class StreamStats(msgspec.Struct):
    """Counts of one stream: one source, and what is published of it.

    Attributes:
        received: batches of the source.
        received_bytes: their payloads.
        received_events: their events.
        sent: batches published.
        sent_bytes: their payloads.
        sent_events: their events.
        unread_events: events that could not be read; they went on as they came.
        unread_fields: values for which there was no place; they did not go on.
        cancelled_blocks: announcements left out because they undo each other.
        refused: batches that were broken; what they said is unknown.
        clears: times that consumers were told to drop everything: the source began anew, or something was lost.
        gaps: clears because batches of the source were lost for good.
        missing: batches of the source that were.
        revived_blocks: blocks from before a loss, announced again because the source's later events name them.
        holes: numbers left out, so that consumers see that the picture may be incomplete.
        replays: requests for a replay.
        replayed: batches repeated.
        compacted_replays: those of the requests that went back beyond the recent batches.
        malformed_requests: messages at the replay socket that are no request.
        waits: times that the source had to wait because too much was unsent.
        log_errors: batches that could not be written to the log; they were sent all the same.
    """

    received: int = 0
    received_bytes: int = 0
    received_events: int = 0
    sent: int = 0
    sent_bytes: int = 0
    sent_events: int = 0
    unread_events: int = 0
    unread_fields: int = 0
    cancelled_blocks: int = 0
    refused: int = 0
    clears: int = 0
    gaps: int = 0
    missing: int = 0
    revived_blocks: int = 0
    holes: int = 0
    replays: int = 0
    replayed: int = 0
    compacted_replays: int = 0
    malformed_requests: int = 0
    waits: int = 0
    log_errors: int = 0


class StreamState(msgspec.Struct, frozen=True):
    """One stream at one moment.

    Attributes:
        worker_id: of the source.
        dp_rank: of the source; None: as its batches say.
        state: of the source, as a subscriber's.
        reason: why, for people.
        last_sequence: the last number published; None before the first.
        source_sequence: the last number of the source that was taken; None before the first.
        recent_batches: kept as they were sent.
        recent_bytes: their payloads.
        compacted_bytes: of the compacted log.
        stats: counts.
    """

    worker_id: str
    dp_rank: int | None
    state: str
    reason: str
    last_sequence: int | None
    source_sequence: int | None
    recent_batches: int
    recent_bytes: int
    compacted_bytes: int
    stats: StreamStats


class RelayStats(msgspec.Struct, frozen=True):
    """All streams of a relay at one moment.

    Attributes:
        streams: in the order of the sources.
        refused_consumers: handshakes of consumers whose key is not listed.
    """

    streams: list[StreamState]
    refused_consumers: int = 0

    def total(self) -> StreamStats:
        """The counts of all streams together."""
        total = StreamStats()
        for stream in self.streams:
            for name in StreamStats.__struct_fields__:
                setattr(total, name, getattr(total, name) + getattr(stream.stats, name))
        return total
