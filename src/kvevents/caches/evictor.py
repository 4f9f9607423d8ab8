"""Who goes when slots run short."""

from collections.abc import Sequence

from kvevents.caches.component import Component
from kvevents.caches.full import FullComponent
from kvevents.caches.node import Node
from kvevents.caches.tree import Tree


class Evictor:
    """Frees slots of components: each in its own order, a node's at a time.

    A leaf of the tree goes as a whole. Inside the tree a node loses what ran short and what is no use without it: the
    components that come after.

    Args:
        tree: the nodes.
        full: what decides which nodes are in the tree.
        beside: the other components, each before what is no use without it.
    """

    def __init__(self, tree: Tree, full: FullComponent, beside: Sequence[Component]) -> None:
        self._tree = tree
        self._full = full
        self._components: list[Component] = [full, *beside]

    def free(self, asked: Sequence[int]) -> list[int]:
        """Free so much of each component, if so much is evictable, and say how much was freed."""
        freed = [0] * len(asked)
        for index, count in enumerate(asked):
            self._free(index, count, freed)
        return freed

    def make_room(self, counts: Sequence[int]) -> None:
        """Evict until so many slots of each component are free.

        Raises:
            CapacityError: they would not be. Nothing was evicted.
        """
        for component, count in zip(self._components, counts, strict=True):
            component.check_room(count)
        freed = [0] * len(counts)
        for index, count in enumerate(counts):
            short = count - self._components[index].allocator.available
            self._free(index, freed[index] + short, freed)

    def _free(self, index: int, asked: int, freed: list[int]) -> None:
        """Evict by the order of one component until `asked` of it are freed; `freed` counts for each."""
        component = self._components[index]
        while freed[index] < asked and (node := component.victim()) is not None:
            if self._full.can_lose(node):
                self._drop_leaf(node, freed)
            else:
                self._drop(node, index, freed)

    def _drop_leaf(self, node: Node, freed: list[int]) -> None:
        """Take a leaf out of the tree."""
        parent = self._tree.detach(node)
        self._drop(node, 0, freed)
        self._full.offer(parent)

    def _drop(self, node: Node, first: int, freed: list[int]) -> None:
        """Take away what a node has of the components from `first` on, the last first."""
        for index in range(len(freed) - 1, first - 1, -1):
            freed[index] += self._components[index].drop(node)
