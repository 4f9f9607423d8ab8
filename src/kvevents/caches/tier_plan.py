"""Which lower tiers a cache has, and what its nodes hold there."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from kvevents.caches.component import Component
from kvevents.caches.copies import Copies, PageCopies, StateCopies, WindowCopies
from kvevents.caches.full import FullComponent
from kvevents.caches.node import Node
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator
from kvevents.caches.state import StateComponent
from kvevents.caches.storage import TierStore
from kvevents.caches.storage_tier import StorageTier
from kvevents.caches.tiers import LowerTier, Tiers
from kvevents.caches.twins import Twins
from kvevents.caches.window import WindowComponent
from kvevents.errors import ConfigError
from kvevents.events import StorageMedium

KINDS: Mapping[type[Component], type[Copies]] = MappingProxyType(
    {FullComponent: PageCopies, WindowComponent: WindowCopies, StateComponent: StateCopies}
)
"""What copies of a component are."""


class TierPlan:
    """Makes lower tiers, top first. A node's parts are those of the device, then those of each tier in turn.

    Args:
        tiers: who has what; each tier is added to it.
        components: what nodes have on the device, full attention first.
        twins: namespaces that share ids.
        page_size: units in a page.
    """

    def __init__(self, tiers: Tiers, components: Sequence[Component], twins: Twins, *, page_size: int) -> None:
        self._tiers = tiers
        self._components = components
        self._twins = twins
        self._page_size = page_size

    @property
    def parts(self) -> int:
        """How many parts a node has beside its full-attention KV on the device."""
        return (1 + len(self._tiers.lower)) * len(self._components) - 1

    def add_host(self, host_tokens: int, chosen: Mapping[str, SlotAllocator]) -> None:
        """Host memory.

        Args:
            host_tokens: units of full attention.
            chosen: the slots, by component; the others get as many as on the device times host over device.

        Raises:
            ConfigError: there is no room for a page, or no such component.
        """
        if host_tokens < self._page_size:
            raise ConfigError(f"host_tokens: expected room for a page of {self._page_size} or more, got {host_tokens}")
        groups = [component.group for component in self._components]
        unknown = sorted(set(chosen) - set(groups))
        if unknown:
            raise ConfigError(f"host_allocators: expected some of {', '.join(groups)}, got {unknown[0]}")
        full, *_ = self._components
        allocators = []
        for component in self._components:
            page = self._page(component)
            count = component.allocator.capacity * host_tokens // full.allocator.capacity
            count = host_tokens if component is full else max(count, page)
            allocators.append(chosen.get(component.group) or PagedSlotAllocator(count, page))

        def can_do_without(component: Component) -> Callable[[Node], bool]:
            return self._tiers.can_leave_host if component is full else lambda node: not component.has(node)

        copies = self._copies(allocators, StorageMedium.CPU, can_do_without, self._twins.removed)
        self._tiers.lower.append(LowerTier(StorageMedium.CPU, *copies))

    def add_storage(self, store: TierStore, failures: Counter[str]) -> StorageTier:
        """A store below host memory.

        Args:
            store: keeps the blocks.
            failures: counts what goes wrong, by reason.

        Raises:
            ConfigError: it is of another tier.
        """
        if store.medium not in (StorageMedium.DISK, StorageMedium.EXTERNAL):
            raise ConfigError(f"storage: expected one whose medium is DISK or EXTERNAL, got {store.medium}")
        full, *_ = self._components
        pages = [self._page(component) for component in self._components]
        allocators = [PagedSlotAllocator(store.capacity * page, page) for page in pages]

        def can_do_without(component: Component) -> Callable[[Node], bool]:
            return self._tiers.can_leave_storage if component is full else lambda _: True

        def removed(copies: Copies, node: Node) -> None:
            self._twins.removed(copies, node)
            tier.removed(copies, node)

        copies = self._copies(allocators, store.medium, can_do_without, removed)
        tier = StorageTier(store, *copies, tiers=self._tiers, failures=failures)
        self._tiers.lower.append(tier)
        return tier

    def _page(self, component: Component) -> int:
        return 1 if isinstance(component, StateComponent) else self._page_size

    def _copies(
        self,
        allocators: Sequence[SlotAllocator],
        medium: StorageMedium,
        can_do_without: Callable[[Component], Callable[[Node], bool]],
        removed: Callable[[Copies, Node], None],
    ) -> tuple[PageCopies, list[Copies]]:
        """What nodes have in one more tier: of full attention, and of the other components."""
        full, *beside = [
            KINDS[type(component)](
                component,
                allocator,
                component.announcer.below(medium),
                index=self.parts + index,
                is_spare=can_do_without(component),
                removed=removed,
            )
            for index, (component, allocator) in enumerate(zip(self._components, allocators, strict=True))
        ]
        assert isinstance(full, PageCopies)
        return full, beside
