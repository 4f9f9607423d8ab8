"""The prefix cache of full attention."""

from array import array
from typing import Literal

from kvevents.caches.clock import WalkClock
from kvevents.caches.eviction import EvictionPolicy, find_policy
from kvevents.caches.inputs import Slots, Tokens
from kvevents.caches.node import Node
from kvevents.caches.results import EvictResult, InsertResult, MatchResult
from kvevents.caches.slots import PagedSlotAllocator, SlotAllocator, join, slot_array
from kvevents.caches.tree import Tree
from kvevents.caches.victims import VictimQueue
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import KVCacheEvent, StorageMedium
from kvevents.hashing import EventFormat
from kvevents.recorder import EventRecorder


class RadixCache:
    """A prefix cache for full attention: keeps the KV of past prompts by the page and announces each change.

    Prompts are cut to whole pages; what is left over is neither cached nor announced. Prompts in different namespaces
    (`extra_key`, `cache_salt`) share nothing. Not thread-safe: one cache is used by one thread.

    In the default event format two `extra_key`s without a registered adapter name publish the same ids for the same
    tokens, so that a consumer has to count. `event_format="dynamo"` gives each namespace ids of its own: the safe
    choice wherever the consumer reads it.

    Who owns slots: `insert` without slots takes them from `allocator` itself. An engine that computes first and caches
    later takes slots by `allocate`, passes those of the whole prompt to `insert`, and the cache keeps
    `slots[prefix_length:length]` of them; all others stay the caller's, who gives back the ones that were its own by
    `allocator.free`. What the cache keeps it gives back by eviction.

    Args:
        page_size: units in a page.
        capacity: slots of the KV memory, which the tree and the engine's running requests share; a last part shorter
            than a page is not used.
        eviction_policy: `lru`, `lfu`, `fifo`, `mru`, `filo`, `priority`, `slru`, or an `EvictionPolicy`.
        bigram: cache pairs of neighbouring tokens (EAGLE): n tokens are n - 1 units.
        event_format: `default` or `dynamo`, for the recorder that the cache makes itself.
        recorder: where changes are announced, with an event format and adapters' names of its own; one cache each.
        announce_groups: accepted as by every cache; changes nothing here, since full attention is the only group and
            its events say all there is to know.
        allocator: the KV memory, `capacity` slots; by default a `PagedSlotAllocator`.

    Raises:
        ConfigError: a setting is wrong in itself.
    """

    def __init__(
        self,
        *,
        page_size: int,
        capacity: int,
        eviction_policy: str | EvictionPolicy = "lru",
        bigram: bool = False,
        event_format: EventFormat = "default",
        recorder: EventRecorder | None = None,
        announce_groups: bool = False,  # noqa: ARG002 - common to all caches
        allocator: SlotAllocator | None = None,
    ) -> None:
        self.page_size = page_size
        self.bigram = bigram
        self.allocator = PagedSlotAllocator(capacity, page_size) if allocator is None else allocator
        if allocator is not None and allocator.capacity != capacity:
            raise ConfigError(f"capacity: expected the allocator's, {allocator.capacity}, got {capacity}")
        self._recorder = EventRecorder(page_size, event_format=event_format) if recorder is None else recorder
        if self._recorder.page_size != page_size:
            raise ConfigError(f"recorder: expected one for pages of {page_size}, got {self._recorder.page_size}")
        self._victims = VictimQueue(find_policy(eviction_policy))
        self._clock = WalkClock()
        self._clear()

    @property
    def total(self) -> int:
        """Units in the tree."""
        return self._evictable + self._protected

    @property
    def evictable(self) -> int:
        """Units that eviction could free."""
        return self._evictable

    @property
    def protected(self) -> int:
        """Units that are locked."""
        return self._protected

    def match_prefix(
        self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> MatchResult:
        """Find the longest cached prefix of a prompt.

        Counts as a use of it, and splits the node that the prompt leaves half-way; announces nothing. The match stays
        cached only while it is locked.

        Raises:
            ValueError: a token id is negative or over 2^64-1.
        """
        prompt = self._tree.pages_of(tokens)
        root = self._tree.root(extra_key, cache_salt)
        if not len(prompt):
            return MatchResult(0, 0, join(()), root)
        walk = self._tree.walk(root, prompt)
        self._victims.offer(walk.lowest)
        slots = join([node.slots for node in walk.path])
        return MatchResult(walk.pages * self.page_size, 0, slots, walk.end)

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
    ) -> InsertResult:
        """Cache a prompt's whole pages and announce those that are new.

        Args:
            tokens: the prompt.
            slots: one for each of `tokens`; the class says whose they are afterwards. By default the cache takes them
                from the allocator, and evicts others for them where it must.
            extra_key: separates prompts, by adapter for instance.
            cache_salt: a tenant's secret that separates prompts and enters their hashes; an empty one is none.
            session_id: passed on in the events, for attribution only.
            priority: for the policy of that name; a path has the highest of its inserts.
            inserted_length: units of this prompt that were inserted before on behalf of the same request (chunked
                prefill): nodes within it count no further hit.

        Raises:
            ValueError: a token id is negative or over 2^64-1, or the slots are of the wrong number, not whole pages or
                in the cache already. Nothing was cached.
            CapacityError: the new pages do not fit even if all that is evictable goes. Nothing was cached or evicted.
        """
        prompt = self._tree.pages_of(tokens)
        own = None if slots is None else slot_array(slots)
        if own is not None and len(own) != prompt.token_count:
            raise ValueError(f"slots: expected {prompt.token_count}, one a token, got {len(own)}")
        walk = self._tree.walk(self._tree.root(extra_key, cache_salt), prompt)
        prefix, length = walk.pages * self.page_size, len(prompt) * self.page_size
        end = walk.end
        if prefix < length:
            taken = self._take(length - prefix, walk.end) if own is None else own[prefix:length]
            self.allocator.adopt(taken)
            pages = prompt.cut(walk.pages, len(prompt))
            end = Node(pages, walk.end.chain.extend(pages), taken, priority=priority)
            self._tree.attach(end, walk.end)
            self._evictable += len(taken)
            self._recorder.store(end.chain, pages, session_id=session_id)
        self._count(walk.path, priority, inserted_length)
        if end is not walk.end and length > inserted_length:
            end.hits += 1
        self._victims.offer(walk.lowest)
        self._victims.offer(end)
        return InsertResult(prefix, length, end)

    def evict(self, num_tokens: int) -> EvictResult:
        """Free at least `num_tokens` units if so many are evictable: whole leaves in the order of the policy."""
        evicted = 0
        while evicted < num_tokens and (node := self._victims.pop()) is not None:
            evicted += self._drop(node)
        return EvictResult(evicted)

    def allocate(self, num_tokens: int) -> "array[int]":
        """Lend slots to the caller, rounded up to whole pages; evict for them where it must be.

        Raises:
            CapacityError: they are not there even if all that is evictable goes. Nothing was evicted.
        """
        self._make_room(num_tokens)
        return self.allocator.allocate(num_tokens)

    def lock(self, node: Node) -> None:
        """Keep a node and all above it from eviction until `unlock`; locks are counted.

        Raises:
            ValueError: the node is not in the cache any more.
        """
        if not node.is_root and node not in self._tree:
            raise ValueError("lock: the node has left the cache; match the prompt again and lock what that returns")
        at: Node | None = node
        while at is not None:
            if not at.locks:
                self._evictable -= len(at.slots)
                self._protected += len(at.slots)
            at.locks += 1
            at = at.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of this node. What was locked before a `reset` may be unlocked after it, to no effect.

        Raises:
            ValueError: it is not locked.
        """
        if not node.locks:
            raise ValueError("unlock: the node is not locked")
        counted = node in self._tree
        at: Node | None = node
        while at is not None:
            at.locks -= 1
            if counted and not at.locks:
                self._evictable += len(at.slots)
                self._protected -= len(at.slots)
            at = at.parent
        if counted:
            self._victims.offer(node)

    def reset(self) -> None:
        """Drop everything, locked or not, and announce that nothing is held any more."""
        self.allocator.release(join([node.slots for node in self._tree]))
        self._victims.clear()
        self._clear()

    def take_events(self) -> list[KVCacheEvent]:
        """The events since the last take, in order."""
        return self._recorder.take()

    def take_batch(
        self,
        *,
        ts: float | None = None,
        dp_rank: int | None = 0,
        dialect: Literal["sglang", "sglang-array"] = "sglang",
    ) -> bytes | None:
        """The events since the last take as one encoded batch; None where there are none.

        Args:
            ts: seconds since 1970; by default now.
            dp_rank: data-parallel rank of the engine.
            dialect: the wire format.
        """
        return self._recorder.take_batch(ts=ts, dp_rank=dp_rank, dialect=dialect)

    def holdings(self) -> set[tuple[int, StorageMedium]]:
        """The published id of every block that is cached, with its tier."""
        ids = (self._recorder.announced_ids(node.chain) for node in self._tree)
        return {(block, StorageMedium.GPU) for run in ids for block in run}

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is broken, unless tree, sizes, slots and queue agree."""
        self._tree.check_integrity()
        evictable = protected = 0
        slots: set[int] = set()
        for node in self._tree:
            slots.update(node.slots)
            if node.locks:
                protected += len(node.slots)
                continue
            evictable += len(node.slots)
            if not node.children:
                self._victims.check(node)
        sizes = (self._evictable, self._protected)
        assert sizes == (evictable, protected), f"sizes are {sizes}, the nodes have {(evictable, protected)}"
        assert len(slots) == self.total, f"{self.total - len(slots)} slots are in the tree twice"
        room = self.allocator.capacity - self.allocator.available
        assert self.total <= room, f"{self.total} slots are in the tree, but only {room} are not free"

    def _clear(self) -> None:
        self._tree = Tree(self.page_size, bigram=self.bigram, clock=self._clock)
        self._evictable = 0
        self._protected = 0
        self._recorder.clear()

    def _count(self, path: list[Node], priority: int, inserted_length: int) -> None:
        """Note an insert on the nodes that it found."""
        end = 0
        for node in path:
            end += len(node.slots)
            node.priority = max(node.priority, priority)
            if end > inserted_length:
                node.hits += 1

    def _take(self, count: int, parent: Node) -> "array[int]":
        """Slots for a new child of `parent`, which stays."""
        if self.allocator.available >= count:
            return self.allocator.allocate(count)
        self.lock(parent)
        try:
            return self.allocate(count)
        finally:
            self.unlock(parent)

    def _make_room(self, count: int) -> None:
        short = count - self.allocator.available
        if short > self._evictable:
            available = self.allocator.available + self._evictable
            message = f"{count} slots were asked for, {available} are free or evictable, {self._protected} are locked"
            raise CapacityError(message, requested=count, available=available)
        self.evict(short)

    def _drop(self, node: Node) -> int:
        """Evict a leaf."""
        parent = self._tree.detach(node)
        self._recorder.remove(node.chain)
        self.allocator.release(node.slots)
        self._evictable -= len(node.slots)
        self._victims.offer(parent)
        return len(node.slots)
