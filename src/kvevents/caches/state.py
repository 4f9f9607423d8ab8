"""State-space layers (Mamba): the state after a prompt's last token."""

from array import array
from collections.abc import Sequence

from kvevents.caches.announcer import Announcer
from kvevents.caches.component import Component, Gate, Has, Insertion
from kvevents.caches.eviction import Order
from kvevents.caches.node import Node, Part
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.tree import Tree


class StateComponent(Component):
    """Checkpoints of a state, each at a node's end. A prompt can be continued only from one.

    Any node can lose its state, the least recently used first; a use is a match or an insert that ended there.

    Args:
        allocator: a slot is a state.
        announcer: says what changes.
        index: which of a node's parts this is.
    """

    group = "mamba"
    noun = "states"

    def __init__(self, allocator: SlotAllocator, announcer: Announcer, *, index: int) -> None:
        super().__init__(allocator, announcer)
        self._index = index
        self._uses = 0

    def part(self, node: Node) -> Part:
        return node.parts[self._index]

    def order(self, node: Node) -> Order:
        return (node.parts[self._index].used,)

    def gate(self, has: Has) -> Gate:
        return has

    def span(self, node: Node) -> list[Node]:
        return [] if node.is_root else [node]

    def returned(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.used(node)

    def needed(self, node: Node) -> "Sequence[array[int]]":
        slots = node.parts[self._index].slots if node.parts else None
        return [] if slots is None else [slots]

    def used(self, node: Node) -> None:
        if node.parts and node.parts[self._index].slots is not None:
            self._uses += 1
            node.parts[self._index].used = self._uses
            self._victims.offer(node)

    def lock(self, node: Node, *, whole: bool = False) -> None:  # noqa: ARG002 - what is needed is here alone
        self._keep(node.parts[self._index])

    def unlock(self, node: Node) -> None:
        self._let_go(node.parts[self._index])
        self._victims.offer(node)

    def split(self, upper: Node, lower: Node) -> None:
        """The state is that of the lower part's end."""

    def missing(self, insertion: Insertion) -> Sequence[range]:
        end = insertion.length
        if insertion.prefix == end and insertion.path[-1].parts[self._index].slots is not None:
            return ()
        return (range(end - 1, end),)

    def fill(self, insertion: Insertion, slots: "array[int]", tree: Tree) -> None:  # noqa: ARG002 - nothing to split
        if slots:
            self.hold(insertion.path[-1], slots, insertion.session_id)
