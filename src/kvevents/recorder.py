"""Recording: a cache says what it did, events come out, neighbours merged.

`EventRecorder` is the fast way and keeps a queue of its own. `KVCacheEventMixin` is for engines that own a queue of
event objects already.
"""

import functools
import itertools
from collections.abc import Mapping
from typing import Any, Protocol

from kvevents._core.hashing import announced_ids, page_digests
from kvevents._core.recorder import AdapterNames, CacheGroup, EventRecorder, RecorderStats, merges
from kvevents.events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    StorageMedium,
    TokenIds,
)
from kvevents.hashing import EventFormat

__all__ = ["CacheGroup", "EventRecorder", "KVCacheEventMixin", "RecorderStats", "TreeNode"]


class TreeNode(Protocol):
    """A node of a prefix tree, as `KVCacheEventMixin` sees it.

    Attributes:
        hash_value: full digests of the node's pages in hexadecimal, one string a page; None until they are needed.
            To split a node, slice the list at the page boundary.
    """

    hash_value: list[str] | None

    @property
    def parent(self) -> "TreeNode | None":
        """The node above; None in the root."""

    @property
    def key(self) -> Any:
        """The node's token ids: a sequence or buffer of them, or an object with `token_ids`.

        Such an object may have `extra_key`, `cache_salt` and `is_bigram`. Bigrams take a token more than there are
        pairs: the first is the last one of the node above.
        """


class KVCacheEventMixin:
    """Records events of a prefix tree into a queue that the engine owns.

    The class that uses it provides `enable_kv_cache_events`, `kv_event_queue` and `page_size`. It may set
    `kv_event_format` (`default` or `dynamo`) and `kv_event_lora_names` (adapter names by extra key, in `dynamo` also by
    its last 32 characters), which are looked up when an event is recorded. Nothing is hashed before the first event
    of a node, and nothing twice. Used by one thread, as the tree is.
    """

    enable_kv_cache_events: bool
    kv_event_queue: list[KVCacheEvent]
    page_size: int
    kv_event_format: EventFormat = "default"
    kv_event_lora_names: Mapping[str, str] | None = None
    _adapter_names: AdapterNames | None = None

    def _enqueue_kv_event(self, event: KVCacheEvent) -> None:
        """Put an event into the queue, folded into the last one where the merge rule allows it.

        The queue owns the event from then on: its lists grow when others are folded into it.
        """
        if not self.enable_kv_cache_events:
            return
        queue = self.kv_event_queue
        if queue and merges(queue[-1], event):
            _fold(queue[-1], event)
        else:
            queue.append(event)

    def _record_store_event(self, node: TreeNode, medium: str | None = None, *, session_id: str | None = None) -> None:
        """Record that a node's blocks are held now, in the tier `medium` (GPU if None).

        A last page that is not whole becomes an event of its own whose block size is its length.

        Raises:
            ValueError: a token id is negative, or `hash_value` is not one digest a page. Nothing was recorded.
        """
        if not self.enable_kv_cache_events or node.parent is None:
            return
        digests = self._digests(node)
        if not digests:
            return
        key = _Key(node)
        key.check(digests, self.page_size)
        name = self._adapter_name(key, len(digests), stored=True)
        above = self._digests(node.parent)[-1:]
        ids = self._ids(key, above + digests, name)
        parent = ids.pop(0) if above else None
        units = key.units()
        whole = len(units) // self.page_size
        cut = whole * self.page_size
        stored = functools.partial(
            BlockStored,
            medium=medium or StorageMedium.GPU,
            cache_salt=key.cache_salt,
            session_id=session_id,
            lora_name=name,
        )
        if whole:
            self._enqueue_kv_event(stored(ids[:whole], parent, units[:cut], self.page_size))
            parent = ids[whole - 1]
        if cut < len(units):
            self._enqueue_kv_event(stored(ids[whole:], parent, units[cut:], len(units) - cut))

    def _record_remove_event(self, node: TreeNode, medium: str | None = None) -> None:
        """Record that a node's blocks are no longer held in the tier `medium` (GPU if None).

        Raises:
            ValueError: as for a store.
        """
        if not self.enable_kv_cache_events or node.parent is None:
            return
        digests = self._digests(node)
        if not digests:
            return
        key = _Key(node)
        key.check(digests, self.page_size)
        name = self._adapter_name(key, len(digests), stored=False)
        self._enqueue_kv_event(BlockRemoved(self._ids(key, digests, name), medium or StorageMedium.GPU))

    def _record_all_cleared_event(self) -> None:
        """Record that nothing is held any more, in any tier."""
        if self._adapter_names is not None:
            self._adapter_names.clear()
        self._enqueue_kv_event(AllBlocksCleared())

    def take_events(self) -> list[KVCacheEvent]:
        """Take everything in the queue, oldest first."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def _digests(self, node: TreeNode) -> list[str]:
        """Digests of a node's pages; those that are missing, here or above, are computed and kept."""
        missing: list[TreeNode] = []
        above = node
        while above.parent is not None and not above.hash_value:
            missing.append(above)
            above = above.parent
        digests = above.hash_value or [] if above.parent is not None else []
        for child in reversed(missing):
            key = _Key(child)
            digests = child.hash_value = page_digests(
                key.tokens,
                self.page_size,
                above=digests[-1] if digests else None,
                cache_salt=key.cache_salt,
                bigram=key.is_bigram,
            )
        return digests

    def _ids(self, key: "_Key", digests: list[str], name: str | None) -> list[BlockHash]:
        return announced_ids(
            digests,
            extra_key=key.extra_key,
            cache_salt=key.cache_salt,
            event_format=self.kv_event_format,
            named=name is not None,
        )

    def _adapter_name(self, key: "_Key", pages: int, *, stored: bool) -> str | None:
        if key.extra_key is None:
            return None
        if self._adapter_names is None:
            self._adapter_names = AdapterNames()
        look_up = self._adapter_names.store if stored else self._adapter_names.remove
        return look_up(key.extra_key, pages, self.kv_event_lora_names, self.kv_event_format)


class _Key:
    """What a node's key says, whatever it is made of."""

    def __init__(self, node: TreeNode) -> None:
        key = node.key
        self.tokens = getattr(key, "token_ids", key)
        self.extra_key: str | None = getattr(key, "extra_key", None)
        self.cache_salt: str | None = getattr(key, "cache_salt", None) or None
        self.is_bigram = bool(getattr(key, "is_bigram", False))

    def check(self, digests: list[str], page_size: int) -> None:
        """Raise ValueError unless there is one digest a page: a node that was split has its own part only."""
        units = len(self.tokens) - self.is_bigram
        pages = -(-units // page_size)
        if len(digests) != pages:
            raise ValueError(
                f"hash_value: expected {pages} digests, one a page of the node's {units} units, got {len(digests)};"
                " where a node is split, slice the list at the same page as the key"
            )

    def units(self) -> TokenIds:
        """The ids, or pairs of neighbours, as an event carries them."""
        ids = self.tokens.tolist() if hasattr(self.tokens, "tolist") else list(self.tokens)
        return list(itertools.pairwise(ids)) if self.is_bigram else ids


def _fold(tail: KVCacheEvent, event: KVCacheEvent) -> None:
    """Append the lists of `event`, which the merge rule lets through, to those of `tail`."""
    folded = [
        (name, _listed(getattr(tail, name)), _listed(more))
        for name in ("block_hashes", "token_ids", "extra_keys")
        if (more := getattr(event, name, None)) is not None
    ]
    for name, kept, more in folded:
        kept.extend(more)
        setattr(tail, name, kept)


def _listed(values: Any) -> list[Any]:
    """What an engine put into a field of its event, be it a tuple or an array, as the list that the field is."""
    if isinstance(values, list):
        return values
    return values.tolist() if hasattr(values, "tolist") else list(values)
