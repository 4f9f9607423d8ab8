"""The tiers of a cache: who has what of a node, and what goes when one of them is short."""

from collections.abc import Callable, Sequence

from kvevents.caches.component import Component
from kvevents.caches.copies import Copies, PageCopies
from kvevents.caches.full import FullComponent
from kvevents.caches.node import Node
from kvevents.caches.residence import Residence
from kvevents.caches.tree import Tree
from kvevents.events import StorageMedium


class LowerTier:
    """Memory below the device.

    Args:
        medium: what it is called in events.
        copies: what nodes have in it, one for each component of the cache, in its order.
    """

    def __init__(self, medium: StorageMedium, full: PageCopies, beside: Sequence[Copies]) -> None:
        self.medium = medium
        self.full = full
        self.copies: list[Copies] = [full, *beside]

    def arrived(self, node: Node) -> bool:
        """Whether it has the full-attention KV of a node."""
        return self.full.has(node) and not self.full.is_coming(node)

    def drop(self, node: Node, first: int = 0) -> list[int]:
        """Take away what a node has here of the components from `first` on; how much that was, by component."""
        return [copies.drop(node) if index >= first else 0 for index, copies in enumerate(self.copies)]


class Tiers:
    """A tree whose nodes are on the device, in host memory, in a store below it, or in several of them.

    A node is in the tree while a tier has its full-attention KV. On the device the nodes of a path that are there come
    first. What is below a node is lost with its last copy.

    Args:
        tree: the nodes.
        components: what they have on the device, full attention first.
        keeps_duplicates: False: host copies of what the device has too go first when host memory is short.
    """

    def __init__(
        self, tree: Tree, full: FullComponent, components: Sequence[Component], *, keeps_duplicates: bool
    ) -> None:
        self._tree = tree
        self._full = full
        self._components = components
        self._keeps_duplicates = keeps_duplicates
        self._duplicates: dict[Node, None] = {}
        self.lower: list[LowerTier] = []

    @property
    def host(self) -> LowerTier:
        """The tier next to the device."""
        return self.lower[0]

    def has(self, index: int) -> Callable[[Node], bool]:
        """Whether a node has its part of a component in any tier."""
        places: list[Residence] = [self._components[index], *(tier.copies[index] for tier in self.lower)]
        return lambda node: any(place.has(node) for place in places)

    def is_backed(self, node: Node) -> bool:
        """Whether a lower tier has a node's full-attention KV."""
        return any(tier.arrived(node) for tier in self.lower)

    def is_held(self, node: Node) -> bool:
        """Whether any tier has a node's full-attention KV, or is about to."""
        return node.slots is not None or any(tier.full.has(node) for tier in self.lower)

    def can_leave_host(self, node: Node) -> bool:
        """Whether nothing is left hanging when host memory loses its copy of a node that the device has not."""
        if node.slots is not None:
            return False
        if any(child.slots is not None or self.host.full.has(child) for child in node.children.values()):
            return False
        return not node.children or any(tier.arrived(node) for tier in self.lower[1:])

    def can_leave_storage(self, node: Node) -> bool:
        """Whether nothing is left hanging when the store loses its copy: there everything above a block is kept too."""
        *above, storage = self.lower
        if any(storage.full.has(child) for child in node.children.values()):
            return False
        return not node.children or node.slots is not None or any(tier.full.has(node) for tier in above)

    def split(self, upper: Node, lower: Node) -> None:
        """A node that was split was a duplicate as a whole."""
        if not self._keeps_duplicates and lower.slots is not None and self.host.arrived(upper):
            self._duplicates.setdefault(upper)

    def note(self, node: Node) -> None:
        """Take notice that a node may have come to be on the device and in host memory, or a candidate to go."""
        if node.is_root:
            return
        if not self._keeps_duplicates and node.slots is not None and self.host.arrived(node):
            self._duplicates.setdefault(node)
        self._full.offer(node)
        for tier in self.lower:
            tier.full.offer(node)

    def prune(self, node: Node) -> None:
        """Take out a node that nothing is left of, and those above it that this leaves without anything."""
        while not node.is_root and not node.children and not node.locks and not self.is_held(node):
            for index in range(len(self._components) - 1, 0, -1):
                self._components[index].drop(node)
                for tier in self.lower:
                    tier.copies[index].drop(node)
            self._duplicates.pop(node, None)
            node = self._tree.detach(node)
        self.note(node)

    def bury(self, node: Node) -> None:
        """Take out a node that no tier has any more, with all below it; once nobody keeps it locked.

        Nothing if it has gone already, with one above it.
        """
        if node.parent is not None and not node.locks and not self.is_held(node):
            self.drop_below(node)
            self.prune(node)

    def drop_below(self, node: Node) -> None:
        """Take away everything that lower tiers have below a node, from the leaves up."""
        below: list[Node] = []
        stack = list(node.children.values())
        while stack:
            at = stack.pop()
            below.append(at)
            stack.extend(at.children.values())
        for at in reversed(below):
            for tier in self.lower:
                tier.drop(at)
            self._duplicates.pop(at, None)
            self._tree.detach(at)

    def evict(self, tier: LowerTier, index: int, count: int) -> int:
        """Free at least `count` of a component in a lower tier, if so much can go; how much was freed.

        What is all that is left of a node goes as a whole, from below; inside the tree a node loses what ran short
        and what is no use without it.
        """
        freed = 0
        if index == 0 and tier is self.host and not self._keeps_duplicates:
            freed = self._drop_duplicates(count)
        copies = tier.copies[index]
        while freed < count and (node := copies.victim()) is not None:
            parent = node.parent
            assert parent is not None, "a root has nothing to lose"
            if tier.full.can_lose(node):
                freed += tier.drop(node)[index]
                self.prune(node)
                self.note(parent)
            else:
                freed += tier.drop(node, index)[index]
        return freed

    def reset(self, nodes: Sequence[Node]) -> None:
        """Everything is gone."""
        for tier in self.lower:
            for copies in tier.copies:
                copies.reset(nodes)
        self._duplicates.clear()

    def check_integrity(self, nodes: Sequence[Node]) -> None:
        """Raise AssertionError, saying what is broken, unless the tiers agree with each other and the nodes."""
        for tier in self.lower:
            for copies in tier.copies:
                copies.check_integrity(nodes)
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert self.is_held(node) or node.locks, f"no tier has {node}"
            assert node.slots is None or parent.slots is not None, f"{node} is on the device without the one above"
        for node in self._duplicates:
            assert node in self._tree, f"{node} has left the tree but counts as a duplicate"

    def _drop_duplicates(self, count: int) -> int:
        """Free host copies of what the device has too; those that the device is to lose soon last."""
        freed = 0
        done = []
        for spares_leaves in (True, False):
            for node in self._duplicates:
                if freed >= count:
                    break
                if node.slots is None or not self.host.arrived(node):
                    done.append(node)
                elif not (spares_leaves and self._full.can_lose(node)) and not self.host.full.part(node).locks:
                    freed += self.host.full.drop(node)
                    done.append(node)
        for node in done:
            self._duplicates.pop(node, None)
        return freed
