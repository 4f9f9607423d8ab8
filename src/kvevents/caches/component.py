"""What a model keeps on the nodes of a tree, and what all kinds of it have in common."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from kvevents.caches.announcer import Announcer
from kvevents.caches.eviction import Order
from kvevents.caches.node import Holder, Node
from kvevents.caches.results import Sizes
from kvevents.caches.slots import SlotAllocator, join
from kvevents.caches.tree import Tree
from kvevents.caches.victims import VictimQueue
from kvevents.errors import CapacityError

Gate: TypeAlias = Callable[[Node], bool]
"""Called with the nodes of a path, top first: whether a prompt that ends at this node can be continued from there."""

NOTHING = memoryview(array("q"))


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


class Component(ABC):
    """One kind of data on the nodes of a tree, with slots of its own.

    A node that has none of it is a *gap*. Which nodes have it, who may lose it and how much of it there is, is kept
    here; what a prompt needs of it differs by kind.

    Args:
        allocator: the slots.
        announcer: says what changes.
    """

    group: ClassVar[str]
    """Its name."""
    noun: ClassVar[str]
    """What its slots are called in messages."""

    def __init__(self, allocator: SlotAllocator, announcer: Announcer) -> None:
        self.allocator = allocator
        self._announcer = announcer
        self._evictable = 0
        self._protected = 0
        self._victims = VictimQueue(self.order, self.can_lose)

    @property
    def sizes(self) -> Sizes:
        """How much of it is in the tree."""
        return Sizes(self._evictable + self._protected, self._evictable, self._protected)

    def ids(self, node: Node) -> memoryview:
        """What a node's blocks of this component are called in events, int64; none where it is a gap."""
        return self._announcer.ids(node) if self.part(node).slots is not None else NOTHING

    @abstractmethod
    def part(self, node: Node) -> Holder:
        """What `node` has of this."""

    @abstractmethod
    def order(self, node: Node) -> Order:
        """Where `node` stands among those that have something to lose; the smallest loses it first."""

    @abstractmethod
    def gate(self) -> Gate:
        """A test for one walk down the tree."""

    @abstractmethod
    def needed(self, node: Node) -> "Sequence[array[int]]":
        """The slots of what a prompt that ends at `node` needs, in order."""

    @abstractmethod
    def used(self, node: Node) -> None:
        """A match or an insert has ended at `node`."""

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

    def can_lose(self, node: Node) -> bool:
        """Whether what `node` has may be evicted."""
        part = self.part(node)
        return part.slots is not None and not part.locks

    def offer(self, node: Node) -> None:
        """Note that `node` may have come to be evictable, or that its place may have changed."""
        self._victims.offer(node)

    def victim(self) -> Node | None:
        """Who loses next; the caller takes it away."""
        return self._victims.pop()

    def take(self, count: int) -> "array[int]":
        """Free slots that the cache has from now on; none, if none are wanted."""
        if not count:
            return array("q")
        slots = self.allocator.allocate(count)
        self.allocator.adopt(slots)
        return slots

    def hold(self, node: Node, slots: "array[int]", session_id: str | None = None) -> None:
        """Put adopted slots on a node that had none."""
        part = self.part(node)
        assert part.slots is None, f"{node} has {self.noun} already"
        part.slots = slots
        if part.locks:
            self._protected += len(slots)
        else:
            self._evictable += len(slots)
        self._announcer.stored(node, session_id)

    def drop(self, node: Node) -> int:
        """Take away what a node has, and say how much that was."""
        part = self.part(node)
        slots = part.slots
        if slots is None:
            return 0
        assert not part.locks, f"{node} is locked"
        part.slots = None
        self._evictable -= len(slots)
        self._victims.discard(node)
        self.allocator.release(slots)
        self._announcer.removed(node)
        return len(slots)

    def reset(self, nodes: Sequence[Node]) -> None:
        """Everything is gone, locked or not; `nodes` are those of the tree."""
        self.allocator.release(join([slots for node in nodes if (slots := self.part(node).slots) is not None]))
        self._victims.clear()
        self._evictable = self._protected = 0

    def check_room(self, count: int) -> None:
        """Raise CapacityError unless `count` slots are free or evictable."""
        available = self.allocator.available + self._evictable
        if count > available:
            message = (
                f"{count} {self.noun} were asked for, {available} are free or evictable, {self._protected} are locked"
            )
            raise CapacityError(message, requested=count, available=available)

    def check_integrity(self, nodes: Sequence[Node]) -> None:
        """Raise AssertionError, saying what is broken, unless sizes, slots and queue agree with the nodes."""
        evictable = protected = 0
        taken: set[int] = set()
        for node in nodes:
            part = self.part(node)
            assert part.locks >= 0, f"{node} has {part.locks} locks on its {self.noun}"
            if part.slots is None:
                continue
            taken.update(part.slots)
            if part.locks:
                protected += len(part.slots)
            else:
                evictable += len(part.slots)
            if self.can_lose(node):
                self._victims.check(node)
        sizes = (self._evictable, self._protected)
        assert sizes == (evictable, protected), f"{self.noun}: sizes are {sizes}, the nodes have {evictable, protected}"
        total = evictable + protected
        assert len(taken) == total, f"{total - len(taken)} {self.noun} are in the tree twice"
        room = self.allocator.capacity - self.allocator.available
        assert total <= room, f"{total} {self.noun} are in the tree, but only {room} are not free"

    def _keep(self, part: Holder) -> None:
        """Count a lock."""
        if not part.locks and part.slots is not None:
            self._evictable -= len(part.slots)
            self._protected += len(part.slots)
        part.locks += 1

    def _let_go(self, part: Holder) -> None:
        """Count a lock less."""
        part.locks -= 1
        if not part.locks and part.slots is not None:
            self._evictable += len(part.slots)
            self._protected -= len(part.slots)
