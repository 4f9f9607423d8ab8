"""The bytes behind slots."""

from array import array
from collections.abc import Mapping, Sequence


class SlotMemory:
    """A memory in which each slot has equally many bytes.

    Args:
        buffer: a writable buffer, slot after slot: a bytearray, an mmap, pinned memory.
        slot_bytes: bytes of a slot.
    """

    def __init__(self, buffer: bytearray | memoryview, slot_bytes: int) -> None:
        self._bytes = memoryview(buffer).cast("B")
        self.slot_bytes = slot_bytes

    def read(self, slots: Sequence[int]) -> bytes:
        """The bytes of some slots, in order."""
        size = self.slot_bytes
        return b"".join([self._bytes[slot * size : (slot + 1) * size] for slot in slots])

    def write(self, slots: Sequence[int], data: bytes) -> None:
        """Put bytes into some slots, in order.

        Raises:
            ValueError: there are more or fewer bytes than the slots have.
        """
        size = self.slot_bytes
        if len(data) != len(slots) * size:
            raise ValueError(f"data: expected {len(slots) * size} bytes for {len(slots)} slots, got {len(data)}")
        for index, slot in enumerate(slots):
            self._bytes[slot * size : (slot + 1) * size] = data[index * size : (index + 1) * size]


Memories = Mapping[str, SlotMemory]
"""By component."""


class Copier:
    """Copies between the slots of the device and those of host memory, in the calling thread.

    Args:
        device: memory of the device; without any, as in a simulation, there are no bytes and copies do nothing.
        host: host memory, for the same components.
    """

    def __init__(self, device: Memories | None = None, host: Memories | None = None) -> None:
        self._device = device or {}
        self._host = host or {}

    def copy(self, component: str, source: "array[int]", target: "array[int]", *, to_host: bool) -> None:
        """Copy slots of a component."""
        if component in self._device and component in self._host:
            above, below = self._device[component], self._host[component]
            if to_host:
                below.write(target, above.read(source))
            else:
                above.write(target, below.read(source))

    def gather(self, component: str, slots: "array[int]", blocks: int) -> list[bytes]:
        """The bytes of host slots, in equal parts for some blocks."""
        if component not in self._host:
            return [b""] * blocks
        each = len(slots) // blocks
        return [self._host[component].read(slots[start : start + each]) for start in range(0, len(slots), each)]

    def scatter(self, component: str, slots: "array[int]", parts: Sequence[bytes]) -> None:
        """Put the bytes of blocks into host slots."""
        if component in self._host:
            self._host[component].write(slots, b"".join(parts))
