"""What a stream can repeat: recent batches as they were sent, and in a compacted log what is left of those before."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kvevents._core.relay import CompactedLog
from kvevents.transport.relay.settings import RelaySettings
from kvevents.wire import Dialect

CHUNK_BYTES = 1 << 20
_MOST_CHUNK_BYTES = 8 << 20
MOST_BATCHES = 65_536
"""Recent batches at most, so that a replay fits the queue of the socket that sends it."""


class Sent(NamedTuple):
    """A batch that was published.

    Attributes:
        sequence: its number.
        payload: the batch.
        rank: what it names.
        at: unix seconds.
    """

    sequence: int
    payload: bytes
    rank: int | None
    at: float


class Backlog:
    """The batches of a stream from its beginning on, as far as they matter to somebody.

    The recent ones are kept as they were sent, within the bounds of the settings. Older ones go into a compacted log a
    rank: their events with tokens, without those that undo each other. In a replay from the beginning it comes first,
    as batches with the numbers right before the recent ones, so that numbers ascend and those that a consumer got live
    are the same; the numbers before are missing. Its first event clears the rank, so that the replay leaves everyone
    with the same blocks, whatever they held.

    One thread at a time.

    Args:
        settings: how much is recent.

    Attributes:
        compacted_to: the last number that is in the compacted log; -1: none.
        recent: the batches after it.
        recent_bytes: payloads of the recent batches.
        logs: the compacted log of each rank.
        moved_bytes: what went into them, since whoever watches this set it to 0.
        frozen: as long as it is above 0, the compacted logs get nothing more.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.compacted_to = -1
        self.recent: deque[Sent] = deque()
        self.recent_bytes = 0
        self.logs: dict[int | None, CompactedLog] = {}
        self.moved_bytes = 0
        self.frozen = 0
        self._settings = settings

    @property
    def compacted_bytes(self) -> int:
        """Bytes of the compacted logs, within a few an event."""
        return sum(log.size_bytes for log in self.logs.values())

    def restore(self, compacted: Iterable[tuple[int | None, bytes]], compacted_to: int, recent: Iterable[Sent]) -> None:
        """Fills an empty backlog."""
        self.compacted_to = compacted_to
        for rank, payload in compacted:
            self.logs.setdefault(rank, CompactedLog()).add(payload)
        for sent in recent:
            self.append(sent)

    def append(self, sent: Sent) -> None:
        """Adds a batch that is about to be sent."""
        self.recent.append(sent)
        self.recent_bytes += len(sent.payload)

    def age(self, now: float) -> None:
        """Moves batches that are no longer recent into the compacted log."""
        settings = self._settings
        while len(self.recent) > 1 and not self.frozen:
            is_old = len(self.recent) > settings.replay_batches and now - self.recent[0].at > settings.replay_s
            if not (is_old or self.recent_bytes > settings.replay_bytes or len(self.recent) > MOST_BATCHES):
                break
            self._compact_oldest()

    def skip_to(self, sequence: int) -> None:
        """All numbers below `sequence` count as compacted."""
        while self.recent:
            self._compact_oldest()
        self.compacted_to = sequence - 1

    def make_room(self, start: int) -> int:
        """How many numbers from `start` on the compacted logs can have in a replay.

        Whoever asks from just below the recent batches leaves few: room is made by compacting more.
        """
        wanted = len(self.logs) + self.compacted_bytes // _MOST_CHUNK_BYTES
        while self.compacted_to + 1 - start < wanted and len(self.recent) > 1 and not self.frozen:
            self._compact_oldest()
        return self.compacted_to + 1 - start

    def _compact_oldest(self) -> None:
        sent = self.recent.popleft()
        self.recent_bytes -= len(sent.payload)
        self.moved_bytes += len(sent.payload)
        self.compacted_to = sent.sequence
        self.logs.setdefault(sent.rank, CompactedLog()).add(sent.payload)


def compacted_batches(
    logs: dict[int | None, CompactedLog], dialect: Dialect, *, room: int | None = None
) -> list[tuple[int | None, bytes]]:
    """Rank and bytes of the batches that are left of compacted logs, in at most `room` batches if that can be.

    A batch has a limit of events besides: once a batch may be larger than all are together, there are no fewer.
    """
    for log in logs.values():
        log.compact()
    size = CHUNK_BYTES
    while True:
        batches = [
            (rank, batch) for rank, log in logs.items() for batch in log.batches(dialect=dialect, max_bytes=size)
        ]
        is_few = room is None or len(batches) <= max(room, len(logs))
        if is_few or size > sum(len(batch) for _, batch in batches):
            return batches
        size *= 2
