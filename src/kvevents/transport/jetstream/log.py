"""How far a log has been read, and whether it is still the log that was read."""

from collections import deque
from collections.abc import Iterable

from kvevents.transport.jetstream.connection import Connection
from kvevents.transport.jetstream.names import MessageId
from kvevents.transport.jetstream.store import StreamFacts, read_message_id

_RECENT = 1_024


class LogPlace:
    """A place in a stream, with the last messages before it, by which it is found again.

    A broker that was killed may come back without its last messages, and give their positions to others.

    Attributes:
        stream: when the stream was made; another one has another. None before the first.
        position: the last message read; 0 before the first.
    """

    def __init__(self) -> None:
        self.stream: str | None = None
        self.position = 0
        self._recent: deque[tuple[int, str]] = deque(maxlen=_RECENT)

    def note(self, position: int, message_id: MessageId | None) -> None:
        """A message was read."""
        self.position = position
        if message_id is not None:
            self._recent.append((position, str(message_id)))

    def set(self, stream: str, position: int, recent: Iterable[tuple[int, str]]) -> None:
        """Goes to another place."""
        self.stream, self.position = stream, position
        self._recent = deque(recent, maxlen=_RECENT)

    def recent(self, count: int) -> list[tuple[int, str]]:
        """The last messages read."""
        return list(self._recent)[-count:]

    async def find(self, connection: Connection, stream: str, facts: StreamFacts) -> int | None:
        """The last position read that the stream still has as it was read; None: it is another stream, or not known.

        Raises:
            TransportError: no answer.
        """
        if facts.created != self.stream:
            return None
        if self.position < facts.first:
            return self.position  # what was read has left the stream by its limits
        recent = list(self._recent)
        low, high = 0, len(recent)
        while low < high:  # what the broker has kept are the earlier ones
            middle = (low + high) // 2
            position, known = recent[middle]
            if position < facts.first or await self._has(connection, stream, facts, position, known):
                low = middle + 1
            else:
                high = middle
        if low == len(recent):
            return self.position
        return recent[low - 1][0] if low else None

    async def _has(self, connection: Connection, stream: str, facts: StreamFacts, position: int, known: str) -> bool:
        if position > facts.last:
            return False
        return str(await read_message_id(connection, stream, {"seq": position})) == known
