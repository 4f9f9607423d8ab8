"""KV memory of one rank: a prefix cache, and what running requests hold beside it."""

from typing import Any, NamedTuple

from kvevents.caches import HiRadixCache
from kvevents.engine.pool import CacheMatch, Pool, PrefixCache
from kvevents.engine.request import Request


class Loaded(NamedTuple):
    """What was brought up from lower tiers, in tokens."""

    to_device: int
    """Copied from host memory."""
    to_host: int
    """Of them, read from the store below it first."""


class KVMemory:
    """Room for what requests compute, in pools that they share with the cache's tree: one a component.

    A running request holds a locked path of the tree (`shared` tokens) and whole pages of its own. What it has
    computed moves into the tree by `store`.

        tokens  |  shared: in the tree, locked  |  private, full attention                |
        window                    |<- locked -->|  given back  |  private, sliding window |
                                                ^ shared       ^ window_start   allocated ^

    With state-space layers it has a state too, which `store` copies at the ends of what it moves. What a cache with
    tiers has of a request below the device is loaded when the request is attached. Not thread-safe.

    Args:
        cache: the prefix cache.
        page_size: tokens in a page.
        sliding_window: tokens before the next one that the cache's sliding window reaches; 0: it has none.
    """

    def __init__(self, cache: PrefixCache, *, page_size: int, sliding_window: int = 0) -> None:
        self.page_size = page_size
        self._cache = cache
        self._tiers = cache if isinstance(cache, HiRadixCache) else None
        self._loaded = Loaded(0, 0)
        self._full = Pool(cache, "full")
        self._window = Pool(cache, "sliding_window") if sliding_window else None
        self._states = Pool(cache, "mamba") if "mamba" in cache.allocators else None
        self._window_size = self.pages_up(sliding_window)
        self.capacity = self._full.capacity
        self._is_tight = self._window is not None and self._window.capacity < self.capacity

    @property
    def free(self) -> int:
        """Tokens of full attention that nobody holds."""
        return self._full.free

    @property
    def available(self) -> int:
        """Tokens of full attention that can be had, by eviction if need be."""
        return self._full.available

    @property
    def private(self) -> int:
        """Tokens of full attention that requests hold beside the tree."""
        return self._full.private

    def pages_up(self, tokens: int) -> int:
        """Tokens in the whole pages that hold `tokens`."""
        return -(-tokens // self.page_size) * self.page_size

    def pages_down(self, tokens: int) -> int:
        """Tokens in the whole pages that `tokens` fill."""
        return tokens // self.page_size * self.page_size

    def attach(self, request: Request) -> int:
        """Lock what the cache has of a request; returns its length. The last token is always computed anew."""
        match = self._match(request, self.pages_down(request.known - 1))
        if self._load_back(match):
            match = self._match(request, self.pages_down(request.known - 1))
        request.branch = match.branch
        if match.node.end > match.length:
            # What stays in lower tiers is of no use to the request: to lock it might take the room that it needs.
            match = self._match(request, match.length)
        self._lock(request, match.node, match.length)
        request.shared = request.allocated = request.computed = request.window_start = match.length
        return match.length

    def take_loaded(self) -> Loaded:
        """What was loaded since this was last asked."""
        loaded, self._loaded = self._loaded, Loaded(0, 0)
        return loaded

    def poll(self) -> None:
        """A step has run, or requests have gone: copies to lower tiers go on."""
        if self._tiers is not None:
            self._tiers.poll()

    def grow(self, request: Request, tokens: int) -> bool:
        """Room for `tokens` more than are computed, and a state; False, and nothing changed, where there is none."""
        allocated = max(self.pages_up(request.computed + tokens), request.allocated)
        more = allocated - request.allocated
        wanted = [(self._full, more)]
        if self._window is not None:
            wanted.append((self._window, more))
        if self._states is not None and not request.has_state:
            wanted.append((self._states, 1))
        if not self._has_room(wanted):
            return False
        for pool, count in wanted:
            pool.take(count)
        request.allocated = allocated
        request.has_state = self._states is not None
        return True

    def fits(self, requests: list[Request], steps: int) -> bool:
        """Whether each request can have `steps` tokens more without an eviction."""
        need = sum(max(self.pages_up(r.computed + steps) - r.allocated, 0) for r in requests)
        return need <= self.free and (self._window is None or need <= self._window.free)

    def trim(self, request: Request) -> None:
        """Give back pages beyond what is computed, and window KV that no later token sees."""
        spare = request.allocated - self.pages_up(request.computed)
        request.allocated -= spare
        self._full.private -= spare
        if self._window is not None:
            start = max(self.pages_down(request.computed) - self._window_size, request.window_start)
            self._window.private -= spare + start - request.window_start
            request.window_start = start

    def store(self, request: Request) -> None:
        """Move the whole pages a request has computed into the tree, and lock them there.

        Where states are short, with none that could be evicted for a copy, pages stay the request's own until later.
        """
        computed = self.pages_down(request.computed)
        for length in (request.branch, computed) if self._states is not None else (computed,):
            if request.shared < length <= computed and (self._states is None or self._states.available > 0):
                self._move(request, length)
        self.trim(request)

    def release(self, request: Request, *, keep: bool) -> None:
        """Give back everything a request holds; with `keep` what it has computed stays in the tree, evictable."""
        if self._states is not None:
            self._states.private -= request.has_state
        request.has_state = False
        computed = self.pages_down(request.computed)
        if keep and computed > request.shared:
            self._move(request, computed)
        self._full.private -= request.allocated - request.shared
        if self._window is not None:
            self._window.private -= request.allocated - request.window_start
        self._cache.unlock(request.node)
        request.node = None
        request.shared = request.allocated = request.computed = request.window_start = request.branch = 0

    def check_integrity(self, running: list[Request]) -> None:
        """Raise AssertionError where the books do not balance.

        Args:
            running: every request that holds memory.
        """
        held = [(self._full, sum(request.allocated - request.shared for request in running))]
        if self._window is not None:
            held.append((self._window, sum(request.allocated - request.window_start for request in running)))
        if self._states is not None:
            held.append((self._states, sum(request.has_state for request in running)))
        for pool, private in held:
            assert pool.private == private, f"{pool.private} are counted as private, requests hold {private}"
            assert pool.free >= 0, f"{-pool.free} more are held than there are"
        for request in running:
            assert self._window is None or request.shared <= request.window_start <= request.allocated
            assert request.shared <= request.computed <= request.allocated

    def _move(self, request: Request, length: int) -> None:
        """Move the first `length` tokens into the tree and lock them, in place of what was locked before."""
        node = self._cache.insert(
            request.view[:length],
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            session_id=request.session_id,
            priority=request.priority,
            inserted_length=request.shared,
            window_start=min(request.window_start, length),
        ).node
        before = request.node
        self._lock(request, node, length)
        self._cache.unlock(before)
        self._full.private -= length - request.shared
        if self._window is not None:
            start = max(request.window_start, length)
            self._window.private -= start - request.window_start
            request.window_start = start
        if self._states is not None:
            self._states.make_room(0)
        request.shared = length

    def _load_back(self, match: CacheMatch) -> bool:
        """Bring to the device what lower tiers have of a match, if there is room beside the running requests."""
        if self._tiers is None or match.node.end <= match.length:
            return False
        missing = match.node.end - len(self._tiers.slots(match.node))
        wanted = [(self._full, missing)]
        if self._window is not None:
            wanted.append((self._window, self._window_size + self.page_size))
        if self._states is not None:
            wanted.append((self._states, 1))
        self._tiers.lock(match.node)
        try:
            if not self._has_room(wanted):
                return False
            for pool, count in wanted:
                pool.make_room(count)
            fetched = self._tiers.fetched
            is_loaded = self._tiers.load_back(match.node)
        finally:
            self._tiers.unlock(match.node)
        more = max(missing, min(match.node.end - match.length, self._window_size)) if is_loaded else 0
        self._loaded = Loaded(self._loaded.to_device + more, self._loaded.to_host + self._tiers.fetched - fetched)
        return is_loaded

    def _has_room(self, wanted: list[tuple[Pool, int]]) -> bool:
        """Whether so much can be had of each pool; where it could not, copies under way are waited for first."""
        if all(count <= pool.available for pool, count in wanted):
            return True
        if self._tiers is None:
            return False
        self._tiers.wait()
        return all(count <= pool.available for pool, count in wanted)

    def _lock(self, request: Request, node: Any, length: int) -> None:
        """Lock a path of the tree."""
        if self._is_tight and length > self._window_size:
            # A lock takes whole nodes; a match splits one, here where the window begins.
            self._match(request, length - self._window_size)
        self._cache.lock(node)
        request.node = node

    def _match(self, request: Request, length: int) -> CacheMatch:
        return self._cache.match_prefix(
            request.view[:length], extra_key=request.extra_key, cache_salt=request.cache_salt
        )
