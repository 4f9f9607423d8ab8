"""The kinds of layers that a model is made of, as a cache is told of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvevents.caches.announcer import Announcer, EndAnnouncer
from kvevents.caches.component import Component
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator
from kvevents.caches.state import StateComponent
from kvevents.caches.window import WindowComponent
from kvevents.errors import ConfigError
from kvevents.recorder import CacheGroup, EventRecorder


class Layers(ABC):
    """Layers of one kind."""

    rank: ClassVar[int]
    """Its place in a cache's order of components: what has a higher one is no use where a lower one is lost."""

    @abstractmethod
    def component(
        self, recorder: EventRecorder, *, page_size: int, capacity: int, index: int, announce: bool
    ) -> Component:
        """What they keep in a tree.

        Args:
            recorder: where changes are announced.
            page_size: units in a page.
            capacity: slots for full attention.
            index: which of a node's parts is theirs.
            announce: whether changes are announced.
        """


@dataclass(frozen=True)
class FullAttention:
    """Layers that attend to every token. A cache has them always; saying so changes nothing."""


@dataclass(frozen=True)
class SlidingWindow(Layers):
    """Layers that attend to the last tokens only.

    Args:
        size: tokens before the next one that they attend to; a model's window counts that one too and is one larger.
        capacity: slots for their KV; by default as many as for full attention.
        allocator: who hands them out, `capacity` slots; by default a `PagedSlotAllocator`.
    """

    rank: ClassVar[int] = 1

    size: int
    capacity: int | None = None
    allocator: SlotAllocator | None = None

    def component(
        self, recorder: EventRecorder, *, page_size: int, capacity: int, index: int, announce: bool
    ) -> WindowComponent:
        if self.size < 1:
            raise ConfigError(f"sliding window: expected at least 1 token, got {self.size}")
        allocator = slots_of(self.allocator, capacity if self.capacity is None else self.capacity, page_size)
        group = CacheGroup(index + 1, WindowComponent.group, sliding_window=self.size + 1)
        announcer = Announcer(recorder, group=group, silent=not announce)
        return WindowComponent(allocator, announcer, size=self.size, page_size=page_size, index=index)


@dataclass(frozen=True)
class Mamba(Layers):
    """State-space layers.

    Args:
        slots: states that there is room for.
        allocator: who hands them out, `slots` slots; by default a `PagedSlotAllocator`.
    """

    rank: ClassVar[int] = 2

    slots: int
    allocator: SlotAllocator | None = None

    def component(
        self,
        recorder: EventRecorder,
        *,
        page_size: int,  # noqa: ARG002 - a state is not made of pages
        capacity: int,  # noqa: ARG002 - nor of tokens
        index: int,
        announce: bool,
    ) -> StateComponent:
        group = CacheGroup(index + 1, StateComponent.group)
        announcer = EndAnnouncer(recorder, group=group, silent=not announce)
        return StateComponent(slots_of(self.allocator, self.slots, 1), announcer, index=index)


def slots_of(allocator: SlotAllocator | None, capacity: int, page_size: int) -> SlotAllocator:
    """The allocator that was passed, if it is of the size that was asked for, or a new one.

    Raises:
        ConfigError: it is not, or a new one would be too small.
    """
    if allocator is None:
        return PagedSlotAllocator(capacity, page_size)
    if allocator.capacity != capacity:
        raise ConfigError(f"capacity: expected the allocator's, {allocator.capacity}, got {capacity}")
    return allocator
