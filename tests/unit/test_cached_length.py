"""Asking how much of a prompt is cached is no use of it."""

import random
from collections.abc import Callable

import pytest

from kvevents.caches import BlockPoolCache, CachedLength, HiRadixCache, PrefixCache, RadixCache

PAGE = 4
MAKERS: dict[str, Callable[[], PrefixCache | BlockPoolCache]] = {
    "radix": lambda: RadixCache(page_size=PAGE, capacity=160),
    "hierarchical": lambda: HiRadixCache(page_size=PAGE, capacity=80, host_tokens=160),
    "block_pool": lambda: BlockPoolCache(page_size=PAGE, num_blocks=41),
}


@pytest.mark.parametrize("name", MAKERS)
def test_it_is_what_a_match_finds(name: str) -> None:
    cache = MAKERS[name]()
    dice = random.Random(5)
    for _ in range(300):
        prompt = [dice.randrange(2) for _ in range(dice.randrange(1, 40))]
        if dice.random() < 0.3:
            cache.insert(prompt)
            if isinstance(cache, HiRadixCache):
                cache.poll()
        cache.take_events()
        asked = cache.cached_length(prompt)
        assert cache.take_events() == []
        found = cache.match_prefix(prompt)
        below = found.host_length if isinstance(cache, HiRadixCache) else 0
        assert asked == (found.length, found.length + below)


@pytest.mark.parametrize("name", ["radix", "block_pool"])
def test_what_was_only_asked_for_goes_first(name: str) -> None:
    cache = MAKERS[name]()
    old, new = list(range(80)), list(range(100, 180))
    cache.insert(old)
    cache.insert(new)
    assert cache.cached_length(old) == CachedLength(80, 80)
    cache.evict(PAGE)
    assert cache.cached_length(old).total < 80
    assert cache.cached_length(new) == CachedLength(80, 80)


def test_namespaces_are_apart() -> None:
    cache = RadixCache(page_size=PAGE, capacity=160)
    cache.insert(list(range(8)), cache_salt="a")
    assert cache.cached_length(list(range(8)), cache_salt="a").total == 8
    assert cache.cached_length(list(range(8)), cache_salt="b").total == 0
    assert cache.cached_length(list(range(8))).total == 0


def test_what_has_left_the_device_is_still_in_host_memory() -> None:
    cache = HiRadixCache(page_size=PAGE, capacity=80, host_tokens=160)
    cache.insert(list(range(40)))
    cache.poll()
    cache.poll()
    cache.evict(40)
    assert cache.cached_length(list(range(40))) == CachedLength(0, 40)
