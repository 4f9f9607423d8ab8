"""What a stream can repeat: recent batches as they were sent, and in a compacted log what is left of those before."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from kvevents._core.relay import CompactedLog
from kvevents.transport.relay.settings import RelaySettings
from kvevents.wire import Dialect

_CHUNK_BYTES = 1 << 20
_MOST_CHUNK_BYTES = 8 << 20
_MOST_BATCHES = 65_536
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
        recent_bytes: payloads of the recent batches.
    """

    def __init__(self, settings: RelaySettings) -> None:
        self.compacted_to = -1
        self.recent_bytes = 0
        self._settings = settings
        self._recent: deque[Sent] = deque()
        self._logs: dict[int | None, CompactedLog] = {}

    @property
    def recent_batches(self) -> int:
        """Batches that are kept as they were sent."""
        return len(self._recent)

    @property
    def compacted_bytes(self) -> int:
        """Bytes of the compacted log, within a few an event."""
        return sum(log.size_bytes for log in self._logs.values())

    def append(self, sent: Sent) -> None:
        """Adds a batch that is about to be sent."""
        self._recent.append(sent)
        self.recent_bytes += len(sent.payload)

    def age(self, now: float) -> int:
        """Moves batches that are no longer recent into the compacted log; the bytes of those."""
        settings, moved = self._settings, 0
        while len(self._recent) > 1:
            oldest = self._recent[0]
            is_old = len(self._recent) > settings.replay_batches and now - oldest.at > settings.replay_s
            if not (is_old or self.recent_bytes > settings.replay_bytes or len(self._recent) > _MOST_BATCHES):
                break
            moved += self._compact_oldest()
        return moved

    def compact_all(self) -> None:
        """Moves all batches into the compacted log."""
        while self._recent:
            self._compact_oldest()

    def skip_to(self, sequence: int) -> None:
        """All numbers below `sequence` count as compacted."""
        self.compact_all()
        self.compacted_to = sequence - 1

    def since(self, start: int, dialect: Dialect) -> list[tuple[int, bytes]]:
        """The batches from number `start` on; `dialect`: how the compacted ones are written."""
        batches: list[tuple[int, bytes]] = []
        if start <= self.compacted_to:
            batches += self._compacted(start, dialect)
        return batches + [(sent.sequence, sent.payload) for sent in self._recent if sent.sequence >= start]

    def logs(self) -> dict[int | None, CompactedLog]:
        """A compacted log a rank, of everything, the recent batches too."""
        logs = {rank: log.copy() for rank, log in self._logs.items()}
        for sent in self._recent:
            logs.setdefault(sent.rank, CompactedLog()).add(sent.payload)
        return logs

    def _compacted(self, start: int, dialect: Dialect) -> Iterator[tuple[int, bytes]]:
        # Whoever asks from just below the recent batches leaves few numbers for the compacted ones: more are made room
        # for by compacting more.
        room = self.compacted_to + 1 - start
        wanted = len(self._logs) + self.compacted_bytes // _MOST_CHUNK_BYTES
        while room < wanted and len(self._recent) > 1:
            self._compact_oldest()
            room = self.compacted_to + 1 - start
        for log in self._logs.values():
            log.compact()
        size = _CHUNK_BYTES
        while True:
            batches = [batch for log in self._logs.values() for batch in log.batches(dialect=dialect, max_bytes=size)]
            if len(batches) <= room or len(batches) <= len(self._logs):
                break
            size *= 2
        first = self.compacted_to + 1 - len(batches)
        return ((first + number, batch) for number, batch in enumerate(batches) if first + number >= start)

    def _compact_oldest(self) -> int:
        sent = self._recent.popleft()
        self.recent_bytes -= len(sent.payload)
        self.compacted_to = sent.sequence
        self._logs.setdefault(sent.rank, CompactedLog()).add(sent.payload)
        return len(sent.payload)
