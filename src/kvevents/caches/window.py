"""Sliding-window attention: the KV of the tokens that the next one still sees."""

from array import array
from collections.abc import Sequence

from kvevents.caches.announcer import Announcer
from kvevents.caches.component import Component, Gate, Has, Insertion
from kvevents.caches.eviction import Order
from kvevents.caches.node import Node, Part
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.tree import Tree


class WindowComponent(Component):
    """The KV of sliding-window layers. A prompt needs that of its last `size` units, or of all if it is shorter.

    Any node can lose it, and what a window no longer reaches is often lost first: a prompt ends where no gap lies
    within its window. The order of loss is that of use; a use is a match or an insert whose window reaches a node, and
    of one path deeper nodes count as newer.

    Args:
        allocator: the slots.
        announcer: says what changes.
        size: the window, in units before the next one.
        page_size: units in a page.
        index: which of a node's parts this is.
    """

    group = "sliding_window"
    noun = "window slots"

    def __init__(
        self, allocator: SlotAllocator, announcer: Announcer, *, size: int, page_size: int, index: int
    ) -> None:
        super().__init__(allocator, announcer)
        self.size = size
        self._page_size = page_size
        self._index = index
        self._uses = 0
        self._locked: dict[Node, list[int]] = {}

    def part(self, node: Node) -> Part:
        return node.parts[self._index]

    def order(self, node: Node) -> Order:
        return node.parts[self._index].used, node.end

    def gate(self, has: Has) -> Gate:
        size = self.size
        unbroken = size  # from the start of the prompt on there is no gap

        def reaches(node: Node) -> bool:
            nonlocal unbroken
            unbroken = unbroken + node.length if has(node) else 0
            return unbroken >= size

        return reaches

    def needed(self, node: Node) -> "Sequence[array[int]]":
        found: list[array[int]] = []
        wanted = -(-self.size // self._page_size) * self._page_size
        at = node
        while wanted > 0 and at.parent is not None and (slots := at.parts[self._index].slots) is not None:
            found.append(slots[-wanted:])
            wanted -= at.length
            at = at.parent
        return found[::-1]

    def span(self, node: Node) -> list[Node]:
        path = []
        reached = 0
        at = node
        while at.parent is not None and reached < self.size:
            path.append(at)
            reached += at.length
            at = at.parent
        return path[::-1]

    def returned(self, nodes: Sequence[Node]) -> None:
        self._uses += 1
        for node in nodes:
            self._use(node)

    def used(self, node: Node) -> None:
        self._uses += 1
        reached = 0
        at = node
        while at.parent is not None and reached < self.size + self._page_size:
            self._use(at)
            reached += at.length
            at = at.parent

    def lock(self, node: Node, *, whole: bool = False) -> None:
        span = node.end if whole else self.size
        locked = 0
        at = node
        while at.parent is not None and locked < span:
            self._keep(at.parts[self._index])
            locked += at.length
            at = at.parent
        self._locked.setdefault(node, []).append(locked)

    def unlock(self, node: Node) -> None:
        spans = self._locked[node]
        locked = spans.pop()
        if not spans:
            del self._locked[node]
        at = node
        while locked > 0:
            assert at.parent is not None, f"the lock of {node} began above its root"
            self._let_go(at.parts[self._index])
            self._victims.offer(at)
            locked -= at.length
            at = at.parent

    def split(self, upper: Node, lower: Node) -> None:
        above, below = upper.parts[self._index], lower.parts[self._index]
        above.locks, above.used = below.locks, below.used
        if below.slots is not None:
            above.slots, below.slots = below.slots[: upper.length], below.slots[upper.length :]
            self.offer(upper)

    def missing(self, insertion: Insertion) -> Sequence[range]:
        start = insertion.window_start
        gaps = [
            range(max(start, node.end - node.length), node.end)
            for node in insertion.path
            if node.end > start and node.parts[self._index].slots is None
        ]
        if insertion.length > max(insertion.prefix, start):
            gaps.append(range(max(start, insertion.prefix), insertion.length))
        return gaps

    def fill(self, insertion: Insertion, slots: "array[int]", tree: Tree) -> None:
        self._uses += 1
        taken = 0
        for node in insertion.path:
            if node.end <= insertion.window_start or node.parts[self._index].slots is not None:
                continue
            passed = insertion.window_start - (node.end - node.length)
            if passed > 0:
                tree.split(node, passed // self._page_size)
            self.hold(node, slots[taken : taken + node.length], insertion.session_id)
            taken += node.length
            self._use(node)
        if insertion.prefix < insertion.length:
            self._cap(insertion.path[-1], tree)

    def reset(self, nodes: Sequence[Node]) -> None:
        super().reset(nodes)
        self._locked.clear()

    def _use(self, node: Node) -> None:
        part = node.parts[self._index]
        if part.slots is not None:
            part.used = self._uses
            self._victims.offer(node)

    def _cap(self, leaf: Node, tree: Tree) -> None:
        """Split a new leaf so that a lock of it keeps no more than one window."""
        needed = -(-self.size // self._page_size)
        if leaf.parts[self._index].slots is not None and len(leaf.pages) > needed:
            tree.split(leaf, len(leaf.pages) - needed)
