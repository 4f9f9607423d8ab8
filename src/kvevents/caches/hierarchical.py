"""The prefix cache with tiers below the device."""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Literal, TypeAlias, Unpack, get_args

from kvevents.caches.backup import HostBackups
from kvevents.caches.component import Component, Insertion, kept, longest
from kvevents.caches.demotion import DemotingEvictor
from kvevents.caches.inputs import Slots, Tokens
from kvevents.caches.layers import FullAttention, Layers
from kvevents.caches.loading import Loader
from kvevents.caches.node import Node
from kvevents.caches.restore import Restorer
from kvevents.caches.results import MatchResult, PrefetchResult
from kvevents.caches.settings import CacheSettings
from kvevents.caches.slots import SlotAllocator, join
from kvevents.caches.storage import TierStore
from kvevents.caches.storage_tier import StorageTier
from kvevents.caches.supply import Supply, joined
from kvevents.caches.tier_plan import TierPlan
from kvevents.caches.tiers import Tiers
from kvevents.caches.transfers import Copying, Move
from kvevents.caches.twins import Twins
from kvevents.caches.unified import UnifiedRadixCache
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import StorageMedium

WritePolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]
"""When a node is backed up to host memory: at its first insert, at its second, or when the device evicts it."""

SELECTIVE_HITS = 2
"""Inserts from which on a node is backed up by `write_through_selective`."""


class HiRadixCache(UnifiedRadixCache):
    """A prefix cache whose nodes outlive the device: in host memory.

    Args:
        host_tokens: units that host memory has room for.
        write_policy: when nodes are backed up.
        storage: copies the bytes, and keeps what is in host memory a tier below it. What it has kept over a restart is
            announced at once. By default there is nothing below host memory, and no bytes to copy.
        components: as for `UnifiedRadixCache`.
        host_allocators: the slots in host memory, by component; by default `host_tokens` for full attention, and for
            the others as many as on the device times host over device.
        load_back_threshold: units of full attention below which a load is not worth it.
        settings: as for `UnifiedRadixCache`.

    Raises:
        ConfigError: a setting is wrong in itself.
    """

    def __init__(
        self,
        *,
        host_tokens: int,
        write_policy: WritePolicy = "write_through",
        storage: TierStore | None = None,
        components: Sequence[FullAttention | Layers] = (),
        host_allocators: Mapping[str, SlotAllocator] | None = None,
        load_back_threshold: int = 10,
        **settings: Unpack[CacheSettings],
    ) -> None:
        if write_policy not in get_args(WritePolicy):
            raise ConfigError(f"write_policy: expected one of {', '.join(get_args(WritePolicy))}, got {write_policy!r}")
        super().__init__(components=components, **settings)
        self.write_policy = write_policy
        self._failures: Counter[str] = Counter()
        self._store = storage
        self._writes_back = write_policy == "write_back"
        self._tiers = Tiers(self._tree, self._full, self._components, keeps_duplicates=not self._writes_back)
        self._twins = Twins(self._tree)
        plan = TierPlan(self._tiers, self._components, self._twins, page_size=self.page_size)
        plan.add_host(host_tokens, host_allocators or {})
        self._storage = None if storage is None else plan.add_storage(storage, self._failures)
        self._backups = HostBackups(
            self._tiers,
            self._components,
            lock=self.lock,
            unlock=super().unlock,
            copy=self._copy_to_host,
            acknowledged=self._acknowledged,
            failures=self._failures,
        )
        self._parts = plan.parts
        for tier in self._tiers.lower:
            self._tree.follow(*tier.copies)
        self._tree.follow(self._backups.transfers, self._tiers, self._twins)
        if self._storage is not None:
            self._tree.follow(self._storage.transfers)
        self._evictor = DemotingEvictor(
            self._tree,
            self._full,
            self._beside,
            tiers=self._tiers,
            settle=self.wait,
            back_up=self._backups.back_up if self._writes_back else None,
        )
        self._loader = Loader(
            self._tiers,
            self._components,
            storage=self._storage,
            evictor=self._evictor,
            threshold=load_back_threshold,
            copy=self._copy_to_device,
            failures=self._failures,
        )
        if storage is not None and self._storage is not None:
            self._restore(storage, self._storage)

    @property
    def failures(self) -> Mapping[str, int]:
        """What went wrong in lower tiers so far, by reason; what was announced is true all the same."""
        return dict(self._failures)

    @property
    def fetched(self) -> int:
        """Units of full attention that loads have read from the store so far."""
        return 0 if self._storage is None else self._storage.fetched

    def match_prefix(
        self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> MatchResult:
        """Find the longest cached prefix of a prompt: on the device, and in all tiers together.

        The node is where the longer one ends: `load_back` takes it, and `lock` keeps it in whatever tiers it is.
        """
        prompt = self._tree.pages_of(tokens)
        root = self._tree.root(extra_key, cache_salt)
        if not len(prompt):
            return MatchResult(0, 0, join(()), root)
        walk = self._tree.walk(root, prompt, self._clock.match)
        on_device = self._usable(walk.path)
        gates = [component.gate(self._tiers.has(index)) for index, component in enumerate(self._components)]
        held = list(takewhile(self._tiers.is_held, walk.path))
        anywhere = longest(held, gates)
        end = anywhere[-1] if anywhere else root
        self._clock.matched(end)
        for component in self._components:
            component.used(end)
        self._tiers.note(walk.lowest)
        self._tiers.note(end)
        below = anywhere[len(on_device) :]
        host_length = sum(node.length for node in below if self._tiers.is_backed(node))
        slots = join([node.slots for node in on_device if node.slots is not None])
        return MatchResult(len(slots), host_length, slots, end, branch=held[-1].end if held else 0)

    def insert_host(
        self, tokens: Tokens, slots: Slots | None = None, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> PrefetchResult:
        """Cache a prompt's whole pages in host memory, to where its full-attention KV was brought from elsewhere.

        In write-back, pages that are on the device stay without a host copy.

        Args:
            tokens: the prompt.
            slots: host slots, one for each of `tokens`, of which the cache keeps those of the units in `filled`; by
                default it takes what it needs itself.
            extra_key: as for `insert`.
            cache_salt: as for `insert`.

        Raises:
            ValueError: a token id is negative or over 2^64-1, or slots are of the wrong number or in the cache already.
            CapacityError: host memory has no room and nothing that could go.
        """
        prompt = self._tree.pages_of(tokens)
        length = len(prompt) * self.page_size
        supply = None if slots is None else Supply.of("slots", slots, range(prompt.token_count))
        root = self._tree.root(extra_key, cache_salt)
        if not length:
            return PrefetchResult(0, 0, root)
        walk = self._tree.walk(root, prompt, self._clock.insert)
        self._tiers.note(walk.lowest)
        host = self._tiers.host.full
        gaps = [node for node in walk.path if not host.has(node) and not (self._writes_back and node.slots)]
        filled = [range(node.end - node.length, node.end) for node in gaps]
        end = walk.end
        prefix = end.end - sum(map(len, filled))
        if end.end < length:
            filled.append(range(end.end, length))
        taken = self._take_host(sum(map(len, filled)), end) if supply is None else supply.take(filled)
        if supply is not None:
            host.allocator.adopt(taken)
        if end.end < length:
            end = self._extend(end, prompt.cut(walk.pages, len(prompt)), 0)
            gaps.append(end)
        start = 0
        for node in gaps:
            host.hold(node, taken[start : start + node.length])
            start += node.length
            self._tiers.note(node)
        return PrefetchResult(prefix, length, end, joined(filled))

    def poll(self) -> None:
        """Begin copies that are due, and acknowledge and announce those that have arrived."""
        self._backups.transfers.poll()
        if self._storage is not None:
            self._storage.transfers.poll()

    def wait(self) -> None:
        """As `poll`, but wait until all copies have arrived; what they keep locked can be evicted then."""
        self._backups.transfers.wait()
        if self._storage is not None:
            self._storage.transfers.wait()

    def load_back(self, node: Node) -> bool:
        """Bring back to the device what a prompt that ends at `node` needs and lower tiers have.

        Waits for the copies and announces them. Others are evicted from the device for them where that must be.

        Returns:
            Whether something was loaded: False where there was nothing, too little, no room or an error, which
            `failures` counts.

        Raises:
            ValueError: the node is not in the cache any more, or another cache's.
        """
        self._check_own("load_back", node)
        if not node.is_root and node not in self._tree:
            raise ValueError("load_back: the node has left the cache; match the prompt again and load what that finds")
        return self._loader.load(node)

    def evict_host(self, num_tokens: int, component: str = "full") -> int:
        """Free at least so much of a component in host memory if so much can go; how much was freed."""
        return self._tiers.evict(self._tiers.host, self._index(component), num_tokens)

    def unlock(self, node: Node) -> None:
        self._check_own("unlock", node)
        if node.held == 1 and self._backups.is_locking(node):
            raise ValueError("unlock: the node is not locked, but for a backup of it")
        super().unlock(node)
        if node in self._tree:
            for at in self._full.span(node):
                self._tiers.bury(at)
            self._note_path(node)

    def reset(self) -> None:
        nodes = list(self._tree)
        self._backups.clear()
        if self._storage is not None:
            self._storage.clear(nodes)
        self._tiers.reset(nodes)
        self._twins.clear()
        super().reset()

    def holdings(self, component: str = "full") -> set[tuple[int, StorageMedium]]:
        held = super().holdings(component)
        index = self._index(component)
        for tier in self._tiers.lower:
            ids = tier.copies[index].ids
            held |= {(block, tier.medium) for node in self._tree for block in ids(node)}
        return held

    def check_integrity(self) -> None:
        super().check_integrity()
        nodes = list(self._tree)
        self._tiers.check_integrity(nodes)
        self._backups.transfers.check_integrity(nodes, self._tiers.host.copies)
        if self._storage is not None:
            self._storage.transfers.check_integrity(nodes, self._storage.copies)

    def _is_held(self, node: Node) -> bool:
        return self._tiers.is_held(node)

    def _moved(self, node: Node) -> None:
        self._tiers.note(node)

    def _before_take(self) -> None:
        self._twins.repair()

    def _inserted(self, insertion: Insertion, end: Node, inserted_length: int) -> None:
        """Back up what the policy says, if host memory has room."""
        path = self._full.span(end)
        for node in path:
            self._tiers.note(node)
        if self._writes_back:
            return
        hits = 1 if self.write_policy == "write_through" else SELECTIVE_HITS
        for node in path:
            if node.end > inserted_length and node.hits >= hits and not self._tiers.host.full.has(node):
                self._backups.submit_path(node)
        if path and insertion.prefix == insertion.length:
            self._backups.submit_rest(end)

    def _index(self, component: str) -> int:
        return self._components.index(self._component(component))

    def _make_room_below(self, end: Node, counts: Sequence[int]) -> None:
        try:
            super()._make_room_below(end, counts)
        finally:
            self._note_path(end)

    def _note_path(self, node: Node) -> None:
        """Take notice that the locks of a path have changed."""
        for at in self._full.span(node):
            self._tiers.note(at)

    def _refilled(self, gaps: Sequence[range], prefix: int) -> tuple[range, ...]:
        return joined([gap for gap in gaps if gap.stop <= prefix])

    def _take_host(self, count: int, end: Node) -> "array[int]":
        self._make_host_room(count, end)
        return self._tiers.host.full.take(count)

    def _make_host_room(self, count: int, end: Node) -> None:
        """Evict until so many host slots are free, and nothing on the path down to `end`.

        Raises:
            CapacityError: that is not possible.
        """
        host = self._tiers.host
        short = count - host.full.allocator.available
        if short <= 0:
            return
        with kept(self._components, end):
            freed = self._tiers.evict(host, 0, short)
        self._note_path(end)
        if freed < short:
            available = host.full.allocator.available
            message = f"{count} host slots were asked for, {available} are free and no others can be evicted"
            raise CapacityError(message, requested=count, available=available)

    def _restore(self, store: TierStore, storage: StorageTier) -> None:
        """Find the blocks a place in the tree that a store has kept, and let it forget the others."""
        restorer = Restorer(self._tree, storage, self._components, parts=self._parts)
        useless = restorer.restore(store.blocks())
        if useless:
            self._failures["storage_useless"] += len(useless)
            storage.forget(useless)

    def _acknowledged(self, node: Node) -> None:
        """Something of a node has arrived in host memory."""
        if self._storage is not None:
            self._storage.submit(node)

    def _copy_to_host(self, move: Move) -> Copying:
        if self._store is None:
            return None
        source, target = move.source.gather(move.nodes), move.target.gather(move.nodes)
        return self._store.copy(move.target.component.group, source, target, to_host=True)

    def _copy_to_device(self, component: Component, source: "array[int]", target: "array[int]") -> Copying:
        return None if self._store is None else self._store.copy(component.group, source, target, to_host=False)
