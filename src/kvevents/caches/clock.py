"""Time as the eviction policies see it: a counter that reads the same in every run."""

from typing import Protocol

from kvevents.caches.node import Node


class Clock(Protocol):
    """Stamps nodes as a tree is walked and changed."""

    def begin(self) -> None:
        """A match or an insert begins."""

    def visit(self, node: Node, /) -> None:
        """The walk has come to `node`."""

    def create(self, node: Node, /) -> None:
        """`node` is new."""

    def split(self, upper: Node, lower: Node, /) -> None:
        """`lower`, which was visited, has given its first pages to `upper`, which is new."""


class WalkClock:
    """One reading a walk, for its whole path; two for a new node: its access, then its creation.

    The upper part of a split counts as new. This is the clock of SGLang's `RadixCache`.
    """

    def __init__(self) -> None:
        self._next = 0
        self._walk = 0

    def begin(self) -> None:
        self._walk = self._read()

    def visit(self, node: Node, /) -> None:
        node.last_access = self._walk

    def create(self, node: Node, /) -> None:
        node.last_access = self._read()
        node.created = self._read()

    def split(self, upper: Node, lower: Node, /) -> None:  # noqa: ARG002 - other clocks also stamp the lower part
        self.create(upper)

    def _read(self) -> int:
        reading = self._next
        self._next += 1
        return reading
