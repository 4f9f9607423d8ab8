"""Sequence numbers against what they promise: one more each time, and each once."""

import enum
import hashlib
from collections import OrderedDict

_REMEMBERED = 1024
"""Batches whose bytes are remembered, to tell a repeated one from another of the same number; as in `Subscriber`."""


class Turn(enum.Enum):
    """What a number is to those before it."""

    FIRST = enum.auto()
    NEXT = enum.auto()
    GAP = enum.auto()
    AGAIN = enum.auto()
    ANEW = enum.auto()


class Numbers:
    """The numbers of one stream.

    Attributes:
        last: the highest of this incarnation; None before the first.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self._digests: OrderedDict[int, bytes] = OrderedDict()

    def take(self, number: int, payload: bytes) -> tuple[Turn, int]:
        """What the next number is, and how many are missing before it."""
        digest = hashlib.blake2b(payload, digest_size=8).digest()
        turn, missing = self._judge(number, digest)
        if turn is Turn.AGAIN:
            return turn, 0
        if turn is Turn.ANEW:
            self._digests.clear()
        self.last = number
        self._digests[number] = digest
        if len(self._digests) > _REMEMBERED:
            self._digests.popitem(last=False)
        return turn, missing

    def begin(self) -> None:
        """The next number is the first."""
        self.last = None
        self._digests.clear()

    def _judge(self, number: int, digest: bytes) -> tuple[Turn, int]:
        if self.last is None:
            return Turn.FIRST, 0
        if number == self.last + 1:
            return Turn.NEXT, 0
        if number > self.last:
            return Turn.GAP, number - self.last - 1
        known = self._digests.get(number)
        oldest = next(iter(self._digests))
        if known == digest or (known is None and number >= oldest):
            return Turn.AGAIN, 0
        return Turn.ANEW, 0
