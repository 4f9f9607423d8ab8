"""Load-backs: from lower tiers to the device."""

from array import array
from collections import Counter
from collections.abc import Sequence

from kvevents.caches.component import Component
from kvevents.caches.evictor import Evictor
from kvevents.caches.node import Node
from kvevents.caches.tiers import Tiers
from kvevents.errors import CapacityError


class Loader:
    """Brings what a prompt needs back to the device, all of it or nothing.

    Args:
        tiers: who has what.
        components: what nodes have on the device, full attention first.
        evictor: makes room on the device.
        threshold: units of full attention below which that alone is not worth a load.
        failures: counts what went wrong, by reason.
    """

    def __init__(
        self,
        tiers: Tiers,
        components: Sequence[Component],
        *,
        evictor: Evictor,
        threshold: int,
        failures: Counter[str],
    ) -> None:
        self._tiers = tiers
        self._components = components
        self._evictor = evictor
        self._threshold = max(threshold, 1)
        self._failures = failures

    def load(self, node: Node) -> bool:
        """Load what a prompt that ends at `node` needs; False where nothing was loaded."""
        missing = [[at for at in each.span(node) if not each.has(at)] for each in self._components]
        if sum(at.length for at in missing[0]) < self._threshold and not any(missing[1:]):
            return False
        for component in self._components:
            component.lock(node)
        kept = [(copies, at) for copies, nodes in zip(self._tiers.host.copies, missing, strict=True) for at in nodes]
        for copies, at in kept:
            copies.keep(at)
        try:
            return self._load(missing)
        finally:
            for copies, at in kept:
                copies.let_go(at)
            for component in reversed(self._components):
                component.unlock(node)
            for at in reversed(self._components[0].span(node)):
                self._tiers.note(at)

    def _load(self, missing: list[list[Node]]) -> bool:
        host = self._tiers.host
        sources = [
            array("q", [slot for at in nodes for slot in copies.part(at).slots or ()])
            for copies, nodes in zip(host.copies, missing, strict=True)
        ]
        try:
            self._evictor.make_room([len(source) for source in sources])
        except CapacityError:
            self._failures["device_full"] += 1
            return False
        targets = [component.take(len(source)) for component, source in zip(self._components, sources, strict=True)]
        for component, nodes, target in zip(self._components, missing, targets, strict=True):
            taken = 0
            for at in nodes:
                part = host.copies[self._components.index(component)].part(at)
                count = len(part.slots or ())
                component.hold(at, target[taken : taken + count])
                taken += count
            component.returned(nodes)
        return True
