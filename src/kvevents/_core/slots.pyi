"""`kvevents._core.slots`: see `kvevents.caches.slots`."""

from collections.abc import Sequence
from typing import Self, TypeAlias

from _typeshed import ReadableBuffer
from typing_extensions import disjoint_base

_Slots: TypeAlias = Sequence[int] | ReadableBuffer

@disjoint_base
class PagePool:
    """Pages of consecutive slots: free, lent to whoever allocated them, or in the cache. Thread-safe.

    Slots go in as an int64 buffer or a sequence of integers, always whole pages, each page consecutive from a
    multiple of the page size. What cannot be taken raises ValueError and changes nothing.
    """

    def __new__(cls, pages: int, page_size: int) -> Self: ...
    @property
    def capacity(self) -> int:
        """Slots in the pool."""

    @property
    def available(self) -> int:
        """Slots that are free."""

    def lend(self, pages: int) -> bytes | None:
        """Lend whole pages: their slots as native int64, or None, and nothing lent, where there are too few."""

    def free(self, slots: _Slots) -> None:
        """Take lent pages back."""

    def check(self, slots: _Slots) -> None:
        """Raise what `adopt` would raise, and change nothing."""

    def adopt(self, slots: _Slots) -> None:
        """Turn lent or free pages into cached ones."""

    def release(self, slots: _Slots) -> None:
        """Turn cached pages into free ones."""
