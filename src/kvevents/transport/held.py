"""What the sequencing remembers: recent batches by their bytes, and batches that have to wait."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from kvevents.transport.snapshot import digest_of


class RecentBatches:
    """Digests of the last `size` batches by sequence number, and of number 0 as long as it counts.

    Besides of one that was never seen, of which a snapshot has told the digest. The others are Python's keyed SipHash,
    different in every process: they are compared, never kept or sent.
    """

    def __init__(self, size: int) -> None:
        self._digests: deque[tuple[int, int]] = deque(maxlen=size)  # ascending: each batch is above the last
        self._first: int | None = None
        self._pledged: tuple[int, bytes] | None = None

    def add(self, sequence: int, payload: bytes) -> None:
        """Remembers a batch; the oldest is forgotten when there are too many."""
        digest = hash(payload)
        if sequence == 0:
            self._first = digest
        self._digests.append((sequence, digest))

    def extend(self, batches: Sequence[tuple[int, bytes]]) -> None:
        """Remembers batches, (sequence, payload)."""
        if batches[0][0] == 0:
            self._first = hash(batches[0][1])
        self._digests.extend([(sequence, hash(payload)) for sequence, payload in batches])

    def same(self, sequence: int, payload: bytes) -> bool | None:
        """Whether `sequence` had these bytes; None if that is not known."""
        known = self._first if sequence == 0 else self._find(sequence)
        if known is None and self._pledged is not None and self._pledged[0] == sequence:
            return self._pledged[1] == digest_of(payload)
        return None if known is None else known == hash(payload)

    def pledge(self, sequence: int, digest: bytes) -> None:
        """`sequence` has bytes of this digest (`digest_of`)."""
        self._pledged = sequence, digest

    def covers(self, sequence: int) -> bool:
        """Whether `sequence` lies in the range that is remembered (it may have been skipped there)."""
        return bool(self._digests) and sequence >= self._digests[0][0]

    def clear(self) -> None:
        """Forgets everything."""
        self._digests.clear()
        self._first = self._pledged = None

    def _find(self, sequence: int) -> int | None:
        place = bisect_left(self._digests, (sequence,))
        if place == len(self._digests) or self._digests[place][0] != sequence:
            return None
        return self._digests[place][1]


class HeldBatches:
    """Batches that wait for earlier ones, bounded by number and bytes; one is kept at any rate.

    Attributes:
        cut: the lowest number that there was no room for; from it on nothing is kept before `reopen`, so
            that what is kept has no holes of its own making.
    """

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self.cut: int | None = None
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._payloads: dict[int, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._payloads

    def __iter__(self) -> Iterator[int]:
        """Sequence numbers, ascending; the collection may change meanwhile."""
        return iter(sorted(self._payloads))

    def __getitem__(self, sequence: int) -> bytes:
        return self._payloads[sequence]

    @property
    def lowest(self) -> int | None:
        """The lowest number that is held."""
        return min(self._payloads, default=None)

    @property
    def highest(self) -> int | None:
        """The highest number that is held."""
        return max(self._payloads, default=None)

    def add(self, sequence: int, payload: bytes) -> int:
        """Keeps a batch in place of an earlier one with its number; the highest make room for it.

        Returns:
            How many there was no room for; the new one may be among them.
        """
        self.pop(sequence)
        if self.cut is not None and sequence >= self.cut:
            return 1
        self._payloads[sequence] = payload
        self._bytes += len(payload)
        let_go = 0
        if len(self._payloads) > self._max_batches or self._bytes > self._max_bytes:
            ascending = sorted(self._payloads)
            # Some more than needed, so that the next one does not sort again.
            room, room_bytes = self._max_batches * 7 // 8, self._max_bytes * 7 // 8
            while len(ascending) > 1 and (len(ascending) > room or self._bytes > room_bytes):
                self.cut = ascending.pop()
                self.pop(self.cut)
                let_go += 1
        return let_go

    def reopen(self) -> None:
        """Takes any number again."""
        self.cut = None

    def pop(self, sequence: int) -> bytes | None:
        """Takes a batch out; None if it is not held."""
        payload = self._payloads.pop(sequence, None)
        self._bytes -= len(payload or b"")
        return payload

    def clear(self) -> None:
        """Lets go of everything, and takes any number again."""
        self.cut = None
        self._payloads.clear()
        self._bytes = 0
