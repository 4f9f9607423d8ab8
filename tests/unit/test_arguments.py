"""What callers pass: numbers that do not fit, buffers of every width and byte order, sessions that are no text."""

import ctypes
import operator
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from kvevents._core.block_pool import BlockPool
from kvevents._core.slots import PagePool
from kvevents.caches import BlockPoolCache, MambaRadixCache, RadixCache, SWARadixCache
from kvevents.coalescing import Coalescer
from kvevents.errors import ConfigError
from kvevents.events import BlockStored, KVEventBatch
from kvevents.hashing import HashChain, block_hashes
from kvevents.index import PrefixIndex
from kvevents.recorder import CacheGroup, EventRecorder

EMPTY = KVEventBatch(0.0, [])
TOKENS = [70_000, 2, 3, 4]

SETTINGS: list[tuple[str, Callable[[int], object]]] = [
    ("page_size", HashChain.root),
    ("block_size", lambda value: block_hashes([1], value)),
    ("page_size", EventRecorder),
    ("max_event_blocks", lambda value: EventRecorder(1, max_event_blocks=value)),
    ("max_event_bytes", lambda value: EventRecorder(1, max_event_bytes=value)),
    ("max_event_bytes", lambda value: Coalescer(max_event_bytes=value)),
    ("index", lambda value: CacheGroup(value, "mamba")),
    ("sliding_window", lambda value: CacheGroup(0, "sliding_window", sliding_window=value)),
    ("capacity", lambda value: RadixCache(page_size=4, capacity=value)),
    ("num_blocks", lambda value: BlockPoolCache(num_blocks=value)),
    ("page_size", lambda value: BlockPoolCache(num_blocks=4, page_size=value)),
    ("max_pending_blocks", lambda value: PrefixIndex(4, max_pending_blocks=value)),
    ("max_pending_bytes", lambda value: PrefixIndex(4, max_pending_bytes=value)),
    ("max_sources", lambda value: PrefixIndex(4, max_sources=value)),
    ("block_size", PrefixIndex),
    ("block_size", lambda value: PrefixIndex(4).add_worker("w", block_size=value)),
]

NUMBERS: list[tuple[str, Callable[[int], object]]] = [
    ("pages", HashChain.root(4).split),
    ("seq", lambda value: PrefixIndex(4).apply("w", EMPTY, seq=value)),
]

RANKS: list[tuple[str, Callable[[int], object]]] = [
    ("dp_rank", lambda value: PrefixIndex(4).apply("w", EMPTY, dp_rank=value)),
    ("dp_rank", lambda value: PrefixIndex(4).clear_worker("w", value)),
    ("dp_rank", lambda value: PrefixIndex(4).set_state("w", value, "live")),
    ("dp_rank", lambda value: EventRecorder(4).take_batch(dp_rank=value)),
    ("lora_id", lambda value: PrefixIndex(4).match([1], lora_id=value)),
]


class TestNumbers:
    @pytest.mark.parametrize("value", [-1, -(2**70), 2**70])
    @pytest.mark.parametrize(("name", "call"), SETTINGS)
    def test_a_setting_that_does_not_fit_is_a_config_error_that_names_it(
        self, name: str, call: Callable[[int], object], value: int
    ) -> None:
        with pytest.raises(ConfigError, match=f"{name}: expected .*, got {value}"):
            call(value)

    @pytest.mark.parametrize("value", [-1, 2**64])
    @pytest.mark.parametrize(("name", "call"), NUMBERS)
    def test_a_number_that_does_not_fit_is_a_value_error_that_names_it(
        self, name: str, call: Callable[[int], object], value: int
    ) -> None:
        with pytest.raises(ValueError, match=f"{name}: expected .*, got {value}"):
            call(value)

    @pytest.mark.parametrize("value", [-(2**63) - 1, 2**63])
    @pytest.mark.parametrize(("name", "call"), RANKS)
    def test_a_rank_is_a_signed_number_of_64_bits(self, name: str, call: Callable[[int], object], value: int) -> None:
        with pytest.raises(ValueError, match=f"{name}: expected .*, got {value}"):
            call(value)

    def test_what_is_no_integer_is_a_type_error(self) -> None:
        calls: list[Any] = [HashChain.root, EventRecorder, operator.methodcaller("split", 1.5)]
        for call in calls[:2]:
            with pytest.raises(TypeError):
                call(1.5)
        with pytest.raises(TypeError):
            calls[2](HashChain.root(4))

    def test_a_memory_beyond_all_memories_is_refused_before_it_is_made(self) -> None:
        with pytest.raises(ConfigError, match="num_blocks: expected at most"):
            BlockPoolCache(num_blocks=2**32 - 1)
        with pytest.raises(ConfigError, match="capacity: expected at most"):
            RadixCache(page_size=1, capacity=2**50)


def of(kind: Any, values: list[int] = TOKENS) -> Any:
    return (kind * len(values))(*values)


BUFFERS = {
    "int32": of(ctypes.c_int32),
    "uint32": of(ctypes.c_uint32),
    "int64": of(ctypes.c_int64),
    "uint64": of(ctypes.c_uint64),
    "int32, big-endian": of(ctypes.c_int32.__ctype_be__),
    "uint64, big-endian": of(ctypes.c_uint64.__ctype_be__),
    "int32, little-endian": of(ctypes.c_int32.__ctype_le__),
    "strided": memoryview(array("q", [n for token in TOKENS for n in (token, 9)]))[::2],
    "reversed": memoryview(array("i", TOKENS[::-1]))[::-1],
    "misaligned": memoryview(bytearray(b"\0" + array("i", TOKENS).tobytes()))[1:].cast("i"),
    "read-only": memoryview(array("q", TOKENS)).toreadonly(),
    "range of objects": tuple(TOKENS),
}


class TestBuffers:
    @pytest.mark.parametrize("tokens", BUFFERS.values(), ids=BUFFERS)
    def test_tokens_are_the_same_in_every_buffer(self, tokens: Any) -> None:
        chain = HashChain.root(2).extend(TOKENS)
        assert HashChain.root(2).extend(tokens).ids == chain.ids
        assert block_hashes(tokens, 2) == block_hashes(TOKENS, 2)
        recorder = EventRecorder(2)
        recorder.store(chain, tokens)
        (store,) = recorder.take()
        assert isinstance(store, BlockStored)
        assert store.token_ids == TOKENS
        index = PrefixIndex(2)
        index.apply("w", KVEventBatch(0.0, [store]))
        assert [match.total for match in index.match(tokens)] == [2]
        cache = RadixCache(page_size=2, capacity=8)
        cache.insert(TOKENS)
        assert cache.match_prefix(tokens).length == 4

    def test_numpy_arrays_are_buffers_too(self) -> None:
        numpy = pytest.importorskip("numpy", reason="numpy is accepted, never required")
        chain = HashChain.root(2).extend(TOKENS)
        for kind in ("<i4", ">i4", "<u4", "<i8", ">i8", "<u8", ">u8", object):
            tokens = numpy.array(TOKENS, dtype=kind)
            for form in (tokens, numpy.repeat(tokens, 2)[::2], tokens[::-1].copy()[::-1], list(tokens)):
                assert HashChain.root(2).extend(form).ids == chain.ids, (kind, form)
        with pytest.raises(TypeError, match="expected integers"):
            HashChain.root(2).extend(numpy.array(TOKENS, dtype=float))
        with pytest.raises(ValueError, match="one dimension"):
            HashChain.root(2).extend(numpy.array([TOKENS, TOKENS]))

    @pytest.mark.parametrize(
        "slots",
        [
            [0, 1, 2, 3],
            (0, 1, 2, 3),
            range(4),
            bytes([0, 1, 2, 3]),
            of(ctypes.c_int64, [0, 1, 2, 3]),
            of(ctypes.c_int32, [0, 1, 2, 3]),
            of(ctypes.c_uint64, [0, 1, 2, 3]),
            of(ctypes.c_int64.__ctype_be__, [0, 1, 2, 3]),
            memoryview(array("q", [0, 9, 1, 9, 2, 9, 3, 9]))[::2],
        ],
        ids=["list", "tuple", "range", "bytes", "int64", "int32", "uint64", "big-endian", "strided"],
    )
    def test_slots_are_the_same_in_every_buffer(self, slots: Any) -> None:
        cache = RadixCache(page_size=2, capacity=8)
        cache.insert(TOKENS, slots)
        assert cache.match_prefix(TOKENS).slots.tolist() == [0, 1, 2, 3]
        pool = PagePool(4, 2)
        pool.adopt(slots)
        assert pool.available == 4

    def test_blocks_are_the_same_in_every_byte_order(self) -> None:
        pool = BlockPool(4, 2, "vllm-sha256-cbor", EventRecorder(2))
        taken = pool.take(2)
        assert taken is not None
        pool.release(of(ctypes.c_int64.__ctype_be__, taken.tolist()))
        assert pool.free == 3


class TestLabelsOfAnInsert:
    """A call that fails has changed nothing: what the cache holds is what it announced."""

    CACHES: tuple[Callable[[], Any], ...] = (
        lambda: RadixCache(page_size=2, capacity=8),
        lambda: SWARadixCache(page_size=2, capacity=8, sliding_window=4),
        lambda: MambaRadixCache(page_size=2, capacity=8, mamba_slots=4),
        lambda: BlockPoolCache(num_blocks=8, page_size=2),
    )

    @pytest.mark.parametrize("make", CACHES)
    @pytest.mark.parametrize("session_id", [7, b"bytes", "\ud800"])
    def test_a_session_that_is_no_text_changes_nothing(self, make: Callable[[], Any], session_id: Any) -> None:
        cache = make()
        cache.take_events()
        with pytest.raises((TypeError, ValueError)):
            cache.insert(TOKENS, session_id=session_id)
        assert (cache.take_events(), cache.holdings(), cache.total, cache.protected) == ([], set(), 0, 0)
        cache.check_integrity()
        assert cache.insert(TOKENS, session_id="text").length == 4

    @pytest.mark.parametrize("labels", [{"priority": "high"}, {"priority": None}, {"inserted_length": "2"}])
    def test_a_count_that_is_none_changes_nothing(self, labels: dict[str, Any]) -> None:
        cache = RadixCache(page_size=2, capacity=8)
        cache.take_events()
        with pytest.raises(TypeError):
            cache.insert(TOKENS, **labels)
        assert (cache.take_events(), cache.holdings(), cache.total) == ([], set(), 0)
        cache.check_integrity()
