"""The mechanism that every prefix cache is made of."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kvevents._core.tokens import TokenPages
from kvevents.caches.announcer import Announcer
from kvevents.caches.clock import Clock
from kvevents.caches.component import Component, Insertion, kept, longest
from kvevents.caches.eviction import EvictionPolicy, find_policy
from kvevents.caches.evictor import Evictor
from kvevents.caches.full import FullComponent
from kvevents.caches.inputs import Slots, Tokens, check_labels
from kvevents.caches.layers import Layers, slots_of
from kvevents.caches.node import Node
from kvevents.caches.outlet import EventOutlet
from kvevents.caches.results import CachedLength, EvictResult, InsertResult, MatchResult, Sizes
from kvevents.caches.sessions import Sessions, SessionsLast
from kvevents.caches.slots import SlotAllocator, join
from kvevents.caches.supply import Supplies, joined, supplies_of
from kvevents.caches.tree import Tree
from kvevents.errors import ConfigError
from kvevents.events import StorageMedium
from kvevents.hashing import EventFormat
from kvevents.recorder import CacheGroup, EventRecorder

Gaps: TypeAlias = dict[Component, Sequence[range]]
"""The units that an insert needs slots for: of each component that it brings some of, in the order of components."""
Taken: TypeAlias = "dict[Component, array[int]]"
"""Slots for them."""


class PrefixCache(EventOutlet):
    """A tree of pages, the components that its nodes hold, and a recorder that is told what changes.

    The caches derive from it; each says which components it has and which clock.
    """

    dialect = "sglang"

    def __init__(
        self,
        *,
        page_size: int,
        capacity: int,
        eviction_policy: str | EvictionPolicy,
        bigram: bool,
        event_format: EventFormat,
        recorder: EventRecorder | None,
        allocator: SlotAllocator | None,
        clock: Clock,
        beside: Iterable[Layers] = (),
        announce_groups: bool = False,
        keep_sessions: bool = False,
    ) -> None:
        self.page_size = page_size
        self.bigram = bigram
        self.allocator = slots_of(allocator, capacity, page_size)
        self._recorder = EventRecorder(page_size, event_format=event_format) if recorder is None else recorder
        if self._recorder.page_size != page_size:
            raise ConfigError(f"recorder: expected one for pages of {page_size}, got {self._recorder.page_size}")
        group = CacheGroup(0, FullComponent.group) if announce_groups else None
        announcer = Announcer(self._recorder, group=group)
        policy = find_policy(eviction_policy)
        self._full = FullComponent(self.allocator, announcer, SessionsLast(policy) if keep_sessions else policy)
        self._beside = [
            layers.component(
                self._recorder, page_size=page_size, capacity=capacity, index=index, announce=announce_groups
            )
            for index, layers in enumerate(sorted(beside, key=lambda layers: layers.rank))
        ]
        self._components: list[Component] = [self._full, *self._beside]
        self._by_group = {component.group: component for component in self._components}
        self._clock = clock
        self._tree = Tree(page_size, bigram=bigram, clock=clock, contents=self._components)
        self._sessions = Sessions() if keep_sessions else None
        if self._sessions is not None:
            self._tree.follow(self._sessions)
            self._tree.on_detach = self._sessions.left
        self._parts = len(self._beside)
        self._evictor = Evictor(self._tree, self._full, self._beside)
        self._recorder.clear()

    @property
    def allocators(self) -> Mapping[str, SlotAllocator]:
        """Who hands out the slots of each component, by its name."""
        return {group: component.allocator for group, component in self._by_group.items()}

    @property
    def total(self) -> int:
        """Units in the tree."""
        return self._full.sizes.total

    @property
    def evictable(self) -> int:
        """Units that eviction could free."""
        return self._full.sizes.evictable

    @property
    def protected(self) -> int:
        """Units that are locked."""
        return self._full.sizes.protected

    def match_prefix(
        self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> MatchResult:
        """Find the longest cached prefix of a prompt that it can be continued from.

        With a sliding window that is where the window is whole, with state-space layers where there is a state. Counts
        as a use of it, and splits the node that the prompt leaves half-way; announces nothing. The match stays cached
        only while it is locked.

        Raises:
            ValueError: a token id is negative or over 2^64-1.
        """
        prompt = self._tree.pages_of(tokens)
        root = self._tree.root(extra_key, cache_salt)
        if not len(prompt):
            return MatchResult(0, 0, join(()), root)
        walk = self._tree.walk(root, prompt, self._clock.match)
        path = self._usable(walk.path) if self._beside else walk.path
        end = path[-1] if path else root
        self._clock.matched(end)
        for component in self._components:
            component.used(end)
        self._full.offer(walk.lowest)
        slots = join([node.slots for node in path if node.slots is not None])
        return MatchResult(end.end, 0, slots, end, branch=walk.end.end)

    def cached_length(
        self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> CachedLength:
        """How much of a prompt's full-attention KV is cached; it is no use of it. A hybrid model may reuse less."""
        return self._tree.cached(self._tree.root(extra_key, cache_salt), self._tree.pages_of(tokens), self._is_held)

    def insert(
        self,
        tokens: Tokens,
        slots: Slots | None = None,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,
        inserted_length: int = 0,
        window_slots: Slots | None = None,
        window_start: int = 0,
        state_slot: int | None = None,
    ) -> InsertResult:
        """Cache a prompt's whole pages and announce those that are new.

        Args:
            tokens: the prompt.
            slots: one for each of `tokens`; the class says whose they are afterwards. By default the cache takes what
                it needs, of all components, from the allocators, and evicts others for them where it must.
            extra_key: separates prompts, by adapter for instance.
            cache_salt: a tenant's secret that separates prompts and enters their hashes; an empty one is none.
            session_id: passed on in the events, for attribution; and with `keep_sessions` what the session has cached
                goes last, until `close_session`.
            priority: for the policy of that name; a path has the highest of its inserts.
            inserted_length: units of this prompt that were inserted before on behalf of the same request (chunked
                prefill): nodes within it count no further hit.
            window_slots: with `slots`, for a sliding window: one for each of `tokens[window_start:]`.
            window_start: units, in whole pages, whose window has passed already: no window KV is cached for them.
            state_slot: with `slots`, for state-space layers: the state after the last whole page.

        Raises:
            ValueError: a token id is negative or over 2^64-1, or slots are of the wrong number, not whole pages or
                in the cache already. Nothing was cached.
            CapacityError: the new pages do not fit even if all that is evictable goes. Nothing was cached or evicted.
        """
        check_labels(session_id, priority, inserted_length)
        prompt = self._tree.pages_of(tokens)
        length = len(prompt) * self.page_size
        supplies = supplies_of(
            prompt,
            slots,
            window_slots=window_slots,
            window_start=window_start,
            state_slot=state_slot,
            page_size=self.page_size,
            components=self._by_group,
        )
        root = self._tree.root(extra_key, cache_salt)
        if not length:
            return InsertResult(0, 0, root)
        walk = self._tree.walk(root, prompt, self._clock.insert)
        self._full.offer(walk.lowest)
        end = walk.end
        insertion = Insertion(walk.path, end.end, length, window_start, session_id)
        gaps = {
            component: component.missing(insertion)
            for component in self._components
            if supplies is None or component.group in supplies
        }
        taken = self._take(gaps, end) if supplies is None else self._adopt(gaps, supplies)
        for node in insertion.path:
            node.priority = max(node.priority, priority)
        if insertion.prefix < length:
            end = self._extend(end, prompt.cut(walk.pages, len(prompt)), priority)
            insertion.path.append(end)
        for component, found in taken.items():
            if found:
                component.fill(insertion, found, self._tree)
        for node in insertion.path:
            if node.end > inserted_length:
                node.hits += 1
        for component in self._components:
            component.used(end)
        if self._sessions is not None and session_id is not None:
            self._sessions.join(session_id, end)
        brought = self._brought(gaps) if self._beside else ((), False)
        self._inserted(insertion, end, inserted_length)
        return InsertResult(insertion.prefix, length, end, *brought, self._refilled(gaps[self._full], insertion.prefix))

    def evict(self, num_tokens: int = 0, *, window_tokens: int = 0, states: int = 0) -> EvictResult:
        """Free at least so much of each component if so much is evictable: in the order of each, all or nothing a node.

        A leaf of the tree goes as a whole. Inside the tree a node that loses its window loses its state too, since no
        prompt could end there any more; its full-attention KV stays, and that announces nothing unless groups are
        announced.

        Args:
            num_tokens: units of full attention, by the policy's order.
            window_tokens: units of a sliding window, the least recently used first.
            states: states, the least recently used first.
        """
        asked = {"full": num_tokens, "sliding_window": window_tokens, "mamba": states}
        freed = dict(zip(self._by_group, self._evictor.free([asked[group] for group in self._by_group]), strict=True))
        return EvictResult(freed["full"], freed.get("sliding_window", 0), freed.get("mamba", 0))

    def allocate(self, count: int, component: str = "full") -> "array[int]":
        """Lend slots of a component to the caller, rounded up to whole pages; evict for them where it must be.

        Raises:
            CapacityError: they are not there even if all that is evictable goes. Nothing was evicted.
        """
        allocator = self._component(component).allocator
        self._evictor.make_room([count if group == component else 0 for group in self._by_group])
        return allocator.allocate(count)

    def slots(self, node: Node, component: str = "full") -> memoryview:
        """The slots (int64, in order) of what a prompt that ends at `node` needs of a component.

        Of full attention all of its path, of a sliding window the pages that the window touches, of state-space layers
        its state.

        Raises:
            ValueError: the node is another cache's.
        """
        self._check_own("slots", node)
        return join(self._component(component).needed(node))

    def lock(self, node: Node) -> None:
        """Keep what a prompt that ends at `node` needs from eviction until `unlock`; locks are counted.

        That is the full-attention KV of the whole path, the last window's, and the state at its end.

        Raises:
            ValueError: the node is not in the cache any more, or another cache's.
        """
        self._check_own("lock", node)
        if not node.is_root:
            if node not in self._tree:
                raise ValueError("lock: the node has left the cache; match the prompt again and lock what that returns")
            for component in self._components:
                component.lock(node)
        node.held += 1

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of this node. What was locked before a `reset` may be unlocked after it, to no effect.

        Raises:
            ValueError: it is not locked, or another cache's.
        """
        self._check_own("unlock", node)
        if not node.held:
            raise ValueError("unlock: the node is not locked")
        node.held -= 1
        if not node.is_root and node in self._tree:
            for component in reversed(self._components):
                component.unlock(node)

    def close_session(self, session_id: str) -> bool:
        """A session has ended: what it alone has wanted is evicted in the usual order again.

        Announces nothing, since nothing is lost yet: removals follow when it is evicted. A later insert of the session
        opens it again.

        Returns:
            Whether anything was kept for it; never without `keep_sessions`.
        """
        wanted = [] if self._sessions is None else self._sessions.close(session_id)
        for node in wanted:
            self._moved(node)
        return bool(wanted)

    def reset(self) -> None:
        """Drop everything, locked or not, and announce that nothing is held any more."""
        nodes = list(self._tree)
        if self._sessions is not None:
            self._sessions.clear()
        for component in self._components:
            component.reset(nodes)
        self._tree.clear()
        self._recorder.clear()

    def holdings(self, component: str = "full") -> set[tuple[int, StorageMedium]]:
        """The published id of every block that is cached, with its tier.

        Args:
            component: of `sliding_window` or `mamba`, the blocks whose window KV or whose state is cached.
        """
        ids = self._component(component).ids
        return {(block, StorageMedium.GPU) for node in self._tree for block in ids(node)}

    def sizes(self, component: str) -> Sizes:
        """How much of a component (`full`, `sliding_window`, `mamba`) is in the tree, in units or states."""
        return self._component(component).sizes

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is broken, unless tree, sizes, slots and queues agree."""
        self._tree.check_integrity()
        nodes = list(self._tree)
        for component in self._components:
            component.check_integrity(nodes)
        if self._sessions is not None:
            self._sessions.check_integrity(nodes)

    def _component(self, name: str) -> Component:
        if name not in self._by_group:
            raise ValueError(f"component: expected one of {', '.join(self._by_group)}, got {name!r}")
        return self._by_group[name]

    def _is_held(self, node: Node) -> bool:
        return node.slots is not None

    def _moved(self, node: Node) -> None:
        """A node may have come to stand earlier in the order of eviction."""
        self._full.offer(node)

    def _check_own(self, call: str, node: Node) -> None:
        """Refuse what another cache has returned: to count a lock here would leave both caches with a wrong count."""
        if not isinstance(node, Node):
            raise TypeError(f"{call}: expected a node that the cache has returned, got {node!r}")
        if self._tree.is_foreign(node):
            raise ValueError(f"{call}: the node is another cache's; pass it to the cache that returned it")

    def _usable(self, path: list[Node]) -> list[Node]:
        """The part of a path that a prompt can be continued from."""
        return longest(path, [component.gate(component.has) for component in self._components])

    def _take(self, gaps: Gaps, end: Node) -> Taken:
        """Slots of the cache's own for what an insert needs that has found the path down to `end`."""
        counts = {component: sum(map(len, missing)) for component, missing in gaps.items()}
        for component, count in counts.items():
            if count > component.allocator.available:
                self._make_room_below(end, list(counts.values()))
                break
        return {component: component.take(count) for component, count in counts.items()}

    def _make_room_below(self, end: Node, counts: Sequence[int]) -> None:
        """Evict until so many slots of each component are free, and nothing on the path down to `end`."""
        with kept(self._components, end):
            self._evictor.make_room(counts)

    def _adopt(self, gaps: Gaps, supplies: Supplies) -> Taken:
        """The caller's slots for what an insert needs: taken over all or, where some are refused, none."""
        taken = {component: supplies[component.group].take(missing) for component, missing in gaps.items() if missing}
        for component, slots in taken.items():
            component.allocator.check(slots)
        for component, slots in taken.items():
            component.allocator.adopt(slots)
        return taken

    def _extend(self, parent: Node, pages: TokenPages, priority: int) -> Node:
        """A new node for pages that come after `parent`."""
        node = Node(
            pages,
            parent.chain.extend(pages),
            length=len(pages) * self.page_size,
            priority=priority,
            parts=self._parts,
        )
        self._tree.attach(node, parent)
        return node

    def _brought(self, gaps: Gaps) -> tuple[tuple[range, ...], bool]:
        """The units whose window an insert has brought, and whether it has brought the state."""
        found = {component.group: missing for component, missing in gaps.items()}
        return joined(found.get("sliding_window", ())), bool(found.get("mamba"))

    def _inserted(self, insertion: Insertion, end: Node, inserted_length: int) -> None:
        """A prompt is in the tree, down to `end`; `inserted_length` units of it were before, for the same request."""

    def _refilled(self, gaps: Sequence[range], prefix: int) -> tuple[range, ...]:  # noqa: ARG002 - tiers have some
        """What an insert says of full attention: the gaps that it has filled in the prefix."""
        return ()
