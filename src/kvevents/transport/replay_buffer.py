"""The last batches of a publisher, to be repeated."""

from collections.abc import Iterator


class ReplayBuffer:
    """Batches by number, the oldest overwritten by the newest.

    One thread at a time appends; any thread reads meanwhile, without a lock: a batch that is overwritten under a reader
    is passed over, like one that has left the buffer before.

    Args:
        steps: how many batches are kept.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._slots: list[tuple[int, bytes]] = []
        self._next = 0

    @property
    def next(self) -> int:
        """The number of the batch that is appended next."""
        return self._next

    def append(self, payload: bytes) -> int:
        """Keeps a batch under the next number, and returns that."""
        sequence = self._next
        if len(self._slots) < self._steps:
            self._slots.append((sequence, payload))
        elif self._steps:
            self._slots[sequence % self._steps] = sequence, payload
        self._next = sequence + 1
        return sequence

    def get(self, sequence: int) -> bytes | None:
        """The batch of that number; None if it is not here."""
        if not 0 <= sequence < self._next or not self._steps:
            return None
        number, payload = self._slots[sequence % self._steps]
        return payload if number == sequence else None

    def since(self, start: int) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of every batch from `start` on that was there when the first is asked for."""
        end = self._next
        for sequence in range(max(start, end - self._steps, 0), end):
            payload = self.get(sequence)
            if payload is not None:
                yield sequence, payload
