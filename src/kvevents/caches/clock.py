"""Time as the eviction policies see it: a counter that reads the same in every run."""

import itertools
from typing import Protocol

from kvevents.caches.node import Node

MATCH_STEP = 1e-5
"""What an ancestor is older than the node below it, after a match that ended there."""


class Clock(Protocol):
    """Stamps nodes as a tree is walked and changed."""

    def begin(self) -> None:
        """A match or an insert begins."""

    def match(self, node: Node, /) -> None:
        """A match has come to `node`."""

    def insert(self, node: Node, /) -> None:
        """An insert has come to `node`."""

    def matched(self, node: Node, /) -> None:
        """A match has ended at `node`, or at the root."""

    def create(self, node: Node, /) -> None:
        """`node` is new."""

    def split(self, upper: Node, lower: Node, /) -> None:
        """`lower` has given its first pages to `upper`, which is new."""


class WalkClock:
    """One reading a walk, for its whole path; two for a new node: its access, then its creation.

    The upper part of a split counts as new. This is the clock of SGLang's `RadixCache`.
    """

    def __init__(self) -> None:
        self._read = itertools.count().__next__
        self._walk = 0

    def begin(self) -> None:
        self._walk = self._read()

    def match(self, node: Node, /) -> None:
        node.last_access = self._walk

    insert = match

    def matched(self, node: Node, /) -> None:
        """Nothing more to stamp."""

    def create(self, node: Node, /) -> None:
        node.last_access = self._read()
        node.created = self._read()

    def split(self, upper: Node, lower: Node, /) -> None:  # noqa: ARG002 - other clocks also stamp the lower part
        self.create(upper)


class StepClock:
    """One reading a node: an insert makes deeper nodes newer, a match counts where it ends.

    Of a split the upper part keeps the time of creation, and the lower part counts as accessed. This is the clock of
    SGLang's unified tree.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def begin(self) -> None:
        """Nothing to stamp yet."""

    def match(self, node: Node, /) -> None:
        """Where the match ends is not known yet."""

    def insert(self, node: Node, /) -> None:
        node.last_access = self._read()

    def matched(self, node: Node, /) -> None:
        reading = self._read()
        at: Node | None = node
        while at is not None:
            at.last_access = reading
            reading -= MATCH_STEP
            at = at.parent

    def create(self, node: Node, /) -> None:
        node.last_access = self._read()
        node.created = self._read()

    def split(self, upper: Node, lower: Node, /) -> None:
        upper.last_access = self._read()
        upper.created = lower.created
        lower.last_access = self._read()

    def _read(self) -> float:
        self._now += 1.0
        return self._now
