"""A store in the memory of this process."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

from kvevents.caches.slot_memory import Copier, Memories
from kvevents.caches.storage import StoredBlock
from kvevents.errors import CapacityError, ConfigError, KVEventsError
from kvevents.events import StorageMedium


class MemoryStore:
    """Keeps blocks in a dictionary: the store for tests and simulations, and the plain model of all others.

    What it holds outlives the cache, so that a second cache finds it.

    Args:
        capacity: blocks that there is room for, of each component.
        medium: `EXTERNAL` or `DISK`.
        device: memory of the device, by component; by default there are no bytes to copy.
        host: host memory, by component.
    """

    def __init__(
        self,
        capacity: int,
        *,
        medium: StorageMedium = StorageMedium.EXTERNAL,
        device: Memories | None = None,
        host: Memories | None = None,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"capacity: expected room for 1 block or more, got {capacity}")
        self.medium = medium
        self.capacity = capacity
        self._copier = Copier(device, host)
        self._kept: dict[tuple[bytes, str], tuple[StoredBlock, bytes]] = {}
        self._counts: Counter[str] = Counter()

    def copy(self, component: str, source: "array[int]", target: "array[int]", *, to_host: bool) -> None:
        """Copy between device and host memory, at once."""
        self._copier.copy(component, source, target, to_host=to_host)

    def write(self, blocks: Sequence[StoredBlock], source: "array[int]") -> None:
        """Keep blocks of one component.

        Raises:
            CapacityError: there is no room for all of them; none was kept.
        """
        component = blocks[0].component
        new = [block for block in blocks if (block.key, component) not in self._kept]
        room = self.capacity - self._counts[component]
        if len(new) > room:
            message = f"{len(new)} blocks were to be kept, there is room for {room}"
            raise CapacityError(message, requested=len(new), available=room)
        for block, data in zip(blocks, self._copier.gather(component, source, len(blocks)), strict=True):
            self._kept[block.key, component] = (block, data)
        self._counts[component] += len(new)

    def read(self, blocks: Sequence[StoredBlock], target: "array[int]") -> None:
        """Copy blocks of one component back to host slots.

        Raises:
            KVEventsError: one is not there.
        """
        parts = []
        for block in blocks:
            kept = self._kept.get((block.key, block.component))
            if kept is None:
                raise KVEventsError(
                    f"storage: expected block {block.key.hex()} ({block.component}), which is not there"
                )
            parts.append(kept[1])
        self._copier.scatter(blocks[0].component, target, parts)

    def remove(self, blocks: Sequence[StoredBlock]) -> None:
        """Forget blocks."""
        for block in blocks:
            if self._kept.pop((block.key, block.component), None) is not None:
                self._counts[block.component] -= 1

    def blocks(self) -> Iterable[StoredBlock]:
        """All blocks."""
        return [block for block, _ in self._kept.values()]
