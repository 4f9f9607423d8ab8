"""The prefix cache of vLLM: a pool of blocks, without a tree."""

from typing import Literal, NamedTuple, TypeAlias

from kvevents._core.block_pool import BlockPool
from kvevents._core.tokens import TokenPages
from kvevents.caches.inputs import Slots, Tokens, check_labels
from kvevents.caches.outlet import EventOutlet
from kvevents.caches.results import CachedLength, EvictResult
from kvevents.errors import CapacityError
from kvevents.events import StorageMedium
from kvevents.hashing import HashChain
from kvevents.recorder import EventRecorder

VllmHashScheme: TypeAlias = Literal[
    "vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin"
]
"""Those of `HashScheme` that are vLLM's."""


class CachedRun:
    """The leading pages of a prompt and the blocks that held them when it was looked up: what `lock` takes.

    Attributes:
        chain: the pages.
        blocks: one a page (int64).
        locks: how often it is locked.
        pool: whose blocks they are.
    """

    __slots__ = ("blocks", "chain", "locks", "pool")

    def __init__(self, chain: HashChain, blocks: memoryview, pool: BlockPool) -> None:
        self.chain = chain
        self.blocks = blocks
        self.pool = pool
        self.locks = 0

    def __repr__(self) -> str:
        return f"<CachedRun: {len(self.chain)} pages, {self.locks} locks>"


class PoolMatch(NamedTuple):
    """The longest cached prefix of a prompt, as `MatchResult`."""

    length: int
    """Tokens whose KV is on the device."""
    host_length: int
    """Always 0: there is no lower tier."""
    slots: memoryview
    """int64, one a token of `length`, in order; read-only."""
    node: CachedRun
    """What `lock` takes."""


class PoolInsert(NamedTuple):
    """What an insert found and added, as `InsertResult`."""

    prefix_length: int
    """Tokens that were cached before."""
    length: int
    """Tokens that are cached now: the whole pages of the prompt."""
    node: CachedRun
    """What `lock` takes."""


class BlockPoolCache(EventOutlet):
    """vLLM's prefix cache for full attention: numbered blocks, found by what fills them, reused in one queue.

    A sequence takes blocks, publishes each one it has filled, and releases them all at its end; published blocks stay
    in the cache until their turn to be taken again comes. An engine works with `chain`, `lookup`, `hold`, `take`,
    `publish` and `release`, as vLLM does. `match_prefix`, `insert`, `lock`, `unlock` and `evict` are what all caches
    have, built from these: an insert is a request that computes exactly its prompt and ends. Not thread-safe: one cache
    is used by one thread.

    Events are vLLM's own: one removal a block, one store a run, cache group 0, salt and adapter in `extra_keys`.
    Equal pages may lie in several blocks. Each copy is announced, so that a consumer has to count.

    Where this cache differs from the others: its capacity is its blocks; there are no policies (the queue is the
    policy), no pairs, no lower tier; the cache hands out its slots itself (`insert` takes none); `reset` is refused
    while a block is held.

    Args:
        num_blocks: blocks of the KV memory, as vLLM's `num_gpu_blocks`: block 0 is a placeholder that is never used.
        page_size: tokens in a block.
        scheme: how blocks are hashed.
        hash_seed: PYTHONHASHSEED of the engine; None: not set, as only the schemes of SHA-256 allow.
        recorder: where changes are announced; by default one that merges nothing, as vLLM does. One cache each.

    Raises:
        ConfigError: a setting is wrong in itself.
    """

    dialect = "vllm"

    def __init__(
        self,
        *,
        num_blocks: int,
        page_size: int = 16,
        scheme: VllmHashScheme = "vllm-sha256-cbor",
        hash_seed: str | None = None,
        recorder: EventRecorder | None = None,
    ) -> None:
        self.page_size = page_size
        self._scheme = scheme
        self._hash_seed = hash_seed
        self._recorder = EventRecorder(page_size, coalesce="off") if recorder is None else recorder
        self._pool = BlockPool(num_blocks, page_size, scheme, self._recorder)
        self._root(None, None)  # refuses a seed that the scheme cannot use

    @property
    def capacity(self) -> int:
        """Tokens that fit, those of the placeholder not counted."""
        return (self._pool.num_blocks - 1) * self.page_size

    @property
    def total(self) -> int:
        """Tokens in published blocks."""
        return self._pool.labelled * self.page_size

    @property
    def evictable(self) -> int:
        """Those of them in blocks that nobody holds."""
        return self._pool.evictable * self.page_size

    @property
    def protected(self) -> int:
        """Those of them in blocks that somebody holds."""
        return self.total - self.evictable

    @property
    def free_blocks(self) -> int:
        """Blocks that can be taken: nobody holds them, whether they are published or not."""
        return self._pool.free

    def chain(
        self,
        tokens: Tokens,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        adapter_path: str | None = None,
    ) -> HashChain:
        """The hashes of a prompt's whole pages, by which blocks are found and published.

        Args:
            tokens: the prompt; what is left after the last whole page has no hash.
            extra_key: the adapter's name.
            cache_salt: the tenant's salt; an empty one is none.
            adapter_path: where the adapter was loaded from, which vLLM hashes too.

        Raises:
            ValueError: a token id is negative or over 2^64-1.
        """
        root = self._root(extra_key, cache_salt, adapter_path)
        return root.extend(TokenPages(tokens, self.page_size))

    def lookup(self, chain: HashChain) -> memoryview:
        """The blocks (int64) that hold the leading pages of a chain, up to the first page that no block holds.

        Of several blocks with the same page the one published first. Changes nothing, not even the order of reuse.
        """
        return self._pool.lookup(chain)

    def cached_length(
        self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> CachedLength:
        """How much of a prompt is cached; changes nothing, not even the order of reuse."""
        length = len(self.lookup(self.chain(tokens, extra_key=extra_key, cache_salt=cache_salt))) * self.page_size
        return CachedLength(length, length)

    def parked(self, blocks: Slots) -> int:
        """How many of some blocks nobody holds: they are free now, but not once these are held."""
        return self._pool.parked(blocks)

    def hold(self, blocks: Slots) -> None:
        """Hold blocks, as found, until `release`; they are counted.

        Raises:
            ValueError: there is no such block.
        """
        self._pool.hold(blocks)

    def take(self, count: int) -> memoryview:
        """Hold the next `count` blocks (int64) of the queue; what was published in them is gone, and announced so.

        Raises:
            CapacityError: fewer are free. Nothing was taken.
        """
        taken = self._pool.take(count)
        if taken is None:
            raise self._short(count * self.page_size, self._pool.free * self.page_size)
        return taken

    def publish(self, blocks: Slots, chain: HashChain, tokens: Tokens, *, session_id: str | None = None) -> None:
        """Let blocks be found as the pages of `chain`, and announce them as one run.

        That other blocks hold the same pages makes no difference: these are copies, announced again and later removed
        again.

        Args:
            blocks: one a page, held and not published yet.
            chain: the pages that fill them.
            tokens: exactly their tokens.
            session_id: attribution only.

        Raises:
            ValueError: one of these is not so. Nothing was published.
        """
        self._pool.publish(blocks, chain, tokens, session_id=session_id)

    def release(self, blocks: Slots) -> None:
        """Give back the blocks of a sequence, passed in its order; the last is given back first.

        What nobody holds any more goes to the back of the queue if it is published, so that the tail of a sequence is
        evicted before its head; else to the front.

        Raises:
            ValueError: nobody holds one of them. Nothing was released.
        """
        self._pool.release(blocks)

    def match_prefix(self, tokens: Tokens, *, extra_key: str | None = None, cache_salt: str | None = None) -> PoolMatch:
        """Find the longest cached prefix of a prompt, whole prompts included. Changes nothing.

        The match stays cached only while it is locked.

        Raises:
            ValueError: a token id is negative or over 2^64-1.
        """
        chain = self.chain(tokens, extra_key=extra_key, cache_salt=cache_salt)
        blocks = self._pool.lookup(chain)
        found, _ = chain.split(len(blocks))
        return PoolMatch(
            len(blocks) * self.page_size, 0, self._pool.slots(blocks), CachedRun(found, blocks, self._pool)
        )

    def insert(
        self,
        tokens: Tokens,
        slots: Slots | None = None,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,  # noqa: ARG002 - common to all caches
    ) -> PoolInsert:
        """Cache a prompt's whole pages and announce those that are new.

        Args:
            tokens: the prompt.
            slots: None: the cache takes blocks itself. An engine with blocks of its own took them by `take`, and
                publishes them by `publish`.
            extra_key: the adapter's name.
            cache_salt: a tenant's secret that separates prompts and enters their hashes; an empty one is none.
            session_id: passed on in the events, for attribution only.
            priority: accepted as by every cache; changes nothing, since blocks are reused in one queue.

        Raises:
            ValueError: a token id is negative or over 2^64-1, or slots were passed. Nothing was cached.
            CapacityError: the new pages do not fit. Nothing was cached or evicted.
        """
        if slots is not None:
            raise ValueError("slots: a block pool hands out its own blocks; take them by `take` and `publish` them")
        check_labels(session_id)
        pages = TokenPages(tokens, self.page_size)
        chain = self._root(extra_key, cache_salt).extend(pages)
        found = self._pool.lookup(chain)
        missing = len(chain) - len(found)
        available = self._pool.free - self._pool.parked(found)
        if missing > available:
            raise self._short(missing * self.page_size, available * self.page_size)
        self._pool.hold(found)
        taken = self.take(missing)
        if missing:
            _, new = chain.split(len(found))
            self._pool.publish(taken, new, pages.cut(len(found), len(chain)), session_id=session_id)
        blocks = memoryview(bytes(found) + bytes(taken)).cast("q")
        self._pool.release(blocks)
        return PoolInsert(
            len(found) * self.page_size, len(chain) * self.page_size, CachedRun(chain, blocks, self._pool)
        )

    def evict(self, num_tokens: int) -> EvictResult:
        """Forget at least `num_tokens` tokens if so many are evictable, those whose turn comes next.

        Only `take` evicts in vLLM; this does ahead of time what takes would do. The blocks keep their places in the
        queue, so the order of later takes stays the same.
        """
        count = -(-max(num_tokens, 0) // self.page_size)
        return EvictResult(self._pool.evict(count) * self.page_size)

    def lock(self, node: CachedRun) -> None:
        """Keep the blocks of a match or an insert until `unlock`; locks are counted.

        Raises:
            ValueError: a block was taken for something else since, or the run is another cache's. Nothing was locked.
        """
        self._check_own("lock", node)
        self._pool.hold(node.blocks, node.chain)
        node.locks += 1

    def unlock(self, node: CachedRun) -> None:
        """Undo one `lock` of this run.

        Raises:
            ValueError: it is not locked, or another cache's.
        """
        self._check_own("unlock", node)
        if not node.locks:
            raise ValueError("unlock: the run is not locked")
        self._pool.release(node.blocks)
        node.locks -= 1

    def reset(self) -> None:
        """Drop everything and announce it; the order of reuse stays.

        Raises:
            ValueError: blocks are held. Nothing was dropped.
        """
        if not self._pool.reset():
            held = self._pool.num_blocks - 1 - self._pool.free
            raise ValueError(f"reset: {held} blocks are held; release or unlock them first")

    def holdings(self) -> set[tuple[int, StorageMedium]]:
        """The id of every page that is cached, with its tier.

        Ids are int64, as `HashChain.ids`; on vLLM's wire the same 64 bits are an unsigned integer.
        """
        return {(block, StorageMedium.GPU) for block in self._pool.ids()}

    def reuse_order(self) -> memoryview:
        """The blocks (int64) that nobody holds, next to be taken first."""
        return self._pool.queue()

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is broken, unless queue, holders and labels agree."""
        self._pool.check_integrity()

    def _check_own(self, call: str, node: CachedRun) -> None:
        if not isinstance(node, CachedRun):
            raise TypeError(f"{call}: expected a run that the cache has returned, got {node!r}")
        if node.pool is not self._pool:
            raise ValueError(f"{call}: the run is another cache's; pass it to the cache that returned it")

    def _root(self, extra_key: str | None, cache_salt: str | None, adapter_path: str | None = None) -> HashChain:
        return HashChain.root(
            self.page_size,
            scheme=self._scheme,
            extra_key=extra_key,
            cache_salt=cache_salt,
            hash_seed=self._hash_seed,
            adapter_path=adapter_path,
        )

    def _short(self, requested: int, available: int) -> CapacityError:
        message = f"room for {requested} tokens was asked for, blocks for {available} of {self.capacity} can be taken"
        return CapacityError(message, requested=requested, available=available)
