"""Slots: the places where an engine keeps the KV of one unit each."""

from array import array
from collections.abc import Iterable
from typing import Protocol, Self

from kvevents._core.slots import PagePool
from kvevents.caches.inputs import Slots
from kvevents.errors import CapacityError, ConfigError

MOST_SLOTS = 2**34
"""Far more than any KV memory has, and few enough that their pages can be counted at once."""


class SlotAllocator(Protocol):
    """Who hands out the slots of a KV memory.

        free ---allocate--> lent ---adopt--> cached ---release--> free
          ^------free-------'

    All slots go in whole pages, each page as it was handed out. An engine that wants the freed slots in another place
    (on a GPU, in a free list of its own) implements this and passes it to the cache.
    """

    @property
    def capacity(self) -> int:
        """Slots there are."""

    @property
    def available(self) -> int:
        """Slots that are free."""

    def allocate(self, count: int, /) -> "array[int]":
        """Lend `count` slots, rounded up to whole pages.

        Raises:
            CapacityError: there are fewer; nothing was lent.
        """

    def free(self, slots: Slots, /) -> None:
        """The caller gives lent slots back."""

    def check(self, slots: Slots, /) -> None:
        """Raise what `adopt` would raise, and change nothing."""

    def adopt(self, slots: Slots, /) -> None:
        """A cache takes lent slots over.

        Raises:
            ValueError: they are no whole pages, or are in the cache already; nothing was changed.
        """

    def release(self, slots: Slots, /) -> None:
        """A cache gives its slots back."""


class PagedSlotAllocator(PagePool):
    """Slots `0..capacity`, in pages of consecutive slots. Thread-safe.

    Every call checks who has the pages it is about: what is lost or used twice is a ValueError and changes nothing.
    Slots that were never lent can be adopted too, for callers that choose their slots themselves.

    Args:
        capacity: slots, at most 2^34; a last part shorter than a page is not used.
        page_size: slots in a page.

    Raises:
        ConfigError: there is no room for a page, or more slots than any memory has.
    """

    _page_size: int

    def __new__(cls, capacity: int, page_size: int = 1) -> Self:
        if page_size < 1:
            raise ConfigError(f"page_size: expected at least 1, got {page_size}")
        if capacity < page_size:
            raise ConfigError(f"capacity: expected room for one page of {page_size} or more, got {capacity}")
        if capacity > MOST_SLOTS:
            raise ConfigError(f"capacity: expected at most {MOST_SLOTS} slots, got {capacity}")
        self = super().__new__(cls, capacity // page_size, page_size)
        self._page_size = page_size
        return self

    def allocate(self, count: int, /) -> "array[int]":
        if count < 0:
            raise ValueError(f"count: expected 0 or more, got {count}")
        slots = self.lend(-(-count // self._page_size))
        if slots is None:
            message = f"slots: {count} were asked for, {self.available} of {self.capacity} are free"
            raise CapacityError(message, requested=count, available=self.available)
        return array("q", slots)


def slot_array(slots: Slots) -> "array[int]":
    """A copy of what a caller passed as slots.

    Raises:
        ValueError: one is no signed 64-bit integer, so it cannot be anybody's.
    """
    try:
        view = memoryview(slots)  # type: ignore[arg-type]  # a sequence without a buffer is the case below
    except TypeError:
        return _int64(slots)
    if view.ndim == 1 and view.format in {"q", "l"} and view.itemsize == 8:
        return array("q", view.tobytes())
    return _int64(list(slots))  # type: ignore[arg-type]  # other widths and byte orders, as their owner reads them


def _int64(slots: Slots) -> "array[int]":
    try:
        return array("q", slots)  # type: ignore[arg-type]  # it is a sequence
    except OverflowError as error:
        raise ValueError("slots: expected signed 64-bit integers, got one beyond them") from error


def join(parts: "Iterable[array[int]]") -> memoryview:
    """The slots of consecutive runs as one read-only int64 view."""
    return memoryview(b"".join(parts)).cast("q")
