"""The queue of evictable leaves."""

import heapq
from typing import TypeAlias

from kvevents.caches.eviction import EvictionPolicy, Order
from kvevents.caches.node import Node

Entry: TypeAlias = tuple[Order, int, Node]

SLACK = 64
"""Stale entries that are never worth a clean-up."""


class VictimQueue:
    """Evictable leaves in the order of a policy: leaves of the tree that nobody has locked.

    A heap that is put right late. A node has at most one valid entry, which stands at the node's place or before it:

    - a node that came to stand later keeps its entry, and is put back when the entry comes up;
    - a node that came to stand earlier gets a new entry, the old one is stale;
    - a node that gained a child or a lock is left out when its entry comes up, and offered again when it lost them.

    So an eviction costs the nodes it takes and the entries that changed, never the tree.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[Entry] = []
        self._valid = 0
        self._pushed = 0

    def offer(self, node: Node) -> None:
        """Note that a node may have become an evictable leaf, or that its place may have changed."""
        if node.children or node.locks or node.parent is None:
            return
        order = self._policy(node)
        entry = node.queued
        if entry is None:
            self._valid += 1
        elif order >= entry[0]:
            return
        self._push(order, node)

    def pop(self) -> Node | None:
        """Take out the next victim; None where there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            order, _, node = entry
            if node.queued is not entry:
                continue
            node.queued = None
            self._valid -= 1
            if node.children or node.locks:
                continue
            now = self._policy(node)
            if now <= order:
                return node
            self._valid += 1
            self._push(now, node)
        return None

    def clear(self) -> None:
        """Forget every node."""
        self._heap.clear()
        self._valid = 0

    def check(self, node: Node) -> None:
        """Raise AssertionError unless an evictable leaf is queued where it stands or before."""
        assert node.queued is not None, f"{node} can be evicted but is not queued"
        assert node.queued[0] <= self._policy(node), f"{node} is queued too late"

    def _push(self, order: Order, node: Node) -> None:
        entry = (order, self._pushed, node)
        self._pushed += 1
        node.queued = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * self._valid + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].queued is entry]
            heapq.heapify(self._heap)
