"""Copies that a lower tier has of what nodes have on the device."""

from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar

from kvevents.caches.announcer import Announcer
from kvevents.caches.component import Component
from kvevents.caches.eviction import Order
from kvevents.caches.node import Node, Part
from kvevents.caches.residence import NOTHING, Residence
from kvevents.caches.slots import SlotAllocator
from kvevents.caches.state import StateComponent
from kvevents.caches.window import WindowComponent


class Copies(Residence):
    """What nodes have of one component in a lower tier.

    A copy may be on its way: its slots are taken, but nobody is told of it before it has arrived.

    Args:
        component: the component on the device.
        allocator: the slots in the tier.
        announcer: says what changes.
        index: which of a node's parts this is.
        is_spare: whether a node can do without its copy here.
        removed: told of each copy that is announced as removed, before its node may leave the tree.
    """

    noun: ClassVar[str] = "slots in a lower tier"

    def __init__(
        self,
        component: Component,
        allocator: SlotAllocator,
        announcer: Announcer,
        *,
        index: int,
        is_spare: Callable[[Node], bool],
        removed: "Callable[[Copies, Node], None]",
    ) -> None:
        super().__init__(allocator, announcer)
        self.component = component
        self._index = index
        self._is_spare = is_spare
        self._removed = removed
        self._uses = 0
        self._coming: set[Node] = set()

    def part(self, node: Node) -> Part:
        return node.parts[self._index]

    def can_lose(self, node: Node) -> bool:
        return node not in self._coming and super().can_lose(node) and self._is_spare(node)

    def ids(self, node: Node) -> memoryview:
        return NOTHING if node in self._coming else super().ids(node)

    def expect(self, node: Node, slots: "array[int]") -> None:
        """A copy is on its way into adopted slots."""
        self._coming.add(node)
        self.hold(node, slots)

    def is_coming(self, node: Node) -> bool:
        """Whether a copy is on its way."""
        return node in self._coming

    def arrive(self, node: Node) -> None:
        """The copy that was expected is there."""
        self._coming.remove(node)
        self.announcer.stored(node)
        self.offer(node)

    def stamp(self, node: Node) -> None:
        """The tier above has lost what this is a copy of, or has asked for it: it counts as used."""
        if self.has(node):
            self._uses += 1
            self.part(node).used = self._uses
            self.offer(node)

    def split(self, upper: Node, lower: Node) -> None:
        """Divide the copy that `lower` had between it and the new node above it."""
        above, below = self.part(upper), self.part(lower)
        above.used, above.locks = below.used, below.locks
        if below.slots is not None:
            above.slots, below.slots = below.slots[: upper.length], below.slots[upper.length :]
            if lower in self._coming:
                self._coming.add(upper)
            self.offer(upper)
            self.offer(lower)

    def keep(self, node: Node) -> None:
        """Keep a copy while it is read."""
        self._keep(self.part(node))

    def let_go(self, node: Node) -> None:
        """Undo `keep`."""
        self._let_go(self.part(node))
        self.offer(node)

    def wanted(self, node: Node, above: Residence, is_busy: Callable[[Node], bool]) -> list[Node]:  # noqa: ARG002
        """The nodes, top first, of which a backup of `node` makes copies.

        They are what a prompt that ends there needs, the tier above has and this one has not. Of a node that is busy,
        a backup is under way.
        """
        return [node] if above.has(node) and not self.has(node) else []

    def reset(self, nodes: Sequence[Node]) -> None:
        super().reset(nodes)
        self._coming.clear()

    def _tell_stored(self, node: Node, session_id: str | None) -> None:
        if node not in self._coming:
            super()._tell_stored(node, session_id)

    def _tell_removed(self, node: Node) -> None:
        if node in self._coming:
            self._coming.remove(node)
        else:
            super()._tell_removed(node)
            self._removed(self, node)


class PageCopies(Copies):
    """Copies of full-attention KV. They go by the policy of the device."""

    def order(self, node: Node) -> Order:
        return self.component.order(node)

    def can_lose(self, node: Node) -> bool:
        return not node.locks and node.parent is not None and super().can_lose(node)


class WindowCopies(Copies):
    """Copies of window KV. Those that the tier above has lost go by when it lost them."""

    component: WindowComponent

    def order(self, node: Node) -> Order:
        return self.part(node).used, node.end

    def wanted(self, node: Node, above: Residence, is_busy: Callable[[Node], bool]) -> list[Node]:
        """Up to the first gap, or the first node of which a backup is under way."""
        found = []
        for at in reversed(self.component.span(node)):
            if is_busy(at) or not (above.has(at) or self.has(at)):
                break
            if not self.has(at):
                found.append(at)
        return found[::-1]


class StateCopies(Copies):
    """Copies of states. Those that the tier above has lost go by when it lost them."""

    component: StateComponent

    def order(self, node: Node) -> Order:
        return (self.part(node).used,)

    def split(self, upper: Node, lower: Node) -> None:
        """The state is that of the lower part's end."""
