"""The queue of what can be evicted."""

import heapq
from collections.abc import Callable
from typing import TypeAlias

from kvevents.caches.eviction import Order
from kvevents.caches.node import Node

Entry: TypeAlias = tuple[Order, int, Node]

SLACK = 64
"""Stale entries that are never worth a clean-up."""


class VictimQueue:
    """Nodes that have something to lose, in the order in which they lose it.

    A heap that is put right late. A node has at most one valid entry, which stands at the node's place or before it:

    - a node that came to stand later keeps its entry, and is put back when the entry comes up;
    - a node that came to stand earlier gets a new entry, the old one is stale;
    - a node that is no candidate any more (it gained a child, or a lock) is left out when its entry comes up, and is
      offered again when it is one.

    So an eviction costs the nodes it takes and the entries that changed, never the tree.

    Args:
        order: where a node stands.
        takes: whether it is a candidate.
    """

    def __init__(self, order: Callable[[Node], Order], takes: Callable[[Node], bool]) -> None:
        self._order = order
        self._takes = takes
        self._heap: list[Entry] = []
        self._entries: dict[Node, Entry] = {}
        self._pushed = 0

    def offer(self, node: Node) -> None:
        """Note that a node may have become a candidate, or that its place may have changed."""
        if not self._takes(node):
            return
        order = self._order(node)
        entry = self._entries.get(node)
        if entry is None or order < entry[0]:
            self._push(order, node)

    def pop(self) -> Node | None:
        """Take out the next victim; None where there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            order, _, node = entry
            if self._entries.get(node) is not entry:
                continue
            del self._entries[node]
            if not self._takes(node):
                continue
            now = self._order(node)
            if now <= order:
                return node
            self._push(now, node)
        return None

    def discard(self, node: Node) -> None:
        """Forget a node that has nothing to lose any more."""
        if self._entries.pop(node, None) is not None and len(self._heap) > 2 * len(self._entries) + SLACK:
            self._clean()

    def clear(self) -> None:
        """Forget every node."""
        self._heap.clear()
        self._entries.clear()

    def check(self, node: Node) -> None:
        """Raise AssertionError unless a candidate is queued where it stands or before."""
        entry = self._entries.get(node)
        assert entry is not None, f"{node} can be evicted but is not queued"
        assert entry[0] <= self._order(node), f"{node} is queued too late"

    def _push(self, order: Order, node: Node) -> None:
        entry = (order, self._pushed, node)
        self._pushed += 1
        self._entries[node] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + SLACK:
            self._clean()

    def _clean(self) -> None:
        self._heap = list(self._entries.values())
        heapq.heapify(self._heap)
