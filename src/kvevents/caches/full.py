"""Full attention: the KV of every token, which decides what is in the tree."""

from array import array
from collections.abc import Sequence

from kvevents.caches.announcer import Announcer
from kvevents.caches.component import Component, Gate, Has, Insertion
from kvevents.caches.eviction import EvictionPolicy, Order
from kvevents.caches.node import Holder, Node
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.tree import Tree


class FullComponent(Component):
    """The KV of full attention. A prompt needs all of its path, so only leaves can lose it.

    Args:
        allocator: the slots.
        announcer: says what changes.
        policy: which leaf goes first.
    """

    group = "full"
    noun = "slots"

    def __init__(self, allocator: SlotAllocator, announcer: Announcer, policy: EvictionPolicy) -> None:
        self._policy = policy
        super().__init__(allocator, announcer)

    def part(self, node: Node) -> Holder:
        return node

    def order(self, node: Node) -> Order:
        return self._policy(node)

    def can_lose(self, node: Node) -> bool:
        if node.slots is None or node.locks or node.parent is None:
            return False
        return not node.children or all(child.slots is None for child in node.children.values())

    def gate(self, has: Has) -> Gate:
        return has

    def span(self, node: Node) -> list[Node]:
        path = []
        at = node
        while at.parent is not None:
            path.append(at)
            at = at.parent
        return path[::-1]

    def returned(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._victims.offer(node)

    def needed(self, node: Node) -> "Sequence[array[int]]":
        found = []
        at = node
        while at.parent is not None:
            if at.slots is not None:
                found.append(at.slots)
            at = at.parent
        return found[::-1]

    def used(self, node: Node) -> None:
        at = node
        while at.slots is None and at.parent is not None:
            at = at.parent
        # The lowest node that has something to lose; none above it has.
        self._victims.offer(at)

    def lock(self, node: Node, *, whole: bool = False) -> None:  # noqa: ARG002 - what is needed is the whole path
        at = node
        while at.parent is not None:
            self._keep(at)
            at = at.parent

    def unlock(self, node: Node) -> None:
        at = node
        while at.parent is not None:
            self._let_go(at)
            at = at.parent
        self.used(node)

    def split(self, upper: Node, lower: Node) -> None:
        upper.locks = lower.locks
        if lower.slots is not None:
            upper.slots, lower.slots = lower.slots[: upper.length], lower.slots[upper.length :]

    def missing(self, insertion: Insertion) -> Sequence[range]:
        gaps = []
        for node in insertion.path:
            if node.slots is None:
                gaps.append(range(node.end - node.length, node.end))  # noqa: PERF401 - mostly there is none
        if insertion.prefix < insertion.length:
            gaps.append(range(insertion.prefix, insertion.length))
        return gaps

    def fill(self, insertion: Insertion, slots: "array[int]", tree: Tree) -> None:  # noqa: ARG002 - nothing to split
        last = insertion.path[-1]
        if last.slots is None and last.length == len(slots):
            self.hold(last, slots, insertion.session_id)
            return
        taken = 0
        for node in insertion.path:
            if node.slots is None:
                self.hold(node, slots[taken : taken + node.length], insertion.session_id)
                taken += node.length

    def check_integrity(self, nodes: Sequence[Node]) -> None:
        super().check_integrity(nodes)
        for node in nodes:
            locks = node.held + sum(child.locks for child in node.children.values())
            assert node.locks == locks, f"{node} is locked {locks} times, with those below it"
            assert node.slots is None or len(node.slots) == node.length, f"{node} has {len(node.slots)} slots"
