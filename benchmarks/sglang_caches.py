"""SGLang's own prefix caches beside its recorder: the Python `RadixCache`, and the tree core in Rust.

The tree core is linked against PyTorch, several gigabytes with what belongs to it: that is only fetched when asked for.
Without it the Python cache keeps its slots in arrays, which are cheaper to cut than tensors.
"""

import importlib
import importlib.util
import sys
from array import array
from typing import Any, Protocol

import msgspec

from benchmarks import sglang
from benchmarks.peers import Unavailable, install, site_packages

TORCH = "torch==2.14.1"
"""What SGLang requires."""
CORE = "sglang.srt.mem_cache.rust_tree_core"


class Cache(Protocol):
    """A cache of SGLang's, full attention only, for which nobody owns the slots."""

    def key(self, tokens: "array[int]") -> Any:
        """A prompt as SGLang passes it on; `tokens` of type `q`."""

    def slots(self, tokens: "array[int]") -> Any:
        """Slots for a prompt: as many as it has tokens."""

    def insert(self, key: Any, slots: Any) -> None:
        """Cache a prompt."""

    def match(self, key: Any) -> Any:
        """Find a prompt: the slots of what is cached, where they can be had."""

    def take(self) -> bytes:
        """The events as one encoded batch."""


def load_torch(*, fetch: bool) -> None:
    """Have PyTorch at hand, as SGLang requires it.

    Args:
        fetch: install it, unless it is there.

    Raises:
        Unavailable: it is not there, cannot be installed or does not load here.
    """
    if not fetch and not (site_packages() / "torch").is_dir():
        raise Unavailable("PyTorch is not there; --torch fetches it")
    packages = str(install(TORCH, dependencies=True))
    if packages not in sys.path:
        sys.path.append(packages)
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise Unavailable(f"{TORCH} does not load: {error}") from error


class _SGLangCache:
    def __init__(self, page_size: int) -> None:
        self._base = sglang.load("sglang.srt.mem_cache.base_prefix_cache")
        self._radix = sglang.load("sglang.srt.mem_cache.radix_cache")
        self._batch = sglang.load("sglang.srt.disaggregation.kv_events").KVEventBatch
        self._encode = msgspec.msgpack.Encoder().encode
        self._settings = sglang.load("sglang.srt.mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=None,
            page_size=page_size,
            enable_kv_cache_events=True,
        )

    def key(self, tokens: "array[int]") -> Any:
        return self._radix.RadixKey(tokens)

    def slots(self, tokens: "array[int]") -> Any:
        torch = sys.modules["torch"]
        slots = array("q", range(len(tokens)))
        return torch.frombuffer(slots, dtype=torch.int64) if sglang.is_real("torch") else _Slots(slots)

    def _bytes(self, events: list[Any]) -> bytes:
        data: bytes = self._encode(self._batch(ts=1.0, events=events, attn_dp_rank=0))
        return data


class RadixCache(_SGLangCache):
    """SGLang's `RadixCache`."""

    def __init__(self, page_size: int) -> None:
        """Raise `Unavailable` where SGLang cannot be had."""
        super().__init__(page_size)
        self._cache = self._radix.RadixCache(self._settings)
        self._cache.take_events()

    def insert(self, key: Any, slots: Any) -> None:
        self._cache.insert(self._base.InsertParams(key=key, value=slots))

    def match(self, key: Any) -> Any:
        found = self._cache.match_prefix(self._base.MatchPrefixParams(key=key))
        # The slots of the path, which SGLang asks for when it schedules the request.
        return self._cache.path_device_indices(found.last_device_node) if sglang.is_real("torch") else found

    def take(self) -> bytes:
        return self._bytes(self._cache.take_events())


class TreeCore(_SGLangCache):
    """The tree core in Rust of SGLang's unified cache, without the cache around it, which only adds to its time."""

    def __init__(self, page_size: int) -> None:
        """Raise `Unavailable` where SGLang or PyTorch cannot be had."""
        super().__init__(page_size)
        if not sglang.is_real("torch"):
            raise Unavailable("SGLang's tree core in Rust is linked against PyTorch, which is not there")
        component = sglang.load("sglang.srt.mem_cache.unified_cache.component_type").ComponentType
        self._settings.tree_components = (component.FULL,)
        self._core = sglang.load(f"{CORE}.adapter").RustUnifiedTreeCore(self._settings)
        self._root = self._core.empty_match_result.last_device_node
        self._core.take_events()

    def insert(self, key: Any, slots: Any) -> None:
        step = self._core.begin_insert(self._base.InsertParams(key=key, value=slots))
        while step.result is None:
            step = self._core.resume_insert()
        self._core.end_insert()

    def match(self, key: Any) -> Any:
        found = self._core.match_prefix(self._base.MatchPrefixParams(key=key))
        return self._core.collect_full_device_indices(found.last_device_node, self._root)

    def take(self) -> bytes:
        return self._bytes(self._core.take_events())


class _Slots:
    """What SGLang asks of a tensor of slots."""

    __slots__ = ("_slots",)

    def __init__(self, slots: "array[int]") -> None:
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, part: slice) -> "_Slots":
        return _Slots(self._slots[part])

    def clone(self) -> "_Slots":
        return _Slots(self._slots[:])
