"""What nodes of a tree have of one kind of data in one tier."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from typing import ClassVar

from kvevents.caches.announcer import Announcer
from kvevents.caches.eviction import Order
from kvevents.caches.node import Holder, Node
from kvevents.caches.results import Sizes
from kvevents.caches.slots import SlotAllocator, join
from kvevents.caches.victims import VictimQueue
from kvevents.errors import CapacityError

NOTHING = memoryview(array("q"))


class Residence(ABC):
    """The slots that nodes hold: who has some, who may lose them and how many there are, and who is told of it.

    Args:
        allocator: the slots.
        announcer: says what changes.
    """

    noun: ClassVar[str]
    """What the slots are called in messages."""

    def __init__(self, allocator: SlotAllocator, announcer: Announcer) -> None:
        self.allocator = allocator
        self.announcer = announcer
        self._evictable = 0
        self._protected = 0
        self._victims = VictimQueue(self.order, self.can_lose)

    @property
    def sizes(self) -> Sizes:
        """How much there is in the tree."""
        return Sizes(self._evictable + self._protected, self._evictable, self._protected)

    @abstractmethod
    def part(self, node: Node) -> Holder:
        """What `node` has of this."""

    @abstractmethod
    def order(self, node: Node) -> Order:
        """Where `node` stands among those that have something to lose; the smallest loses it first."""

    def has(self, node: Node) -> bool:
        """Whether `node` has any of it."""
        return self.part(node).slots is not None

    def ids(self, node: Node) -> memoryview:
        """What a node's blocks of this are called in events, int64; none where it has none."""
        return self.announcer.ids(node) if self.part(node).slots is not None else NOTHING

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

    def gather(self, nodes: Iterable[Node]) -> "array[int]":
        """The slots that some nodes have here, in order."""
        return array("q", b"".join([self.part(node).slots or b"" for node in nodes]))

    def hold(self, node: Node, slots: "array[int]", session_id: str | None = None) -> None:
        """Put adopted slots on a node that had none."""
        part = self.part(node)
        assert part.slots is None, f"{node} has {self.noun} already"
        part.slots = slots
        if part.locks:
            self._protected += len(slots)
        else:
            self._evictable += len(slots)
        self._tell_stored(node, session_id)

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
        self._tell_removed(node)
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

    def _tell_stored(self, node: Node, session_id: str | None) -> None:
        self.announcer.stored(node, session_id)

    def _tell_removed(self, node: Node) -> None:
        self.announcer.removed(node)
