"""What a model keeps on the nodes of a tree, and what all kinds of it have in common."""

import contextlib
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from kvevents.caches.node import Node
from kvevents.caches.residence import Residence
from kvevents.caches.tree import Tree

Has: TypeAlias = Callable[[Node], bool]
"""Whether a node has its part of a component, wherever that counts."""

Gate: TypeAlias = Callable[[Node], bool]
"""Called with the nodes of a path, top first: whether a prompt that ends at this node can be continued from there."""


class Insertion(NamedTuple):
    """A prompt on its way into the tree."""

    path: list[Node]
    """The nodes that it covers, top first; once the new pages are attached, their node is the last."""
    prefix: int
    """Units that were in the tree before."""
    length: int
    """Units of the prompt."""
    window_start: int
    """Units from its start that no window needs any more."""
    session_id: str | None
    """For attribution."""


class Component(Residence):
    """One kind of data on the nodes of a tree, on the device: what a prompt needs of it differs by kind.

    A node that has none of it is a *gap*.
    """

    group: ClassVar[str]
    """Its name."""

    @abstractmethod
    def gate(self, has: Has) -> Gate:
        """A test for one walk down the tree."""

    @abstractmethod
    def needed(self, node: Node) -> "Sequence[array[int]]":
        """The slots of what a prompt that ends at `node` needs, in order."""

    @abstractmethod
    def used(self, node: Node) -> None:
        """A match or an insert has ended at `node`."""

    @abstractmethod
    def span(self, node: Node) -> list[Node]:
        """The nodes, top first, whose data a prompt that ends at `node` needs, be it there or not."""

    @abstractmethod
    def returned(self, nodes: Sequence[Node]) -> None:
        """Nodes, top first, have their data again: it comes from a lower tier."""

    @abstractmethod
    def lock(self, node: Node, *, whole: bool = False) -> None:
        """Keep what a prompt that ends at `node` needs, or all that there is on its path, until `unlock`."""

    @abstractmethod
    def unlock(self, node: Node) -> None:
        """Undo the last `lock` of this node."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """Divide what `lower` held between it and the new node above it."""

    @abstractmethod
    def missing(self, insertion: Insertion) -> Sequence[range]:
        """The units that an insert needs slots for, before its new pages are attached."""

    @abstractmethod
    def fill(self, insertion: Insertion, slots: "array[int]", tree: Tree) -> None:
        """Put slots, adopted before, where they were missing; after the new pages were attached."""


def longest(path: list[Node], gates: Sequence[Gate]) -> list[Node]:
    """The part of a path that a prompt can be continued from, as gates see it."""
    usable = 0
    for index, node in enumerate(path, 1):
        if all([opens(node) for opens in gates]):  # noqa: C419 - every gate has to see every node
            usable = index
    return path[:usable]


@contextlib.contextmanager
def kept(components: Sequence[Component], end: Node) -> Iterator[None]:
    """All that there is on the path down to `end` is locked meanwhile."""
    held = [] if end.is_root else components
    for component in held:
        component.lock(end, whole=True)
    try:
        yield
    finally:
        for component in held:
            component.unlock(end)
