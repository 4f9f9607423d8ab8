"""KV memory of one rank: a prefix cache, and what running requests hold beside it."""

from typing import Any, Protocol

from kvevents.engine.request import Request


class CacheEnd(Protocol):
    """Where a prompt ends in the tree, as a match or an insert tells."""

    @property
    def length(self) -> int: ...
    @property
    def node(self) -> Any: ...


class PrefixCache(Protocol):
    """What the engine needs of a cache; every cache of `kvevents.caches` has it."""

    @property
    def total(self) -> int: ...
    @property
    def evictable(self) -> int: ...
    def match_prefix(
        self, tokens: "memoryview[int]", /, *, extra_key: str | None = None, cache_salt: str | None = None
    ) -> CacheEnd: ...
    def insert(
        self,
        tokens: "memoryview[int]",
        /,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,
        inserted_length: int = 0,
    ) -> CacheEnd: ...
    def evict(self, num_tokens: int, /) -> object: ...
    def lock(self, node: Any, /) -> object: ...
    def unlock(self, node: Any, /) -> object: ...


class KVMemory:
    """Room for `capacity` tokens, shared by the cache's tree and the requests that run.

        |  tree: locked  |  tree: evictable  |  private to requests  |  free  |
        |<---- shared -->|                   |<- allocated - shared->|

    A running request holds a locked path of the tree (`shared` tokens) and whole pages of its own. What it has
    computed moves into the tree by `store`. Not thread-safe.

    Args:
        cache: the prefix cache.
        capacity: tokens; a part smaller than a page is not used.
        page_size: tokens in a page.
    """

    def __init__(self, cache: PrefixCache, *, capacity: int, page_size: int) -> None:
        self.capacity = capacity // page_size * page_size
        self.page_size = page_size
        self._cache = cache
        self._private = 0

    @property
    def free(self) -> int:
        """Tokens that nobody holds."""
        return self.capacity - self._cache.total - self._private

    @property
    def available(self) -> int:
        """Tokens that can be had, by eviction if need be."""
        return self.free + self._cache.evictable

    @property
    def private(self) -> int:
        """Tokens that requests hold beside the tree."""
        return self._private

    def pages_up(self, tokens: int) -> int:
        """Tokens in the whole pages that hold `tokens`."""
        return -(-tokens // self.page_size) * self.page_size

    def pages_down(self, tokens: int) -> int:
        """Tokens in the whole pages that `tokens` fill."""
        return tokens // self.page_size * self.page_size

    def attach(self, request: Request) -> int:
        """Lock what the cache has of a request; returns its length. The last token is always computed anew."""
        match = self._cache.match_prefix(
            request.view[: self.pages_down(request.known - 1)],
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
        )
        self._cache.lock(match.node)
        request.node = match.node
        request.shared = request.allocated = request.computed = match.length
        return match.length

    def grow(self, request: Request, tokens: int) -> bool:
        """Room for `tokens` more than are computed; False, and nothing changed, where there is none."""
        allocated = self.pages_up(request.computed + tokens)
        short = allocated - request.allocated - self.free
        if short > 0:
            if self._cache.evictable < short:
                return False
            self._cache.evict(short)
        self._allocate(request, max(allocated, request.allocated))
        return True

    def fits(self, requests: list[Request], steps: int) -> bool:
        """Whether each request can have `steps` tokens more without an eviction."""
        need = sum(max(self.pages_up(r.computed + steps) - r.allocated, 0) for r in requests)
        return need <= self.free

    def trim(self, request: Request) -> None:
        """Give back pages beyond what is computed."""
        self._allocate(request, self.pages_up(request.computed))

    def store(self, request: Request) -> None:
        """Move the whole pages a request has computed into the tree, and lock them there."""
        whole = request.view[: self.pages_down(request.computed)]
        if len(whole) > request.shared:
            node = self._insert(request, whole)
            self._cache.lock(node)
            self._cache.unlock(request.node)
            request.node = node
            self._private -= len(whole) - request.shared
            request.shared = len(whole)
        self.trim(request)

    def release(self, request: Request, *, keep: bool) -> None:
        """Give back everything a request holds; with `keep` what it has computed stays in the tree, evictable."""
        whole = request.view[: self.pages_down(request.computed)]
        self._private -= request.allocated - request.shared
        if keep and len(whole) > request.shared:
            self._insert(request, whole)
        self._cache.unlock(request.node)
        request.node = None
        request.shared = request.allocated = request.computed = 0

    def check_integrity(self, running: list[Request]) -> None:
        """Raise AssertionError where the books do not balance.

        Args:
            running: every request that holds memory.
        """
        assert self._private == sum(request.allocated - request.shared for request in running)
        assert self.free >= 0, f"{-self.free} tokens more are held than there are"
        for request in running:
            assert request.shared <= request.computed <= request.allocated

    def _insert(self, request: Request, tokens: "memoryview[int]") -> Any:
        return self._cache.insert(
            tokens,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            session_id=request.session_id,
            priority=request.priority,
            inserted_length=request.shared,
        ).node

    def _allocate(self, request: Request, allocated: int) -> None:
        self._private += allocated - request.allocated
        request.allocated = allocated
