"""What every cache refuses, with nothing changed: bad ids, slots and locks."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from kvevents.caches import (
    BlockPoolCache,
    HiRadixCache,
    Mamba,
    MambaRadixCache,
    MemoryStore,
    RadixCache,
    SlidingWindow,
    SWARadixCache,
    UnifiedRadixCache,
)
from radix_prompts import A, B

Cache: TypeAlias = Any
"""Any of them: they have what is called here in common, but no class."""

TREES: dict[str, Callable[[], Cache]] = {
    "radix": lambda: RadixCache(page_size=4, capacity=64),
    "swa": lambda: SWARadixCache(page_size=4, capacity=64, sliding_window=8),
    "mamba": lambda: MambaRadixCache(page_size=4, capacity=64, mamba_slots=4),
    "unified": lambda: UnifiedRadixCache(page_size=4, capacity=64, components=[SlidingWindow(8), Mamba(4)]),
    "hierarchical": lambda: HiRadixCache(page_size=4, capacity=64, host_tokens=128, storage=MemoryStore(64)),
}
CACHES = {**TREES, "block_pool": lambda: BlockPoolCache(page_size=4, num_blocks=17)}


def state(cache: Cache) -> tuple[object, ...]:
    cache.check_integrity()
    return cache.holdings(), cache.total, cache.evictable, cache.protected, cache.take_events()


@pytest.fixture(params=CACHES)
def make(request: pytest.FixtureRequest) -> Callable[[], Cache]:
    made: Callable[[], Cache] = CACHES[request.param]
    return made


@pytest.mark.parametrize("token", [-1, 1 << 64, -(1 << 80)])
def test_token_ids_out_of_range(make: Callable[[], Cache], token: int) -> None:
    cache = make()
    cache.insert(A)
    cache.take_events()
    before = state(cache)
    for call in (cache.insert, cache.match_prefix):
        with pytest.raises(ValueError, match="token ids: expected 0 to"):
            call([*A, *B[:3], token])
    assert state(cache) == before


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("count", [0, 4, 7, 9])
def test_slots_of_the_wrong_number(name: str, count: int) -> None:
    cache = TREES[name]()
    cache.take_events()
    before = state(cache)
    others: dict[str, object] = {}
    if "sliding_window" in cache.allocators:
        others["window_slots"] = range(8)
    if "mamba" in cache.allocators:
        others["state_slot"] = 0
    with pytest.raises(ValueError, match=f"slots: expected 8, one a token, got {count}"):
        cache.insert(A + B, range(count), **others)
    assert state(cache) == before
    cache.insert(A + B, range(8), **others)
    cache.check_integrity()


@pytest.mark.parametrize("name", TREES)
def test_slots_that_no_memory_has(name: str) -> None:
    cache = TREES[name]()
    cache.take_events()
    before = state(cache)
    calls: list[dict[str, object]] = [{"slots": [*range(7), 1 << 63]}]
    if "mamba" in cache.allocators:
        calls.append({"slots": range(8), "state_slot": 1 << 63})
    for call in calls:
        with pytest.raises(ValueError, match="slots: expected signed 64-bit integers, got one beyond them"):
            cache.insert(A + B, **call)
    assert state(cache) == before


@pytest.mark.parametrize("other", [None, 3, [], "node"])
def test_what_is_no_node(make: Callable[[], Cache], other: object) -> None:
    cache = make()
    cache.lock(cache.insert(A).node)
    cache.take_events()
    before = state(cache)
    for call in (getattr(cache, name, None) for name in ("lock", "unlock", "slots", "load_back")):
        if call is not None:
            with pytest.raises(TypeError, match=f"{call.__name__}: expected a (node|run) that the cache has returned"):
                call(other)
    assert state(cache) == before


def test_unlock_without_lock(make: Callable[[], Cache]) -> None:
    cache = make()
    node = cache.insert(A).node
    if isinstance(cache, HiRadixCache):
        cache.poll()
    cache.lock(node)
    cache.unlock(node)
    before = state(cache)
    with pytest.raises(ValueError, match=r"unlock: the (node|run) is not locked"):
        cache.unlock(node)
    assert state(cache)[:4] == before[:4]


@pytest.mark.parametrize("prompt", [A, []], ids=["node", "root"])
def test_what_another_cache_has_returned(make: Callable[[], Cache], prompt: list[int]) -> None:
    """Also where both hold the same prompt in the same place, and where the other one was emptied since."""
    mine, other = make(), make()
    for cache in (mine, other):
        cache.lock(cache.insert(prompt).node)
        cache.take_events()
    theirs = other.match_prefix(prompt).node
    other.lock(theirs)
    before = state(mine), state(other)
    calls = [mine.lock, mine.unlock]
    if not isinstance(mine, BlockPoolCache):
        calls.append(mine.slots)
    if isinstance(mine, HiRadixCache):
        calls.append(mine.load_back)
    for call in calls:
        with pytest.raises(ValueError, match=f"{call.__name__}: the (node|run) is another cache's; pass it to the"):
            call(theirs)
    assert (state(mine), state(other)) == before
    if not isinstance(other, BlockPoolCache):  # a block pool is not emptied while blocks are held
        other.reset()
        with pytest.raises(ValueError, match="unlock: the node is another cache's"):
            mine.unlock(theirs)
    other.unlock(theirs)
    assert state(mine) == before[0]
