"""Load-backs: from lower tiers to the device."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from kvevents.caches.component import Component
from kvevents.caches.evictor import Evictor
from kvevents.caches.node import Node
from kvevents.caches.storage_tier import StorageTier, wait
from kvevents.caches.tiers import Tiers
from kvevents.caches.transfers import Copying
from kvevents.errors import CapacityError


class Loader:
    """Brings what a prompt needs back to the device, all of it or nothing.

    What is only in a store is read into host memory first, and stays there.

    Args:
        tiers: who has what.
        components: what nodes have on the device, full attention first.
        storage: the tier below host memory; None: there is none.
        evictor: makes room on the device.
        threshold: units of full attention below which that alone is not worth a load.
        copy: begins to copy slots of a component from host memory to slots of the device.
        failures: counts what went wrong, by reason.
    """

    def __init__(
        self,
        tiers: Tiers,
        components: Sequence[Component],
        *,
        storage: StorageTier | None,
        evictor: Evictor,
        threshold: int,
        copy: "Callable[[Component, array[int], array[int]], Copying]",
        failures: Counter[str],
    ) -> None:
        self._tiers = tiers
        self._components = components
        self._storage = storage
        self._evictor = evictor
        self._threshold = max(threshold, 1)
        self._copy = copy
        self._failures = failures

    def load(self, node: Node) -> bool:
        """Load what a prompt that ends at `node` needs; False where nothing was loaded."""
        missing = [[at for at in each.span(node) if not each.has(at)] for each in self._components]
        if sum(at.length for at in missing[0]) < self._threshold and not any(missing[1:]):
            return False
        path = self._components[0].span(node)
        for component in self._components:
            component.lock(node)
        kept = [(copies, at) for copies, nodes in zip(self._tiers.host.copies, missing, strict=True) for at in nodes]
        for copies, at in kept:
            copies.keep(at)
        try:
            return self._fetch(missing) and self._load(missing)
        finally:
            for copies, at in kept:
                copies.let_go(at)
            for component in reversed(self._components):
                component.unlock(node)
            for at in path:
                self._tiers.bury(at)
            for at in reversed(path):
                self._tiers.note(at)

    def _fetch(self, missing: list[list[Node]]) -> bool:
        """Read into host memory what is not there; False where it cannot be had."""
        for index, nodes in enumerate(missing):
            copies = self._tiers.host.copies[index]
            for at in nodes:
                if copies.is_coming(at):
                    return False
                if not copies.has(at) and (self._storage is None or not self._storage.fetch(index, at)):
                    return False
        return True

    def _load(self, missing: list[list[Node]]) -> bool:
        """Copy from host memory to the device."""
        parts = [
            [copies.part(at).slots or array("q") for at in nodes]
            for copies, nodes in zip(self._tiers.host.copies, missing, strict=True)
        ]
        sources = [array("q", b"".join(slots)) for slots in parts]
        try:
            self._evictor.make_room([len(source) for source in sources])
        except CapacityError:
            self._failures["device_full"] += 1
            return False
        targets = [component.take(len(source)) for component, source in zip(self._components, sources, strict=True)]
        try:
            for component, source, target in zip(self._components, sources, targets, strict=True):
                if source:
                    wait(self._copy(component, source, target))
        except Exception:
            self._failures["load"] += 1
            for component, target in zip(self._components, targets, strict=True):
                component.allocator.release(target)
            return False
        for component, nodes, slots, target in zip(self._components, missing, parts, targets, strict=True):
            taken = 0
            for at, held in zip(nodes, slots, strict=True):
                component.hold(at, target[taken : taken + len(held)])
                taken += len(held)
            component.returned(nodes)
        return True
