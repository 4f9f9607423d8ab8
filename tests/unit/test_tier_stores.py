"""What every store has to do, and what a store on disk survives."""

import errno
import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kvevents.caches import (
    FileStore,
    HiRadixCache,
    Mamba,
    MemoryStore,
    SlidingWindow,
    SlotMemory,
    StoredBlock,
    TierStore,
)
from kvevents.caches.file_store import CHECK_BYTES, MAGIC
from kvevents.errors import CapacityError, ConfigError, KVEventsError
from kvevents.events import BlockStored, StorageMedium
from residency import Residency

PAGE = 4
PROMPT = list(range(100, 132))


class Memories:
    """Device and host memory of 64 slots, 2 bytes each, for every component."""

    def __init__(self) -> None:
        self.device = {name: SlotMemory(bytearray(128), 2) for name in ("full", "sliding_window", "mamba")}
        self.host = {name: SlotMemory(bytearray(128), 2) for name in ("full", "sliding_window", "mamba")}


MakeStore = Callable[..., TierStore]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Makes a store; one a test."""
    opened: list[FileStore] = []

    def make(capacity: int = 8) -> TierStore:
        memories = Memories()
        if request.param == "memory":
            return MemoryStore(capacity, device=memories.device, host=memories.host)
        store = FileStore(tmp_path / "store", capacity=capacity, device=memories.device, host=memories.host, sync=False)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def block(number: int, component: str = "full", parent: bytes | None = None) -> StoredBlock:
    return StoredBlock(bytes([number]) * 32, component, parent, array("Q", [number] * PAGE).tobytes(), "adapter", None)


def slots(*numbers: int) -> "array[int]":
    return array("q", numbers)


def test_bytes_go_down_and_come_back(make: MakeStore) -> None:
    store = make()
    host, device = store._copier._host["full"], store._copier._device["full"]  # type: ignore[attr-defined]
    device.write(range(8), bytes(range(16)))
    store.copy("full", slots(0, 1, 2, 3, 4, 5, 6, 7), slots(8, 9, 10, 11, 12, 13, 14, 15), to_host=True)
    store.write([block(1), block(2)], slots(8, 9, 10, 11, 12, 13, 14, 15))
    host.write(range(64), bytes(128))
    store.read([block(2), block(1)], slots(0, 1, 2, 3, 4, 5, 6, 7))
    store.copy("full", slots(0, 1, 2, 3, 4, 5, 6, 7), slots(20, 21, 22, 23, 24, 25, 26, 27), to_host=False)
    assert device.read(range(20, 28)) == bytes([*range(8, 16), *range(8)])


def test_components_are_kept_apart_and_removed_apart(make: MakeStore) -> None:
    store = make()
    store.write([block(1)], slots(0, 1, 2, 3))
    store.write([block(1, "mamba")], slots(5))
    store.remove([block(1), block(9)])
    store.read([block(1, "mamba")], slots(5))
    with pytest.raises((KVEventsError, OSError)):
        store.read([block(1)], slots(0, 1, 2, 3))


def test_a_full_store_keeps_none_of_what_does_not_fit(make: MakeStore) -> None:
    store = make(2)
    store.write([block(1)], slots(0, 1, 2, 3))
    with pytest.raises(CapacityError, match="2 blocks were to be kept, there is room for 1") as error:
        store.write([block(2), block(3)], slots(0, 1, 2, 3, 4, 5, 6, 7))
    assert (error.value.requested, error.value.available) == (2, 1)
    store.write([block(1)], slots(0, 1, 2, 3))
    store.write([block(1, "mamba")], slots(0))
    store.remove([block(1)])
    store.write([block(2), block(3)], slots(0, 1, 2, 3, 4, 5, 6, 7))


def test_room_for_nothing_is_refused(tmp_path: Path) -> None:
    for make in (MemoryStore, lambda capacity: FileStore(tmp_path, capacity=capacity)):
        with pytest.raises(ConfigError, match="capacity: expected room for 1 block or more, got 0"):
            make(0)


def cache_of(store: TierStore, *, page_size: int = PAGE, hybrid: bool = False) -> HiRadixCache:
    layers = [SlidingWindow(6), Mamba(4)] if hybrid else []
    return HiRadixCache(
        host_tokens=64,
        storage=store,
        components=layers,
        page_size=page_size,
        capacity=40,
        event_format="dynamo",
        announce_groups=hybrid,
    )


def held(cache: HiRadixCache, consumer: Residency) -> set[tuple[int, StorageMedium]]:
    """What the cache holds, which is what it has announced."""
    consumer.apply(cache.take_events())
    cache.check_integrity()
    assert consumer.held() == cache.holdings()
    return cache.holdings()


def test_what_a_folder_has_is_announced_to_whoever_comes_after_a_restart(tmp_path: Path) -> None:
    memories = Memories()
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache = cache_of(store)
        for extra_key, salt in ((None, None), ("adapter", None), (None, "salt")):
            node = cache.insert(PROMPT[:16], extra_key=extra_key, cache_salt=salt).node
            memories.device["full"].write(cache.slots(node), f"{extra_key}-{salt}".encode().ljust(32))
            cache.poll()
        before = {block for block in held(cache, Residency()) if block[1] == "DISK"}
        assert len(before) == 12
        assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.glob("??/*")} == {"0o600"}
    memories = Memories()
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache = cache_of(store)
        events = cache.take_events()
        stores = [event for event in events if isinstance(event, BlockStored)]
        assert sum(len(event.block_hashes) for event in stores) == 12
        assert {event.medium for event in stores} == {"DISK"}
        assert {event.cache_salt for event in stores} == {None, "salt"}
        assert cache.holdings() == before
        match = cache.match_prefix(PROMPT[:16], extra_key="adapter")
        assert (match.length, match.host_length) == (0, 16)
        assert cache.load_back(match.node)
        assert memories.device["full"].read(cache.slots(match.node)) == b"adapter-None".ljust(32)
        assert {tier for _, tier in cache.holdings()} == {"GPU", "CPU_PINNED", "DISK"}
        assert not cache.failures


def test_windows_and_states_come_back_too(tmp_path: Path) -> None:
    memories = Memories()
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache = cache_of(store, hybrid=True)
        node = cache.insert(PROMPT[:16]).node
        for component, data in (("full", b"f" * 32), ("sliding_window", b"w" * 16), ("mamba", b"st")):
            memories.device[component].write(cache.slots(node, component), data)
        cache.poll()
        kept = {component: cache.holdings(component) for component in cache.allocators}
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache = cache_of(store, hybrid=True)
        for component, blocks in kept.items():
            assert cache.holdings(component) == {block for block in blocks if block[1] == "DISK"}
        match = cache.match_prefix(PROMPT[:16])
        assert (match.length, match.host_length) == (0, 16)
        assert cache.load_back(match.node)
        assert memories.device["sliding_window"].read(cache.slots(match.node, "sliding_window")) == b"w" * 16
        assert memories.device["mamba"].read(cache.slots(match.node, "mamba")) == b"st"


def fill(folder: Path) -> list[Path]:
    """The files of a prompt of four pages, top first, written by a process that has ended."""
    with FileStore(folder, capacity=20, sync=False) as store:
        cache = cache_of(store)
        node = cache.insert(PROMPT[:16]).node
        cache.poll()
        return [next(folder.glob(f"??/{digest.hex()}.full.block")) for digest in node.chain.digests]


@pytest.mark.parametrize("size", [0, 7, 30, 100, -1])
def test_a_file_that_was_cut_off_is_left_out_with_what_needs_it(tmp_path: Path, size: int) -> None:
    files = fill(tmp_path)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:size])
    with FileStore(tmp_path, capacity=20) as store:
        assert store.damaged == 1
        cache = cache_of(store)
        assert len(held(cache, Residency())) == 1
        assert cache.match_prefix(PROMPT).host_length == PAGE
        assert cache.failures == {"storage_useless": 2}
    assert [file.exists() for file in files] == [True, False, False, False]


def test_a_write_that_never_ended_leaves_nothing(tmp_path: Path) -> None:
    files = fill(tmp_path)
    unfinished = files[0].with_suffix(".part")
    unfinished.write_bytes(files[0].read_bytes()[:50])
    with FileStore(tmp_path, capacity=20) as store:
        assert store.damaged == 0
        assert len(store.blocks()) == 4
    assert not unfinished.exists()


def test_a_block_under_another_name_is_not_believed(tmp_path: Path) -> None:
    files = fill(tmp_path)
    files[3].write_bytes(files[2].read_bytes())
    with FileStore(tmp_path, capacity=20) as store:
        assert store.damaged == 1
        assert len(store.blocks()) == 3


def test_altered_bytes_are_noticed_when_they_are_read(tmp_path: Path) -> None:
    memories = Memories()
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache = cache_of(store)
        node = cache.insert(PROMPT[:24]).node
        digests = node.chain.digests
        cache.poll()
    file = next(tmp_path.glob(f"??/{digests[2].hex()}.full.block"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with FileStore(tmp_path, capacity=20, device=memories.device, host=memories.host) as store:
        cache, consumer = cache_of(store), Residency()
        assert len(held(cache, consumer)) == 6
        cache.insert(PROMPT[:8])
        assert not cache.load_back(cache.match_prefix(PROMPT).node)
        assert cache.failures == {"storage_read": 1}
        assert store.damaged == 1
        assert {tier for _, tier in held(cache, consumer)} == {"GPU", "DISK"}
        assert cache.match_prefix(PROMPT).host_length == 0


def test_a_disk_that_fills_up_in_the_middle_of_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileStore(tmp_path, capacity=20, sync=False) as store:
        cache, consumer = cache_of(store), Residency()
        cache.insert(PROMPT[:8])
        cache.poll()
        room = iter([True, False])
        opened = os.open

        def full(path: "os.PathLike[str]", *args: int) -> int:
            if not next(room, False):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return opened(path, *args)

        monkeypatch.setattr("kvevents.caches.file_store.os.open", full)
        cache.insert(PROMPT[:24])
        cache.poll()
        monkeypatch.undo()
        assert cache.failures == {"storage_write": 1}
        tiers = [tier for _, tier in held(cache, consumer)]
        assert (tiers.count(StorageMedium.CPU), tiers.count(StorageMedium.DISK)) == (6, 2)
        assert len(list(tmp_path.glob("??/*.block"))) == 2, "nothing is kept that nobody is told of"
        cache.insert([*PROMPT[:8], 1, 2, 3, 4])
        cache.poll()
        assert [tier for _, tier in held(cache, consumer)].count(StorageMedium.DISK) == 3


def test_a_folder_is_for_one_process(tmp_path: Path) -> None:
    with FileStore(tmp_path, capacity=2), pytest.raises(ConfigError, match="is in use by another process"):
        FileStore(tmp_path, capacity=2)
    store = FileStore(tmp_path, capacity=2)
    store.close()
    store.close()


def test_a_store_that_was_closed_leaves_the_folder_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path, capacity=20)
    cache, consumer = cache_of(store), Residency()
    cache.insert(PROMPT)
    store.close()
    cache.poll()
    assert cache.failures == {"storage_write": 1, "storage_remove": 1}
    assert {tier for _, tier in held(cache, consumer)} == {"GPU", "CPU_PINNED"}
    assert not list(tmp_path.glob("??/*"))
    with pytest.raises(KVEventsError, match="was closed; open a store anew"):
        store.read([block(1)], slots(0, 1, 2, 3))


def headers() -> list[bytes]:
    """Contents with a right check that are no headers of ours."""
    wrong: list[object] = [None, [1, 2, 3], {}]
    return [*map(msgspec.msgpack.encode, wrong), b"", b"\xc1", b"\x93"]


@pytest.mark.parametrize("header", headers())
def test_a_file_that_only_looks_like_a_block_is_left_out(tmp_path: Path, header: bytes) -> None:
    files = fill(tmp_path)
    check = hashlib.blake2b(header, digest_size=CHECK_BYTES).digest()
    files[3].write_bytes(MAGIC + len(header).to_bytes(4, "little") + check + header)
    with FileStore(tmp_path, capacity=20) as store:
        assert (store.damaged, len(store.blocks())) == (1, 3)
    assert not files[3].exists()


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    files = fill(tmp_path)
    for name in ("folder.block", "folder.part"):
        files[0].with_name(name).mkdir()
    os.mkfifo(files[0].with_name("pipe.block"))
    files[0].with_name("link.block").symlink_to(tmp_path / "nothing")
    with FileStore(tmp_path, capacity=20) as store:
        assert (store.damaged, len(store.blocks())) == (3, 4)


def test_a_file_that_cannot_be_read_now_is_left_out_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fill(tmp_path)
    opened = Path.open

    def failing(path: Path, mode: str) -> object:
        if path == files[3]:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", failing)
    with FileStore(tmp_path, capacity=20) as store:
        assert (store.damaged, len(store.blocks())) == (1, 3)
    monkeypatch.undo()
    with FileStore(tmp_path, capacity=20) as store:
        assert (store.damaged, len(store.blocks())) == (0, 4)


def test_a_folder_that_cannot_be_searched_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", failing)
    with pytest.raises(OSError, match="Input/output error"):
        FileStore(tmp_path, capacity=20)
    monkeypatch.undo()
    FileStore(tmp_path, capacity=20).close()


def test_a_store_that_does_not_forget_what_is_useless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)

    def failing(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with FileStore(tmp_path, capacity=3) as store:
        monkeypatch.setattr(store, "remove", failing)
        cache = cache_of(store)
        assert len(held(cache, Residency())) == 3
        assert cache.failures == {"storage_useless": 1, "storage_remove": 1}


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="storage: expected a folder that can be written"):
        FileStore(tmp_path / "file", capacity=2)


def test_blocks_of_other_pages_are_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with (
        FileStore(tmp_path, capacity=20) as store,
        pytest.raises(ConfigError, match="storage: expected blocks of 2 tokens, as this cache has, got one of 4"),
    ):
        cache_of(store, page_size=2)


def test_a_store_of_another_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="storage: expected one whose medium is DISK or EXTERNAL"):
        cache_of(MemoryStore(4, medium=StorageMedium.CPU))


def test_a_smaller_store_after_a_restart_keeps_what_it_has_room_for(tmp_path: Path) -> None:
    fill(tmp_path)
    with FileStore(tmp_path, capacity=3) as store:
        cache = cache_of(store)
        assert len(held(cache, Residency())) == 3
        assert cache.match_prefix(PROMPT).host_length == 3 * PAGE
        assert cache.failures == {"storage_useless": 1}


def test_what_was_used_last_stays_in_a_store_that_is_full() -> None:
    store = MemoryStore(4)
    cache, consumer = cache_of(store), Residency()
    for start in (0, 8, 16):
        cache.insert(PROMPT[start : start + 8])
        cache.poll()
        held(cache, consumer)
    assert len(list(store.blocks())) == 4
    assert [tier for _, tier in held(cache, consumer)].count(StorageMedium.EXTERNAL) == 4
    cache.evict(40)
    cache.evict_host(64)
    assert [cache.match_prefix(PROMPT[start : start + 8]).host_length for start in (0, 8, 16)] == [0, 8, 8]


def test_a_reset_empties_the_store() -> None:
    store = MemoryStore(8)
    cache, consumer = cache_of(store), Residency()
    cache.insert(PROMPT[:16])
    cache.poll()
    cache.insert(PROMPT)
    cache.reset()
    assert held(cache, consumer) == set()
    assert list(store.blocks()) == []
    assert cache.allocator.available == cache.allocator.capacity
    cache.insert(PROMPT)
    cache.poll()
    assert len(held(cache, consumer)) == 24
