"""What becomes of what the device has no room for."""

from collections.abc import Callable, Sequence

from kvevents.caches.component import Component
from kvevents.caches.evictor import Evictor
from kvevents.caches.full import FullComponent
from kvevents.caches.node import Node
from kvevents.caches.tiers import Tiers
from kvevents.caches.tree import Tree


class DemotingEvictor(Evictor):
    """An evictor that leaves nodes in the tree whose data a lower tier has.

    Args:
        tree: the nodes.
        full: what decides which nodes the device has.
        beside: the other components, each before what is no use without it.
        tiers: who has what.
        settle: waits for copies under way, which keep what they read from eviction.
        back_up: makes a host copy of a node on the spot, if there is room; None: that is never done.
    """

    def __init__(
        self,
        tree: Tree,
        full: FullComponent,
        beside: Sequence[Component],
        *,
        tiers: Tiers,
        settle: Callable[[], None],
        back_up: Callable[[Node, int], object] | None,
    ) -> None:
        super().__init__(tree, full, beside)
        self._tiers = tiers
        self._settle = settle
        self._back_up = back_up

    def make_room(self, counts: Sequence[int]) -> None:
        for component, count in zip(self._components, counts, strict=True):
            if count > component.allocator.available + component.sizes.evictable:
                self._settle()
                break
        super().make_room(counts)

    def _drop_leaf(self, node: Node, freed: list[int]) -> None:
        """Take a node from the device that nothing on the device is below of.

        Where no lower tier has it, it leaves the tree, and what lower tiers have below it would be of no use.
        """
        if self._back_up is not None and not self._tiers.is_backed(node):
            self._back_up(node, 0)
        if node.children and not self._tiers.is_backed(node):
            self._settle()
        is_backed = self._tiers.is_backed(node)
        if not is_backed:
            self._tiers.drop_below(node)
        self._drop(node, 0, freed)
        parent = node.parent
        assert parent is not None, "a root has nothing to lose"
        self._tiers.prune(node)
        if is_backed:
            self._tiers.note(parent)

    def _drop(self, node: Node, first: int, freed: list[int]) -> None:
        if first and self._back_up is not None and not self._tiers.is_backed(node):
            self._back_up(node, first)
        had = [component.has(node) for component in self._components]
        super()._drop(node, first, freed)
        for component, copies, was_there in zip(self._components, self._tiers.host.copies, had, strict=True):
            if was_there and not component.has(node):
                copies.stamp(node)
