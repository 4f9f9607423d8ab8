from array import array

import pytest

from kvevents.caches.slots import PagedSlotAllocator, join, slot_array
from kvevents.errors import CapacityError, ConfigError


class TestPagedSlotAllocator:
    def test_slots_come_in_whole_pages(self) -> None:
        allocator = PagedSlotAllocator(10, 4)
        assert (allocator.capacity, allocator.available) == (8, 8)
        slots = allocator.allocate(5)
        assert (slots.tolist(), allocator.available) == (list(range(8)), 0)

    def test_too_few_are_refused_whole(self) -> None:
        allocator = PagedSlotAllocator(8, 4)
        allocator.allocate(1)
        with pytest.raises(CapacityError, match="5 were asked for, 4 of 8 are free") as error:
            allocator.allocate(5)
        assert (error.value.requested, error.value.available) == (5, 4)
        assert allocator.available == 4

    def test_a_page_goes_round(self) -> None:
        allocator = PagedSlotAllocator(4, 4)
        slots = allocator.allocate(4)
        allocator.adopt(slots)
        with pytest.raises(ValueError, match="slot 0 at position 0 is in the cache"):
            allocator.free(slots)
        allocator.release(slots)
        with pytest.raises(ValueError, match="slot 0 at position 0 is free already"):
            allocator.free(slots)
        lent = allocator.allocate(4)
        with pytest.raises(ValueError, match="slot 0 at position 0 is not in the cache"):
            allocator.release(lent)
        allocator.free(memoryview(lent))
        assert allocator.available == 4

    @pytest.mark.parametrize("slots", [[0, 1], [1, 2, 3, 4], [0, 1, 2, 4], [8, 9, 10, 11], [-4, -3, -2, -1]])
    def test_what_is_no_page_of_the_pool_is_refused(self, slots: list[int]) -> None:
        allocator = PagedSlotAllocator(8, 4)
        allocator.allocate(8)
        with pytest.raises(ValueError, match="slots: expected"):
            allocator.free(slots)
        assert allocator.available == 0

    def test_settings_that_cannot_work(self) -> None:
        with pytest.raises(ConfigError, match="page_size: expected at least 1, got 0"):
            PagedSlotAllocator(8, 0)
        with pytest.raises(ConfigError, match="capacity: expected room for one page of 4 or more, got 3"):
            PagedSlotAllocator(3, 4)
        with pytest.raises(
            ConfigError, match="capacity: expected at most 17179869184 slots, got 1000000000000000000000"
        ):
            PagedSlotAllocator(10**21, 16)
        with pytest.raises(ValueError, match="count: expected 0 or more, got -1"):
            PagedSlotAllocator(8, 4).allocate(-1)


@pytest.mark.parametrize(
    "slots",
    [
        [3, 1, 2],
        (3, 1, 2),
        array("q", [3, 1, 2]),
        array("i", [3, 1, 2]),
        memoryview(array("q", [3, 0, 1, 0, 2]))[::2],
    ],
)
def test_slots_are_copied_from_whatever_holds_them(slots: "list[int] | array[int] | memoryview") -> None:
    copied = slot_array(slots)
    assert copied == array("q", [3, 1, 2])
    assert copied is not slots


def test_joined_runs_are_one_read_only_view() -> None:
    view = join([array("q", [1, 2]), array("q"), array("q", [1 << 40])])
    assert (view.tolist(), view.format, view.readonly) == ([1, 2, 1 << 40], "q", True)
    assert join(()).tolist() == []
