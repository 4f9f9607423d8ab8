"""What a cache with host memory announces, step by step, and what it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvevents.caches import HiRadixCache, Mamba, MemoryStore, PagedSlotAllocator, SlidingWindow
from kvevents.errors import CapacityError, ConfigError
from kvevents.events import BlockRemoved, BlockStored
from residency import Residency
from tier_model import LateCopy, MoodyStore

PAGE = 2
A, B, C = ([n * 100 + i for i in range(8)] for n in (1, 2, 3))


def make(**settings: Any) -> HiRadixCache:
    chosen: dict[str, Any] = {"page_size": PAGE, "capacity": 16, "host_tokens": 32, "load_back_threshold": 1}
    return HiRadixCache(**chosen | settings)


def news(cache: HiRadixCache) -> list[str]:
    """The events since the last take, as `+GPU 4`: four blocks more on the device."""
    told = []
    for event in cache.take_events():
        if isinstance(event, BlockStored | BlockRemoved):
            sign = "+" if isinstance(event, BlockStored) else "-"
            told.append(f"{sign}{event.medium} {len(event.block_hashes)}")
        else:
            told.append("clear")
    cache.check_integrity()
    return told


def test_write_through() -> None:
    cache = make()
    assert news(cache) == ["clear"]
    cache.insert(A)
    assert news(cache) == ["+GPU 4"]
    cache.poll()
    assert news(cache) == ["+CPU_PINNED 4"]
    cache.evict(8)
    assert news(cache) == ["-GPU 4"]
    match = cache.match_prefix(A)
    assert (match.length, match.host_length, len(match.slots)) == (0, 8, 0)
    assert cache.load_back(match.node)
    assert news(cache) == ["+GPU 4"]
    cache.evict(8)
    assert cache.insert(A).refilled == (range(8),)
    assert news(cache) == ["-GPU 4", "+GPU 4"]
    cache.poll()
    assert news(cache) == []
    cache.evict(8)
    assert cache.evict_host(1) == 8
    assert news(cache) == ["-GPU 4", "-CPU_PINNED 4"]
    assert cache.match_prefix(A).node.is_root


def test_a_backup_that_is_not_acknowledged_keeps_what_it_reads() -> None:
    cache = make()
    cache.insert(A)
    assert cache.evict(8).tokens == 0
    assert cache.evictable == 0
    cache.poll()
    assert cache.evict(8).tokens == 8


def test_a_pending_node_that_is_split_announces_both_parts_prefix_first() -> None:
    cache = make()
    ids = [block for block, _ in sorted(cache.holdings())]
    assert ids == []
    cache.insert(A)
    cache.insert([*A[:4], 9, 9])
    stored = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    chain = [block for event in stored for block in event.block_hashes][:4]
    cache.poll()
    stored = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert [block for event in stored for block in event.block_hashes][:4] == chain
    assert {event.medium for event in stored} == {"CPU_PINNED"}
    cache.check_integrity()


def test_selective_waits_for_the_second_insert() -> None:
    cache = make(write_policy="write_through_selective")
    cache.insert(A)
    cache.poll()
    assert news(cache) == ["clear", "+GPU 4"]
    cache.insert([*A, *B[:4]])
    cache.poll()
    assert news(cache) == ["+GPU 2", "+CPU_PINNED 4"]
    cache.evict(12)
    assert news(cache) == ["-GPU 6"]
    assert cache.match_prefix([*A, *B[:4]]).host_length == 8


def test_write_back_copies_when_the_device_evicts() -> None:
    cache = make(write_policy="write_back", host_tokens=8)
    cache.insert(A)
    cache.insert(B)
    cache.poll()
    assert news(cache) == ["clear", "+GPU 4", "+GPU 4"]
    cache.insert(C)
    assert news(cache) == ["+CPU_PINNED 4", "-GPU 4", "+GPU 4"]
    cache.evict(8)
    assert news(cache) == ["-CPU_PINNED 4", "+CPU_PINNED 4", "-GPU 4"]


def test_write_back_without_room_on_the_host_drops_what_lies_below() -> None:
    cache = make(write_policy="write_back", host_tokens=4)
    cache.insert([*A[:6]])
    cache.insert([*A[:6], 7, 7])
    cache.evict(2)
    assert news(cache) == ["clear", "+GPU 4", "+CPU_PINNED 1", "-GPU 1"]
    cache.evict(6)
    assert news(cache) == ["-CPU_PINNED 1", "-GPU 3"]
    assert cache.failures == {"host_full": 1}
    assert cache.holdings() == set()


def test_evict_then_compute_again_is_one_store_and_write_back_one_host_store() -> None:
    cache = make(write_policy="write_back")
    cache.insert(A)
    cache.evict(8)
    cache.insert(A)
    cache.evict(8)
    assert news(cache) == ["clear", "+GPU 4", "+CPU_PINNED 4", "-GPU 4", "+GPU 4", "-GPU 4"]


def test_a_prefetch_is_a_host_store_without_one_of_the_device() -> None:
    cache = make()
    result = cache.insert_host(A)
    assert (result.prefix_length, result.length, result.filled) == (0, 8, (range(8),))
    result = cache.insert_host([*A, *B])
    assert (result.prefix_length, result.filled) == (8, (range(8, 16),))
    assert news(cache) == ["clear", "+CPU_PINNED 8"]
    assert cache.load_back(result.node)
    assert news(cache) == ["+GPU 8"]


def test_a_prefetch_fills_what_only_the_device_has_except_in_write_back() -> None:
    for policy, filled in (("write_through_selective", (range(16),)), ("write_back", (range(8, 16),))):
        cache = make(write_policy=policy)
        cache.insert(A)
        assert cache.insert_host([*A, *B]).filled == filled
        cache.check_integrity()


def test_a_prefetch_brings_slots_or_takes_them() -> None:
    cache = make(host_allocators={"full": PagedSlotAllocator(32, PAGE)})
    host = cache._tiers.host.full.allocator
    lent = host.allocate(8)
    assert cache.insert_host(A, lent).filled == (range(8),)
    with pytest.raises(ValueError, match="slots: expected 8"):
        cache.insert_host(B, lent[:6])
    with pytest.raises(ValueError, match="cache"):
        cache.insert_host(B, lent)
    assert host.available == 24
    cache.insert_host(B)
    cache.insert_host(C)
    with pytest.raises(CapacityError) as error:
        cache.insert_host(list(range(1000, 1034)))
    assert error.value.requested == 34
    cache.check_integrity()


def test_a_load_that_is_not_worth_it_or_finds_no_room() -> None:
    cache = make(load_back_threshold=10)
    cache.insert_host(A)
    assert not cache.load_back(cache.match_prefix(A).node)
    assert cache.failures == {}
    cache = make()
    cache.insert_host(A)
    node = cache.insert([*B, *C]).node
    cache.lock(node)
    assert not cache.load_back(cache.match_prefix(A).node)
    assert cache.failures == {"device_full": 1}
    cache.unlock(node)
    cache.poll()
    assert cache.load_back(cache.match_prefix(A).node)
    assert not cache.load_back(cache.match_prefix(A).node), "it is there"
    cache.check_integrity()


def test_a_node_that_has_left_is_not_loaded() -> None:
    cache = make()
    node = cache.insert_host(A).node
    cache.evict_host(8)
    with pytest.raises(ValueError, match="load_back: the node has left the cache"):
        cache.load_back(node)
    assert not cache.load_back(cache.match_prefix(A).node), "a root has nothing to load"


def test_a_lock_keeps_what_is_in_host_memory_too() -> None:
    cache = make()
    node = cache.insert_host(A).node
    cache.lock(node)
    assert cache.evict_host(8) == 0
    cache.unlock(node)
    assert cache.evict_host(8) == 8


def test_the_lock_of_a_backup_is_nobody_elses() -> None:
    cache = make()
    node = cache.insert(A).node
    with pytest.raises(ValueError, match="unlock: the node is not locked, but for a backup of it"):
        cache.unlock(node)
    cache.lock(node)
    cache.unlock(node)
    cache.poll()
    cache.check_integrity()
    assert cache.evict(8).tokens == 8


@pytest.mark.parametrize("mood", ["fails", "fails late", "is cancelled"])
def test_a_backup_that_fails_is_counted_and_undone(mood: str) -> None:
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    store.moods["backup"] = mood
    cache.insert(A)
    cache.insert([*A, *B[:4]])
    cache.poll()
    store.finish()
    cache.poll()
    assert news(cache) == ["clear", "+GPU 6"]
    assert cache.failures == {"backup": 1, "backup_without_parent": 1}
    cache.evict(16)
    assert cache.holdings() == set()
    cache.insert(A)
    cache.poll()
    assert news(cache)[-2:] == ["+CPU_PINNED 4", "+EXTERNAL 4"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_backup_that_is_interrupted_is_not_announced(is_begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it before its copy has begun, or while somebody waits for that."""
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    cache.insert(A)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    store.moods["backup"] = "late"
    target, name = (LateCopy, "exception") if is_begun else (store, "copy")
    monkeypatch.setattr(target, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.wait()
    assert news(cache) == ["clear", "+GPU 4"]
    monkeypatch.undo()
    cache.wait()
    assert news(cache) == (["+CPU_PINNED 4", "+EXTERNAL 4"] if is_begun else [])
    assert cache.failures == ({} if is_begun else {"backup": 1})
    assert cache.evict(8).tokens == 8


@pytest.mark.parametrize("mood", ["fails", "fails late", "is cancelled"])
def test_a_load_that_fails_is_counted_and_undone(mood: str) -> None:
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    node = cache.insert_host(A).node
    store.moods["load"] = mood
    assert not cache.load_back(node)
    assert cache.failures == {"load": 1}
    assert news(cache) == ["clear", "+CPU_PINNED 4"]
    assert cache.allocator.available == 16
    assert cache.load_back(node)


def test_what_lies_below_a_locked_node_goes_when_the_store_cannot_read_that() -> None:
    store = MoodyStore(16, device={}, host={})
    cache = make(storage=store)
    consumer = Residency()
    above, tail, branch = A[:4], [*A, *B[:4]], [*A[:4], *C[:4]]
    for tokens in (above, tail, branch):
        cache.insert(tokens)
        cache.poll()
    cache.evict(16)
    cache.evict_host(32)
    consumer.apply(cache.take_events())
    assert {tier for _, tier in cache.holdings()} == {"EXTERNAL"}
    node = cache.match_prefix(above).node
    cache.lock(node)
    store.moods["read"] = "fails"
    assert not cache.load_back(node)
    cache.check_integrity()
    consumer.apply(cache.take_events())
    assert consumer.held() == cache.holdings() == set()
    cache.unlock(node)
    cache.check_integrity()
    assert cache.match_prefix(tail).node.is_root


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_path_of_which_the_store_cannot_read_the_top_goes_as_a_whole(is_locked: bool) -> None:
    """At the end of the load, or when the last lock goes."""
    store = MoodyStore(16, device={}, host={})
    cache = make(storage=store)
    consumer = Residency()
    longest = [*A, *B[:4], *C[:4]]
    for length in (4, 8, 12, 16):
        cache.insert(longest[:length])
        cache.poll()
    cache.evict(16)
    cache.evict_host(32)
    node = cache.match_prefix(longest).node
    assert {tier for _, tier in cache.holdings()} == {"EXTERNAL"}
    if is_locked:
        cache.lock(node)
    store.moods["read"] = "fails"
    assert not cache.load_back(node)
    if is_locked:
        cache.unlock(node)
    cache.check_integrity()
    consumer.apply(cache.take_events())
    assert consumer.held() == cache.holdings() == set()
    assert not store.blocks()
    cache.insert(longest)
    cache.check_integrity()


def test_a_late_copy_is_announced_when_it_has_arrived() -> None:
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    store.moods["backup"] = "late"
    cache.insert(A)
    cache.poll()
    assert news(cache) == ["clear", "+GPU 4"]
    store.finish()
    cache.poll()
    assert news(cache) == ["+CPU_PINNED 4", "+EXTERNAL 4"]


def test_an_insert_that_is_short_of_room_waits_for_backups() -> None:
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    store.moods["backup"] = "late"
    cache.insert([*A, *B])
    cache.poll()
    cache.insert(C)
    assert news(cache)[-2:] == ["-GPU 8", "+GPU 4"]


@pytest.mark.parametrize("mood", ["fails", "is cancelled"])
def test_a_block_is_written_after_the_one_above_it(mood: str) -> None:
    store = MoodyStore(8, device={}, host={})
    cache = make(storage=store)
    store.moods["write"] = mood
    cache.insert(A)
    cache.insert([*A, *B[:4]])
    cache.poll()
    assert news(cache) == ["clear", "+GPU 6", "+CPU_PINNED 6"]
    assert cache.failures == {"storage_write": 2}
    assert store.blocks() == []


@pytest.mark.parametrize("layers", [[SlidingWindow(3)], [Mamba(4)], [SlidingWindow(3), Mamba(4)]])
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_windows_and_states_go_along(layers: Sequence[Any], policy: str) -> None:
    cache = make(components=layers, write_policy=policy, announce_groups=True)
    consumers = {component: Residency() for component in cache.allocators}
    cache.insert(A)
    cache.poll()
    cache.evict(8)
    match = cache.match_prefix(A)
    assert (match.length, match.host_length) == (0, 8)
    assert cache.load_back(match.node)
    assert cache.match_prefix(A).length == 8
    cache.check_integrity()
    events = cache.take_events()
    for index, (component, consumer) in enumerate(consumers.items()):
        consumer.apply([event for event in events if getattr(event, "group_idx", index) in {index, None}])
        assert consumer.held() == cache.holdings(component)
        assert {tier for _, tier in cache.holdings(component)} == {"GPU", "CPU_PINNED"}


def test_namespaces_that_share_ids_do_not_take_each_others_host_copies_away() -> None:
    cache = make()
    consumer = Residency(shares_ids=True)
    cache.insert_host(A)
    cache.insert_host([*A[:6], 9, 9], extra_key="tenant")
    cache.insert_host(B, extra_key="other")
    consumer.apply(cache.take_events())
    node = cache.match_prefix(A).node
    cache.lock(node)
    assert cache.evict_host(1) == 8
    consumer.apply(cache.take_events())
    assert consumer.held() == cache.holdings()
    assert len(cache.holdings()) == 8
    cache.unlock(node)
    cache.evict_host(32)
    consumer.apply(cache.take_events())
    assert consumer.held() == cache.holdings() == set()


def test_bad_tokens_change_nothing() -> None:
    cache = make(storage=MemoryStore(8))
    cache.insert(A)
    cache.poll()
    before = cache.holdings()
    cache.take_events()
    for tokens in ([1, 2, -1, 4], [1 << 64, 2]):
        for call in (cache.insert, cache.insert_host, cache.match_prefix):
            with pytest.raises(ValueError, match="token ids: expected"):
                call(tokens)
    assert cache.take_events() == []
    assert cache.holdings() == before
    cache.check_integrity()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host_tokens": 1}, "host_tokens: expected room for a page of 2 or more, got 1"),
        ({"write_policy": "never"}, "write_policy: expected one of write_through, .*, got 'never'"),
        ({"host_allocators": {"mamba": PagedSlotAllocator(4)}}, "host_allocators: expected some of full, got mamba"),
    ],
)
def test_settings_that_are_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_lengths_shorter_than_a_page() -> None:
    cache = make()
    assert cache.insert_host([1]).length == 0
    assert cache.match_prefix([1]).host_length == 0
    assert cache.insert([1]).length == 0
    cache.poll()
    with pytest.raises(ValueError, match="component: expected one of full, got 'mamba'"):
        cache.evict_host(1, "mamba")
